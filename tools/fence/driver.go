package fence

import (
	"fmt"
	"strings"
)

// choices collects the moves of a state.
type choices []move[*state]

func (c *choices) add(to *state, format string, args ...any) {
	*c = append(*c, move[*state]{func() string { return fmt.Sprintf(format, args...) }, to})
}

// may says whether one more thing of a kind may go wrong.
func (m *fence) may(s *state, what string) bool {
	return s.faults < m.faults && (m.only == "" || strings.Contains(m.only, what))
}

func (m *fence) moves(s *state) []move[*state] {
	var c choices
	if s.lost {
		return nil
	}
	if !s.away {
		m.driverSends(s, &c)
	}
	for i := range s.hop {
		m.linkMoves(s, i, &c)
		if !s.hop[i].ended {
			m.hopMoves(s, i, &c)
		}
	}
	if !s.hop[0].ended {
		m.runMoves(s, &c)
	}
	m.breakMoves(s, &c)
	return c
}

// driverSends is what the driver can say.
func (m *fence) driverSends(s *state, c *choices) {
	n := int8(len(m.kinds))
	next := func(after int8, change func(*state)) {
		to := s.clone()
		to.sent++
		change(to)
		m.send(to, 0, message{kind: msgStep, step: to.sent, arg: after, to: to.to})
		if to.to > 0 {
			c.add(to, "driver: step %d after %d truncates to %d", to.sent, after, to.to)
			return
		}
		c.add(to, "driver: step %d after %d", to.sent, after)
	}
	room := m.room(s, 0)
	if s.sent < n && !s.stopped && room {
		next(s.sent, func(*state) {})
	}
	if room && (s.stopped || s.sent == n) {
		all, good := true, int8(0)
		for id := int8(1); id <= s.sent; id++ {
			all = all && s.got[id] != replyNone
			if s.got[id] == replyResult {
				good = id
			}
		}
		switch {
		case s.follow == 0 && all && s.sent > 0:
			next(good, func(to *state) { to.follow, to.after, to.stopped = to.sent, good, true })
			for to := int8(1); to < int8(len(s.cache)); to++ {
				if s.reach&(1<<to) != 0 {
					next(good, func(n *state) { n.follow, n.after, n.stopped, n.to = n.sent, good, true, to })
				}
			}
		case s.follow == s.sent+1:
			next(s.after, func(*state) {})
		}
	}
	if !m.may(s, "c") || s.follow != 0 {
		return
	}
	for id := int8(1); id <= s.sent; id++ {
		for _, undo := range []bool{false, true} {
			if undo && !(m.undo && m.kindOf(id) == 'G') {
				continue
			}
			to := s.clone()
			to.faults++
			to.stopped = true
			m.send(to, 0, message{kind: msgCancel, step: id, arg: s.sent, undo: undo})
			c.add(to, "driver: cancel %d to %d undo %v", id, s.sent, undo)
		}
	}
}

// linkMoves is what can arrive over the link into a hop.
func (m *fence) linkMoves(s *state, i int, c *choices) {
	for at, x := range s.down[i] {
		if at > 0 && !(x.kind == msgCancel && m.overtake) {
			continue
		}
		to := s.clone()
		to.down[i] = append(to.down[i][:at:at], to.down[i][at+1:]...)
		m.arriveDown(to, i, x)
		c.add(to, "hop %d gets %s", i+1, x)
	}
	if len(s.up[i]) == 0 {
		return
	}
	to, x := s.clone(), s.up[i][0]
	to.up[i] = to.up[i][1:]
	if i == 0 {
		m.driverGets(to, x)
		c.add(to, "driver gets %s", x)
		return
	}
	m.arriveUp(to, i-1, x)
	c.add(to, "hop %d gets %s", i, x)
}

// hopMoves is what a hop can do by itself.
func (m *fence) hopMoves(s *state, i int, c *choices) {
	h := &s.hop[i]
	if m.ready(s, i) {
		x := h.queue[0]
		to := s.clone()
		m.dispatch(to, i, false)
		c.add(to, "hop %d runs %s", i+1, x)
		lawful := x.step != s.follow && (x.kind == msgIteration || x.arg == h.top()) && !(m.kindOf(x.step) == 'X' && i > 0)
		if m.may(s, "l") && lawful {
			to := s.clone()
			to.faults++
			m.dispatch(to, i, true)
			c.add(to, "hop %d fails %s", i+1, x)
		}
	}
	if !m.may(s, "t") || i == hops-1 || h.unwind {
		return
	}
	for id := int8(1); id <= int8(len(m.kinds)); id++ {
		if h.passed[id] && h.reply[id] == replyNone && h.holds(id) && id != s.follow && !(m.kindOf(id) == 'X' && m.barrier) {
			to := s.clone()
			to.faults++
			m.takeBack(to, i, id, to.hop[i].newest(id), true)
			c.add(to, "hop %d is out of time for step %d", i+1, id)
		}
	}
}

// runMoves is the head's next iteration, and the ring.
func (m *fence) runMoves(s *state, c *choices) {
	h := &s.hop[0]
	for id := int8(1); id <= int8(len(m.kinds)); id++ {
		r := h.run
		if m.kindOf(id) == 'G' && h.holds(id) && h.reply[id] == replyNone && !h.unwind && !r.stopped && !r.ended && r.tokens == r.begun+1 {
			to := s.clone()
			to.hop[0].grow(m.caches[0], 'a'+byte(r.begun))
			m.fire(to, 0, id, "Advanced")
			m.send(to, 1, message{kind: msgIteration, step: id, arg: r.begun})
			to.hop[0].run.begun++
			c.add(to, "hop 1 begins iteration %d of step %d", r.begun, id)
		}
	}
	if len(s.ring) == 0 {
		return
	}
	x := s.ring[0]
	to := s.clone()
	to.ring = to.ring[1:]
	c.add(to.clone(), "the ring loses %s", x)
	if to.hop[0].holds(x.step) && to.hop[0].reply[x.step] == replyNone {
		m.token(to, x)
	}
	c.add(to, "hop 1 gets %s over the ring", x)
}

// driverGets is a message that comes to the driver.
func (m *fence) driverGets(s *state, x message) {
	switch x.kind {
	case msgCredit:
		s.credit[0]++
		return
	case msgToken:
		return
	}
	if s.got[x.step] != replyNone {
		s.fail("the driver gets two replies for step %d", x.step)
	}
	s.reach = x.reach
	if x.kind == msgFailed {
		m.driverLearnsFailure(s, x.step)
		return
	}
	s.got[x.step] = replyResult
	switch {
	case s.to > 0 && x.step == s.follow:
		s.cache = s.cache[:s.to]
	case m.kindOf(x.step) == 'X':
		s.cache = ""
	default:
		s.cache += string(rune('0' + x.step))
	}
	for token := 'a'; m.kindOf(x.step) == 'G' && len(s.cache) < int(x.arg); token++ {
		s.cache += string(token)
	}
	for i := range s.hop {
		if h := &s.hop[i]; !h.holds(x.step) && !h.gone && !m.lasting {
			s.fail("the result of step %d reached the driver while hop %d does not hold it", x.step, i+1)
		}
	}
}

func (m *fence) driverLearnsFailure(s *state, step int8) {
	s.got[step] = replyFailed
	s.stopped = true
	for i := range s.hop {
		if s.hop[i].holds(step) && !m.lasting {
			s.fail("the failure of step %d reached the driver while hop %d still holds it", step, i+1)
		}
	}
	if !m.eager || s.follow != 0 {
		return
	}
	s.follow, s.after = s.sent+1, step-1
	for s.after > 0 && s.got[s.after] == replyFailed {
		s.after--
	}
}

// String is as in the scenarios of the worker.
func (x message) String() string {
	switch x.kind {
	case msgStep:
		return fmt.Sprintf("step %d after %d", x.step, x.arg)
	case msgIteration:
		return fmt.Sprintf("iteration %d of step %d", x.arg, x.step)
	case msgCancel:
		return fmt.Sprintf("cancel %d to %d undo %v", x.step, x.arg, x.undo)
	case msgResult:
		return fmt.Sprintf("result of step %d", x.step)
	case msgFailed:
		return fmt.Sprintf("failed step %d", x.step)
	case msgToken:
		return fmt.Sprintf("token %d of step %d", x.arg, x.step)
	}
	return "credit"
}
