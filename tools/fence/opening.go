package fence

import (
	"fmt"
	"slices"
	"strings"
)

const (
	maxAttempts = 4
	unlimited   = 9 // more than a cache of this model ever holds
)

// openRules are those of opening that can be removed one by one.
type openRules struct {
	held  bool // Open says what the hops before can return to, and the last hop chooses
	rest  bool // a newer attempt waits until the engine rests
	newer bool // what belongs to an older attempt changes nothing
}

// openScenario is what a driver does, and what may happen to it.
type openScenario struct {
	start                    [hops]int8 // lengths that the hops hold
	attempts, breaks, losses int8       // how many at most
	steps                    int8
}

// Kinds of messages of an attempt.
const (
	msgOpen   = 'O'
	msgOpened = 'Y'
	msgNext   = 'S' // a step of one token
	msgEnd    = 'X' // the stream is over
)

// note is a message of an attempt: what could be held, what is held, or the length that a step leads to.
type note struct {
	kind   byte
	length int8
}

// opener is what one hop knows of opening.
type opener struct {
	books   int8 // length that it believes to hold
	cache   int8 // length that its engine holds
	attempt int8
	life    byte // by the session table
	running int8 // attempt whose step is in the engine; 0: none
	held    int8 // as Open said
	waits   bool // for the engine's rest
}

// openState is a driver and three hops, with a stream per attempt and link.
type openState struct {
	hop      [hops]opener
	down, up [maxAttempts][hops][]note
	over     [maxAttempts][hops]bool // nothing more is sent on that stream
	attempt  int8                    // the driver's newest
	opened   int8                    // the attempt that the driver holds open; 0: none
	length   int8
	steps    int8
	breaks   int8
	losses   int8
	bad      string
}

// clone shares the messages: a link is a slice that only grows into new memory.
func (s *openState) clone() *openState {
	n := *s
	return &n
}

func (s *openState) fail(format string, args ...any) {
	if s.bad == "" {
		s.bad = fmt.Sprintf(format, args...)
	}
}

func (s *openState) sendDown(a int8, i int, x note) {
	if i < hops && !s.over[a][i] {
		s.down[a][i] = append(slices.Clip(s.down[a][i]), x)
	}
}

func (s *openState) sendUp(a int8, i int, x note) {
	if !s.over[a][i] {
		s.up[a][i] = append(slices.Clip(s.up[a][i]), x)
	}
}

// hangUp ends the stream of an attempt into a hop; both ends learn it after what was sent before.
func (s *openState) hangUp(a int8, i int) {
	if i < hops && a > 0 && !s.over[a][i] {
		s.sendDown(a, i, note{kind: msgEnd})
		s.sendUp(a, i, note{kind: msgEnd})
		s.over[a][i] = true
	}
}

// opening is the model of Open.
type opening struct {
	openRules
	openScenario
	table *lifecycle
	whole bool // states are searched as they are, not tidied
}

func (m *opening) first() *openState {
	s := &openState{}
	for i, length := range m.start {
		s.hop[i].books, s.hop[i].cache = length, length
	}
	return s
}

func (m *opening) broken(s *openState) string { return s.bad }

// fire moves the session of a hop by the table and returns the effects.
func (m *opening) fire(s *openState, i int, event string) []string {
	h := &s.hop[i]
	row := m.table.rows[pair{m.table.name(h.life), event}]
	if row.Impossible != "" {
		s.fail("hop %d: %s in %s is impossible by the table", i+1, event, row.State)
	}
	if row.Next != "" {
		h.life = m.table.number(row.Next)
	}
	return row.Effects
}

// in says whether the session of a hop is in one of the states.
func (m *opening) in(s *openState, i int, states ...string) bool {
	return slices.Contains(states, m.table.name(s.hop[i].life))
}

// goOn is a hop whose engine rests, and that goes on opening.
func (m *opening) goOn(s *openState, i int) {
	h := &s.hop[i]
	h.waits = false
	common := min(h.held, h.books)
	if i < hops-1 {
		s.sendDown(h.attempt, i+1, note{msgOpen, common})
		return
	}
	if m.held {
		m.shorten(s, i, common)
	}
	m.fire(s, i, "OpenedDownstream")
	s.sendUp(h.attempt, i, note{msgOpened, h.books})
}

// shorten returns to a length.
func (m *opening) shorten(s *openState, i int, length int8) {
	h := &s.hop[i]
	h.books, h.cache = min(h.books, length), min(h.cache, length)
}

func (m *opening) moves(s *openState) []move[*openState] {
	var all []move[*openState]
	add := func(to *openState, format string, args ...any) {
		m.tidy(to)
		all = append(all, move[*openState]{func() string { return fmt.Sprintf(format, args...) }, to})
	}
	if s.attempt < m.attempts {
		to := s.clone()
		to.attempt++
		to.opened = 0
		to.sendDown(to.attempt, 0, note{msgOpen, unlimited})
		add(to, "driver: open attempt %d", to.attempt)
	}
	if s.opened == s.attempt && s.attempt > 0 && s.steps < m.steps && !s.over[s.attempt][0] {
		to := s.clone()
		to.steps++
		to.length++
		to.sendDown(to.attempt, 0, note{msgNext, to.length})
		add(to, "driver: step to %d (attempt %d)", to.length, to.attempt)
	}
	for i := range s.hop {
		if s.hop[i].running != 0 {
			to := s.clone()
			m.stepEnds(to, i)
			add(to, "hop %d: the engine ends a step of attempt %d", i+1, s.hop[i].running)
		}
		if s.losses < m.losses && m.in(s, i, "OPENING", "ACTIVE", "LINGERING") {
			to := s.clone()
			to.losses++
			m.engineLost(to, i)
			add(to, "hop %d loses its engine", i+1)
		}
	}
	for a := int8(1); a <= s.attempt; a++ {
		for i := range s.hop {
			m.streamMoves(s, a, i, add)
		}
	}
	return all
}

// stepEnds is the engine's end of a step. One of an older attempt is undone.
func (m *opening) stepEnds(s *openState, i int) {
	h := &s.hop[i]
	a := h.running
	h.running = 0
	if a == h.attempt || !m.rest {
		h.books++
		h.cache++
		if a == h.attempt && m.in(s, i, "ACTIVE") {
			s.sendDown(a, i+1, note{msgNext, h.books})
		}
	}
	if h.waits {
		m.fire(s, i, "Unwound")
		m.goOn(s, i)
	}
}

// engineLost empties the engine of a hop; what its books say then is the table's word.
func (m *opening) engineLost(s *openState, i int) {
	h := &s.hop[i]
	h.cache, h.running, h.waits = 0, 0, false
	if slices.Contains(m.fire(s, i, "EngineLost"), "free_all") {
		h.books = 0
	}
	s.hangUp(h.attempt, i)
	s.hangUp(h.attempt, i+1)
}

// streamMoves is what the stream of an attempt into a hop can do.
func (m *opening) streamMoves(s *openState, a int8, i int, add func(*openState, string, ...any)) {
	if s.breaks < m.breaks && !s.over[a][i] && s.hop[i].attempt == a {
		to := s.clone()
		to.breaks++
		to.hangUp(a, i)
		lossy := to.clone()
		add(to, "the link into hop %d breaks (attempt %d)", i+1, a)
		if to = lossy; len(s.down[a][i])+len(s.up[a][i]) > 0 {
			to.down[a][i], to.up[a][i] = []note{{kind: msgEnd}}, []note{{kind: msgEnd}}
			add(to, "the link into hop %d breaks and loses what is on it (attempt %d)", i+1, a)
		}
	}
	if q := s.down[a][i]; len(q) > 0 && (q[0].kind != msgNext || s.hop[i].running == 0) {
		to := s.clone()
		to.down[a][i] = to.down[a][i][1:]
		m.arriveDown(to, a, i, q[0])
		add(to, "hop %d gets %v of attempt %d", i+1, q[0], a)
	}
	if q := s.up[a][i]; len(q) > 0 {
		to := s.clone()
		to.up[a][i] = to.up[a][i][1:]
		if i == 0 {
			m.driverGets(to, a, q[0])
			add(to, "driver gets %v of attempt %d", q[0], a)
			return
		}
		m.arriveUp(to, a, i-1, q[0])
		add(to, "hop %d gets %v of attempt %d from below", i, q[0], a)
	}
}

func (m *opening) arriveDown(s *openState, a int8, i int, x note) {
	h := &s.hop[i]
	switch x.kind {
	case msgOpen:
		m.open(s, a, i, x.length)
	case msgNext:
		if m.newer && a != h.attempt || !m.in(s, i, "ACTIVE") {
			return
		}
		if h.cache+1 != x.length {
			s.fail("hop %d holds %d and runs the step to %d", i+1, h.cache, x.length)
		}
		h.running = h.attempt
	case msgEnd:
		if m.in(s, i, "OPENING", "ACTIVE") && h.attempt == a {
			h.waits = false
			if slices.Contains(m.fire(s, i, "UpstreamBroken"), "hang_up_downstream") {
				s.hangUp(a, i+1)
			}
		}
	}
}

// open is an Open that comes to a hop.
func (m *opening) open(s *openState, a int8, i int, held int8) {
	h := &s.hop[i]
	if a <= h.attempt {
		s.hangUp(a, i) // STALE_ATTEMPT
		return
	}
	event := "OpenNewer"
	if m.in(s, i, "NONE", "CLOSED") {
		h.life, event = 0, "OpenNew"
	}
	m.fire(s, i, event)
	s.hangUp(h.attempt, i) // SUPERSEDED
	s.hangUp(h.attempt, i+1)
	h.attempt, h.held = a, held
	if h.waits = h.running != 0 && m.rest; !h.waits {
		m.goOn(s, i)
	}
}

func (m *opening) arriveUp(s *openState, a int8, i int, x note) {
	h := &s.hop[i]
	if h.attempt != a || !m.in(s, i, "OPENING", "ACTIVE") {
		return
	}
	switch x.kind {
	case msgOpened:
		if m.in(s, i, "OPENING") {
			m.fire(s, i, "OpenedDownstream")
			m.shorten(s, i, x.length)
			s.sendUp(a, i, note{msgOpened, h.books})
		}
	case msgEnd:
		if slices.Contains(m.fire(s, i, "DownstreamBroken"), "end_with_error") {
			h.waits = false
			s.hangUp(a, i)
		}
	}
}

func (m *opening) driverGets(s *openState, a int8, x note) {
	switch {
	case x.kind == msgEnd && s.opened == a:
		s.opened = 0
	case x.kind == msgOpened && a == s.attempt:
		s.opened, s.length = a, x.length
		for i, h := range s.hop {
			if h.attempt == a && m.in(s, i, "ACTIVE") && h.cache != x.length {
				s.fail("Opened says %d, hop %d holds %d", x.length, i+1, h.cache)
			}
		}
	}
}

// wrongAtRest demands equal caches on an open session.
func (m *opening) wrongAtRest(s *openState) string {
	for i, h := range s.hop {
		if s.opened > 0 && s.opened == s.attempt && h.cache != s.length {
			return fmt.Sprintf("at rest: hop %d holds %d, the driver %d", i+1, h.cache, s.length)
		}
	}
	return ""
}

// key is the state as text, field by field.
func (m *opening) key(s *openState) string {
	var b strings.Builder
	for i := range s.hop {
		h := &s.hop[i]
		waits := byte(0)
		if h.waits {
			waits = 1
		}
		b.Write([]byte{byte(h.books), byte(h.cache), byte(h.attempt), h.life, byte(h.running), byte(h.held), waits})
	}
	for a := int8(1); a <= s.attempt; a++ {
		for i := range s.hop {
			over := byte(0)
			if s.over[a][i] {
				over = 1
			}
			b.Write([]byte{over, byte(len(s.down[a][i])), byte(len(s.up[a][i]))})
			for _, q := range [][]note{s.down[a][i], s.up[a][i]} {
				for _, x := range q {
					b.Write([]byte{x.kind, byte(x.length)})
				}
			}
		}
	}
	b.Write([]byte{byte(s.attempt), byte(s.opened), byte(s.length), byte(s.steps), byte(s.breaks), byte(s.losses)})
	b.WriteString(s.bad)
	return b.String()
}

// String is as `opened 2`.
func (x note) String() string {
	return map[byte]string{
		msgOpen: fmt.Sprintf("open held %d", x.length), msgOpened: fmt.Sprintf("opened %d", x.length),
		msgNext: fmt.Sprintf("the step to %d", x.length), msgEnd: "the end",
	}[x.kind]
}
