package fence

import "math/bits"

// Broken links and lost engines while steps run. What was on a link is lost with it: that it arrived before is another order.
// Each end learns it by itself, ends the attempt and hangs up its other link; its cache and its marks stay. Once all have
// ended, the driver opens anew. That is one move here: the model of opening walks its orders.

// tell puts a message on the link out of a hop, to the one before it.
func (s *state) tell(i int, x message) {
	if !s.over[i] {
		s.up[i] = append(s.up[i], x)
	}
}

// hangUp ends the link into a hop.
func (s *state) hangUp(i int) {
	if i < hops {
		s.over[i], s.down[i], s.up[i] = true, nil, nil
	}
}

// breakMoves are what breaks, what is lost, who learns it, and the next attempt.
func (m *fence) breakMoves(s *state, c *choices) {
	if m.breaks == 0 && m.losses == 0 {
		return
	}
	all := s.away
	for i := range s.hop {
		h := &s.hop[i]
		all = all && h.ended
		if s.breaks < m.breaks && !s.over[i] {
			to := s.clone()
			to.breaks++
			to.hangUp(i)
			c.add(to, "the link into hop %d breaks", i+1)
		}
		if s.losses < m.losses && h.cache != "" {
			to := s.clone()
			to.losses++
			m.loseEngine(to, i)
			c.add(to, "hop %d loses its engine", i+1)
		}
		if !h.ended && (s.over[i] || m.hears && i+1 < hops && s.over[i+1]) {
			to := s.clone()
			to.end(i)
			c.add(to, "hop %d ends the attempt", i+1)
		}
	}
	switch {
	case all:
		to := s.clone()
		m.openAnew(to)
		c.add(to, "the driver opens anew")
	case s.over[0] && !s.away:
		to := s.clone()
		to.away, to.stopped = true, true
		c.add(to, "the driver learns that the attempt is over")
	}
}

// end ends the attempt at a hop; what it has applied stays.
func (s *state) end(i int) {
	h := &s.hop[i]
	h.ended, h.unwind, h.queue = true, false, nil
	s.hangUp(i)
	s.hangUp(i + 1)
}

// loseEngine takes the cache of a hop, and with it its marks and its session.
func (m *fence) loseEngine(s *state, i int) {
	h := &s.hop[i]
	h.cache, h.marks, h.from, h.prefilled = "", nil, 0, false
	if m.ends {
		h.applied, h.gone = nil, true
		s.end(i)
	}
}

// openAnew goes back, on every hop, to the greatest length that all reach, if all hold the same tokens up to there. They may
// not, after a Truncate and a step that came to the first hops alone: then nothing is kept.
func (m *fence) openAnew(s *state) {
	reach := ^uint16(0)
	for i := range s.hop {
		reach &= m.reachOf(s, i)
	}
	length := int8(bits.Len16(reach) - 1)
	want := s.hop[0].cache[:length]
	for i := range s.hop {
		if m.same && s.hop[i].cache[:length] != want {
			length, want = 0, ""
		}
	}
	for i := hops - 1; i >= 0; i-- {
		h := &s.hop[i]
		if int(length) < len(h.cache) {
			m.goBack(s, i, length)
		}
		if h.cache != want && !s.lost {
			s.fail("hop %d opens with %q and hop 1 with %q", i+1, h.cache, want)
		}
		*h = hop{cache: h.cache, marks: h.marks, from: h.from}
		if i+1 < hops {
			h.lower = m.told(s, i+1)
		}
		s.over[i], s.credit[i] = false, m.window
	}
	for id := int8(1); id <= s.sent; id++ {
		if s.got[id] == replyNone {
			s.got[id] = replyFailed
		}
	}
	s.ring, s.away, s.cache, s.to = nil, false, want, 0
	s.reach, s.follow, s.after = m.told(s, 0), s.sent+1, 0
}

// breakCases are steps that a broken link or a lost engine interrupts.
func breakCases() []cacheCase {
	none, window := [hops]cacheKind{cacheNone, cacheNone, cacheNone}, [hops]cacheKind{cacheWindow, cacheWindow, cacheWindow}
	mixed, two := [hops]cacheKind{cacheAny, cacheNone, cacheWindow}, [hops]int8{2, 2, 2}
	return []cacheCase{
		{"two steps, a broken link", false, scenario{kinds: "TT", breaks: 1}},
		{"two steps, a lost engine", false, scenario{kinds: "TT", losses: 1}},
		{"two steps, a fault and a broken link", true, scenario{kinds: "TT", faults: 1, breaks: 1}},
		{"two steps, a fault and a lost engine", true, scenario{kinds: "TT", faults: 1, losses: 1}},
		{"two steps, a broken link and a lost engine", true, scenario{kinds: "TT", breaks: 1, losses: 1}},
		{"two steps, two broken links", true, scenario{kinds: "TT", breaks: 2}},
		{"three steps, a broken link", true, scenario{kinds: "TTT", breaks: 1}},
		{"three steps, a lost engine", true, scenario{kinds: "TTT", losses: 1}},
		{"a Truncate, a fault and a broken link", true, scenario{kinds: "TX", faults: 1, overtake: true, breaks: 1}},
		{"a Truncate between steps, a broken link", true, scenario{kinds: "TXT", breaks: 1}},
		{"a run, a broken link", true, scenario{kinds: "TG", tokens: 2, ring: true, breaks: 1}},
		{"a run, a fault and a lost engine", true, scenario{kinds: "G", tokens: 2, faults: 1, ring: true, losses: 1}},
		{"credit of one, a fault and a broken link", true, scenario{kinds: "TT", faults: 1, window: 1, breaks: 1}},
		{"untruncatable caches, a broken link", true, scenario{kinds: "TDD", caches: none, marks: two, survives: true, breaks: 1}},
		{"untruncatable caches, a fault and a lost engine", true, scenario{kinds: "TD", faults: 1, caches: none, marks: two, survives: true, losses: 1}},
		{"window caches, a broken link", true, scenario{kinds: "TDD", caches: window, marks: two, survives: true, breaks: 1}},
		{"any, none and window, a fault and a broken link", true, scenario{kinds: "TD", faults: 1, caches: mixed, marks: two, survives: true, breaks: 1}},
		{"two steps, a fault and a broken link, overtaking, eager", true, scenario{kinds: "TT", faults: 1, overtake: true, eager: true, breaks: 1}},
		{"two steps, a fault and two broken links", true, scenario{kinds: "TT", faults: 1, breaks: 2}},
		{"two steps, a fault, a broken link and a lost engine", true, scenario{kinds: "TT", faults: 1, breaks: 1, losses: 1}},
		{"untruncatable caches, one mark, a fault and a broken link", true, scenario{kinds: "TDD", faults: 1, caches: none, marks: [hops]int8{1, 1, 1}, survives: true, breaks: 1}},
		{"three steps, a fault and a broken link", true, scenario{kinds: "TTT", faults: 1, breaks: 1}},
		{"three steps, a fault and a lost engine", true, scenario{kinds: "TTT", faults: 1, losses: 1}},
	}
}
