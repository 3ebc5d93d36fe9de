package fence

// A hop takes marks as the worker's session does: before a step it runs, where its cache does not go back to every length,
// unless the cache is empty or marked there already. With no room left the oldest mark that no unanswered step needs is given
// up, the end of the newest prefill last; with none of those, the step waits.

// marksBefore says whether a hop must hold a mark before it runs a message.
func (m *fence) marksBefore(s *state, i int, x message) bool {
	h := &s.hop[i]
	_, marked := h.mark(int8(len(h.cache)))
	return x.kind == msgStep && x.to == 0 && m.kindOf(x.step) != 'X' && m.rules.marks && m.caches[i] != cacheAny &&
		m.scenario.marks[i] > 0 && h.cache != "" && !marked
}

// markFree says whether a mark is free, or none is wanted.
func (m *fence) markFree(s *state, i int, x message) bool {
	return !m.marksBefore(s, i, x) || int8(len(s.hop[i].marks)) < m.scenario.marks[i] || m.idle(s, i) >= 0
}

// idle is the mark that is given up next; -1: unanswered steps need all.
func (m *fence) idle(s *state, i int) int {
	h := &s.hop[i]
	end, idle := -1, -1
	for at, k := range h.marks {
		if k.end && m.turn {
			end = at
		}
	}
	for at, k := range h.marks {
		if (!m.needed || !h.needs(k)) && (idle < 0 || idle == end) {
			idle = at
		}
	}
	return idle
}

// needs says whether a step without reply may have to be undone to a mark.
func (h *hop) needs(k mark) bool {
	for _, a := range h.applied {
		if int(a.start) == len(k.cache) && h.open(a.step) {
			return true
		}
	}
	return false
}

// takeMark remembers the cache before a step.
func (m *fence) takeMark(s *state, i int, x message) {
	if !m.marksBefore(s, i, x) {
		return
	}
	h := &s.hop[i]
	if int8(len(h.marks)) == m.scenario.marks[i] {
		at := m.idle(s, i)
		m.givesUp(s, i, at)
		h.marks = append(h.marks[:at:at], h.marks[at+1:]...)
	}
	h.marks = append(h.marks, mark{h.cache, h.prefilled && m.kindOf(x.step) != 'T'})
}

// givesUp checks that the end of the newest prefill stays while fewer steps than marks are unanswered.
func (m *fence) givesUp(s *state, i, at int) {
	h := &s.hop[i]
	for _, k := range h.marks[at+1:] {
		if k.end {
			return
		}
	}
	unanswered := int8(0)
	for id := int8(1); id < maxSteps; id++ {
		if h.open(id) {
			unanswered++
		}
	}
	if h.marks[at].end && unanswered < m.scenario.marks[i] {
		s.fail("hop %d gives up the end of the newest prefill, %d tokens, for one of %d unanswered steps and %d marks",
			i+1, len(h.marks[at].cache), unanswered, m.scenario.marks[i])
	}
}

// countHeld checks that no more steps come to a hop than can have marks.
func (m *fence) countHeld(s *state, i int) {
	if held := int8(len(s.hop[i].queue)) + 1; m.bounded && held > m.scenario.marks[i] {
		s.fail("hop %d holds %d steps and can take %d marks", i+1, held, m.scenario.marks[i])
	}
}

// mark is the newest mark of a length.
func (h *hop) mark(length int8) (string, bool) {
	for i := len(h.marks) - 1; i >= 0; i-- {
		if len(h.marks[i].cache) == int(length) {
			return h.marks[i].cache, true
		}
	}
	return "", false
}

// forget drops the marks behind the end of the cache.
func (h *hop) forget() {
	var kept []mark
	for _, k := range h.marks {
		if len(k.cache) <= len(h.cache) {
			kept = append(kept, k)
		}
	}
	h.marks = kept
}

// reachOf is what a hop says that it can return to, a bit for each length.
func (m *fence) reachOf(s *state, i int) uint16 {
	h := &s.hop[i]
	reach := uint16(0)
	for length := int8(0); int(length) <= len(h.cache); length++ {
		_, marked := h.mark(length)
		if marked || h.reaches(m.caches[i], length) || !m.narrow && m.caches[i] == cacheWindow {
			reach |= 1 << length
		}
	}
	return reach
}

// told is the reach of a reply.
func (m *fence) told(s *state, i int) uint16 {
	switch {
	case !m.back:
		return 0
	case i == hops-1 || !m.meets:
		return m.reachOf(s, i)
	}
	return m.reachOf(s, i) & s.hop[i].lower
}

// truncate goes back to a length that the driver was told; a hop looks at its own reach before.
func (m *fence) truncate(s *state, i int, length int8) {
	h := &s.hop[i]
	_, marked := h.mark(length)
	switch {
	case m.reachOf(s, i)&(1<<length) == 0:
		s.fail("hop %d cannot go back to %d tokens, which reach had promised", i+1, length)
	case marked || h.reaches(m.caches[i], length):
		m.goBack(s, i, length)
	default:
		h.cut(m.caches[i], length)
	}
}
