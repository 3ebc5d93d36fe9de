package fence

import (
	"fmt"
	"strings"
)

// state is a driver, three hops and the links between them.
type state struct {
	hop      [hops]hop
	down, up [hops][]message // down[i] into hop i, up[i] out of it
	ring     []message
	credit   [hops]int8 // of the sender of the link into a hop
	sent     int8       // last step that the driver sent
	got      [maxSteps]byte
	cache    string // the driver's sequence
	follow   int8   // first step that it sent after a failure or after all; 0: none
	after    int8   // what that one builds on
	reach    uint16 // that the driver was told last
	to       int8   // length to which its Truncate goes back; 0: it sends none
	faults   int
	over     [hops]bool // the link into a hop is broken or closed
	away     bool       // the driver has learned it
	breaks   int8
	losses   int8
	stopped  bool // the driver sends no more of the scenario
	lost     bool // the session ended, since a cache did not reach what it had to
	bad      string
}

func (s *state) clone() *state {
	n := *s
	for i := range n.hop {
		n.hop[i] = s.hop[i].clone()
		n.down[i] = append([]message(nil), s.down[i]...)
		n.up[i] = append([]message(nil), s.up[i]...)
	}
	n.ring = append([]message(nil), s.ring...)
	return &n
}

func (s *state) fail(format string, args ...any) {
	if s.bad == "" {
		s.bad = fmt.Sprintf(format, args...)
	}
}

// fence is the model of steps.
type fence struct {
	rules
	scenario
	table *lifecycle
}

func (m *fence) first() *state {
	s := &state{}
	for i := range s.credit {
		s.credit[i] = m.window
	}
	return s
}

func (m *fence) broken(s *state) string { return s.bad }

// kindOf is the letter of a step; those after the scenario are plain ones.
func (m *fence) kindOf(step int8) byte {
	if int(step) <= len(m.kinds) {
		return m.kinds[step-1]
	}
	return 'T'
}

// fire moves the life of a step at a hop by the table.
func (m *fence) fire(s *state, i int, step int8, event string) {
	life := &s.hop[i].life[step]
	row := m.table.rows[pair{m.table.name(*life), event}]
	if row.Impossible != "" && !m.lasting {
		s.fail("hop %d: %s of step %d in %s is impossible by the table", i+1, event, step, row.State)
	}
	if row.Next != "" {
		*life = m.table.number(row.Next)
	}
}

// send puts a message on the link into a hop; a Step spends one credit.
func (m *fence) send(s *state, i int, x message) {
	if s.over[i] {
		return
	}
	s.down[i] = append(s.down[i], x)
	if x.kind == msgStep && m.window > 0 {
		if s.credit[i]--; s.credit[i] < 0 {
			s.fail("the link into hop %d oversteps its credit", i+1)
		}
	}
}

func (m *fence) room(s *state, i int) bool { return m.window == 0 || s.credit[i] > 0 }

// refund gives the credit of a step back.
func (m *fence) refund(s *state, i int, dropped bool) {
	if m.window > 0 && (!dropped || m.rules.credit) {
		s.tell(i, message{kind: msgCredit})
	}
}

// answer sends the terminal reply of a step up.
func (m *fence) answer(s *state, i int, step int8, reply byte, event string) {
	h := &s.hop[i]
	if h.reply[step] != replyNone {
		s.fail("hop %d answers step %d twice", i+1, step)
		return
	}
	m.fire(s, i, step, event)
	h.reply[step] = reply
	if want := map[byte]string{replyResult: "DONE", replyFailed: "FAILED"}[reply]; m.table.name(h.life[step]) != want && !m.lasting {
		s.fail("hop %d answers step %d, which the table has in %s instead of %s", i+1, step, m.table.name(h.life[step]), want)
	}
	kind := byte(msgResult)
	if reply == replyFailed {
		kind = msgFailed
	}
	s.tell(i, message{kind: kind, step: step, arg: int8(len(h.cache)), reach: m.told(s, i)})
}

// undoStep returns the cache of a hop to the start of a step; what a Truncate destroyed does not come back.
func (m *fence) undoStep(s *state, i int, step int8) {
	h := &s.hop[i]
	for at, a := range h.applied {
		if a.step < step {
			continue
		}
		low := a.start
		for _, later := range h.applied[at:] {
			low = min(low, later.low)
		}
		h.applied = h.applied[:at]
		m.goBack(s, i, min(low, int8(len(h.cache))))
		return
	}
}

// goBack makes the cache of a hop shorter.
func (m *fence) goBack(s *state, i int, length int8) {
	h := &s.hop[i]
	h.prefilled = false
	mark, marked := h.mark(length)
	switch {
	case h.reaches(m.caches[i], length) || !marked && !m.reach:
		h.cut(m.caches[i], length)
	case marked:
		h.restore(m.caches[i], mark)
	default:
		s.lost = true
		if m.survives {
			s.fail("hop %d cannot go back from %d to %d tokens, so the session ends", i+1, len(h.cache), length)
		}
	}
	if m.shortest {
		h.forget()
	}
}

// drop takes the steps from one to another out of the queue of a hop.
func (m *fence) drop(s *state, i int, from, through int8) {
	h := &s.hop[i]
	var kept []message
	for _, x := range h.queue {
		if x.step < from || x.step > through {
			kept = append(kept, x)
			continue
		}
		if x.kind == msgStep {
			h.dropped[x.step] = true
			m.refund(s, i, true)
		}
	}
	h.queue = kept
}

// takeBack begins to undo the steps from one to another at a hop. here says that the cause is this hop's, else CancelStep's,
// which also names steps that did not come yet.
func (m *fence) takeBack(s *state, i int, from, through int8, here bool) {
	h := &s.hop[i]
	m.drop(s, i, from, through)
	first := int8(0)
	for id := from; id <= through; id++ {
		if h.reply[id] != replyNone || here && !h.received[id] {
			continue
		}
		if h.received[id] {
			event := "Cancelled"
			if here && id == from {
				event = "FailedHere"
			}
			m.fire(s, i, id, event)
		}
		h.failing[id] = true
		if h.passed[id] && h.below[id] == replyNone && first == 0 && i+1 < hops {
			first = id
		}
	}
	if first != 0 {
		m.send(s, i+1, message{kind: msgCancel, step: first, arg: through, undo: true})
	}
	if !m.wait {
		m.undoStep(s, i, from)
		for id := from; id <= through; id++ {
			if h.open(id) {
				m.answer(s, i, id, replyFailed, "Undone")
			}
		}
		return
	}
	h.unwind = true
	m.resolve(s, i)
}

// resolve ends failing steps in their order, each once the next hop has answered it.
func (m *fence) resolve(s *state, i int) {
	h := &s.hop[i]
	if !h.unwind {
		return
	}
	for id := int8(1); id < maxSteps; id++ {
		switch {
		case !h.open(id) || !h.failing[id]:
		case h.dropped[id] || i == hops-1 || !h.passed[id] || h.below[id] == replyFailed:
			m.undoStep(s, i, id)
			m.answer(s, i, id, replyFailed, "Undone")
		case h.below[id] == replyNone:
			return
		default:
			m.answer(s, i, id, replyResult, "ResultDownstream")
		}
	}
	h.unwind = false
}

// wrongAtRest looks at a state that nothing follows.
func (m *fence) wrongAtRest(s *state) string {
	if s.lost {
		return ""
	}
	for id := int8(1); id <= s.sent; id++ {
		if s.got[id] == replyNone {
			return fmt.Sprintf("at rest: step %d has no reply at the driver", id)
		}
		for i := range s.hop {
			if s.hop[i].open(id) {
				return fmt.Sprintf("at rest: hop %d never answered step %d", i+1, id)
			}
		}
	}
	if s.follow == 0 || s.follow > s.sent {
		return "at rest: the driver could not send its next step"
	}
	for i := range s.hop {
		if m.window > 0 && s.credit[i] != m.window {
			return fmt.Sprintf("at rest: the link into hop %d has %d of %d credits", i+1, s.credit[i], m.window)
		}
		if s.hop[i].cache != s.cache {
			return fmt.Sprintf("at rest: hop %d holds %q, the driver %q", i+1, s.hop[i].cache, s.cache)
		}
	}
	if s.got[s.follow] != replyResult && (!m.eager || s.after == 0 || s.got[s.after] == replyResult) {
		return fmt.Sprintf("at rest: the next step %d (after %d) failed on a live session", s.follow, s.after)
	}
	return ""
}

// key is the state as text, field by field.
func (m *fence) key(s *state) string {
	var b strings.Builder
	flags := func(all ...bool) {
		for _, f := range all {
			if f {
				b.WriteByte(1)
			} else {
				b.WriteByte(0)
			}
		}
	}
	messages := func(all []message) {
		b.WriteByte(byte(len(all)))
		for _, x := range all {
			b.WriteByte(x.kind)
			b.WriteByte(byte(x.step))
			b.Write([]byte{byte(x.arg), byte(x.to), byte(x.reach), byte(x.reach >> 8)})
			flags(x.undo, x.last)
		}
	}
	text := func(t string) {
		b.WriteByte(byte(len(t)))
		b.WriteString(t)
	}
	for i := range s.hop {
		h := &s.hop[i]
		messages(h.queue)
		messages(s.down[i])
		messages(s.up[i])
		b.WriteByte(byte(len(h.applied)))
		for _, a := range h.applied {
			b.Write([]byte{byte(a.step), byte(a.start), byte(a.low)})
		}
		text(h.cache)
		b.WriteByte(byte(len(h.marks)))
		for _, mark := range h.marks {
			text(mark.cache)
			flags(mark.end)
		}
		b.Write([]byte{byte(h.from), byte(s.credit[i]), byte(h.run.tokens), byte(h.run.begun)})
		b.Write(h.life[:])
		b.Write(h.reply[:])
		b.Write(h.below[:])
		for _, f := range [][maxSteps]bool{h.received, h.passed, h.dropped, h.failing, h.named} {
			flags(f[:]...)
		}
		b.Write([]byte{byte(h.lower), byte(h.lower >> 8)})
		flags(h.ended, h.gone, s.over[i], h.prefilled, h.unwind, h.run.ended, h.run.stopped, h.run.passed)
	}
	messages(s.ring)
	text(s.cache)
	b.Write(s.got[:])
	b.Write([]byte{byte(s.reach), byte(s.reach >> 8), byte(s.to), byte(s.sent), byte(s.follow), byte(s.after), byte(s.faults), byte(s.breaks), byte(s.losses)})
	flags(s.stopped, s.lost, s.away)
	text(s.bad)
	return b.String()
}
