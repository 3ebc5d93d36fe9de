package fence

// tidy takes out of a state what cannot matter any more, so that states that differ by it alone are searched once: messages
// that whoever they reach passes over, streams that carry and will carry nothing else, and what is overwritten before it is
// read. The move that would take such a message away changes nothing else and stands in the way of none, so each state
// reaches what its tidied form reaches, and the other way round; a test compares both searches where the whole one is small.
// Without the rules about older attempts their messages do matter, and nothing is tidied.
func (m *opening) tidy(s *openState) {
	if m.whole || !m.newer || !m.rest {
		return
	}
	if s.opened == 0 {
		s.length = 0
	}
	for i := range s.hop {
		h := &s.hop[i]
		if !h.waits {
			h.held = 0
		}
		if m.table.name(h.life) == "CLOSED" {
			h.life = 0 // an Open finds the same as in NONE
		}
	}
	for a := int8(1); a <= s.attempt; a++ {
		for i := range s.hop {
			m.tidyStream(s, a, i)
		}
	}
}

// tidyStream tidies the stream of an attempt into a hop.
func (m *opening) tidyStream(s *openState, a int8, i int) {
	above, below := m.deaf(s, a, i-1), m.deaf(s, a, i)
	if above {
		s.up[a][i] = nil
	}
	if q := s.down[a][i]; below && len(q) > 0 {
		// A stale Open on a stream that is not over yet is answered by its end.
		s.down[a][i] = nil
		if q[0].kind == msgOpen && !s.over[a][i] && !above {
			s.down[a][i] = q[:1:1]
		}
	}
	if above && (below || len(s.down[a][i]) == 0) {
		s.down[a][i], s.over[a][i] = nil, true
	}
}

// deaf says whether a hop, or the driver before the first, passes over whatever still comes of an attempt.
func (m *opening) deaf(s *openState, a int8, i int) bool {
	if i < 0 {
		return a < s.attempt
	}
	h := &s.hop[i]
	return h.attempt > a || h.attempt == a && !m.in(s, i, "OPENING", "ACTIVE")
}
