package fence

// arriveDown is a message that comes to a hop from before it.
func (m *fence) arriveDown(s *state, i int, x message) {
	h := &s.hop[i]
	switch x.kind {
	case msgStep:
		if h.received[x.step] {
			s.fail("hop %d receives step %d twice", i+1, x.step)
		}
		h.received[x.step] = true
		m.countHeld(s, i)
		if !h.failing[x.step] {
			h.queue = append(h.queue, x)
			return
		}
		m.fire(s, i, x.step, "FailedHere")
		h.dropped[x.step] = true
		m.refund(s, i, true)
		if h.unwind {
			m.resolve(s, i)
		} else {
			m.answer(s, i, x.step, replyFailed, "Undone")
		}
	case msgIteration:
		if h.reply[x.step] == replyNone && !h.failing[x.step] && !(h.run.stopped && !m.runEnd) {
			h.queue = append(h.queue, x)
		}
	case msgCancel:
		m.cancel(s, i, x)
	}
}

// cancel is a CancelStep that comes to a hop.
func (m *fence) cancel(s *state, i int, x message) {
	h := &s.hop[i]
	from, through := x.step, x.arg
	for id := from; id <= through; id++ {
		h.named[id] = true
	}
	if !m.through { // it acts on what is here
		through = h.newest(0)
		if from > through || !h.open(from) {
			return
		}
	}
	if m.barrier {
		for _, a := range h.applied {
			if m.kindOf(a.step) == 'X' && a.step >= from {
				from = a.step + 1
			}
		}
	}
	if from > through {
		return
	}
	if m.kindOf(from) != 'G' || !h.holds(from) || h.reply[from] != replyNone || m.undo && x.undo {
		m.takeBack(s, i, from, through, false)
		return
	}
	if from < through {
		m.takeBack(s, i, from+1, through, false)
	}
	if h.reply[from] != replyNone {
		return
	}
	m.fire(s, i, from, "Stopped")
	h.run.stopped = true
	if m.runEnd {
		m.stopRun(s, i, from)
		return
	}
	m.drop(s, i, from, from) // every hop stops where it is
	if i == hops-1 {
		m.answer(s, i, from, replyResult, "Finished")
	} else {
		m.send(s, i+1, message{kind: msgCancel, step: from, arg: through})
	}
}

// stopRun ends a run that a person stopped: the head passes it on between iterations, the tail answers.
func (m *fence) stopRun(s *state, i int, step int8) {
	h := &s.hop[i]
	switch {
	case h.reply[step] != replyNone || !h.run.stopped || h.run.passed:
	case i == hops-1:
		m.answer(s, i, step, replyResult, "Finished")
	case i > 0 || h.run.tokens == h.run.begun+1 && !h.run.ended:
		h.run.passed = true
		m.send(s, i+1, message{kind: msgCancel, step: step, arg: step})
	}
}

// token comes to the head, over the chain or the ring.
func (m *fence) token(s *state, x message) {
	h := &s.hop[0]
	if x.arg >= h.run.tokens {
		h.run.tokens, h.run.ended = x.arg+1, x.last
	}
	if h.run.stopped && m.runEnd {
		m.stopRun(s, 0, x.step)
	}
}

// arriveUp is a message that comes to a hop from the one after it.
func (m *fence) arriveUp(s *state, i int, x message) {
	h := &s.hop[i]
	switch x.kind {
	case msgCredit:
		s.credit[i+1]++
	case msgToken:
		if i == 0 {
			m.token(s, x)
		}
		if h.reply[x.step] == replyNone {
			s.tell(i, x)
		}
	case msgResult:
		h.below[x.step], h.lower = replyResult, x.reach
		switch {
		case h.reply[x.step] != replyNone:
			m.fire(s, i, x.step, "ResultDownstream")
		case h.unwind && h.failing[x.step]:
			m.resolve(s, i)
		default:
			m.answer(s, i, x.step, replyResult, "ResultDownstream")
		}
	case msgFailed:
		h.lower = x.reach
		m.failedBelow(s, i, x.step)
	}
}

// failedBelow takes back what the next hop took back, and all after it.
func (m *fence) failedBelow(s *state, i int, step int8) {
	h := &s.hop[i]
	h.below[step] = replyFailed
	m.fire(s, i, step, "FailedDownstream")
	if h.reply[step] != replyNone {
		return
	}
	m.drop(s, i, step, maxSteps-1)
	m.undoStep(s, i, step)
	for id := step; id < maxSteps; id++ {
		if h.open(id) {
			if id > step {
				m.fire(s, i, id, "PredecessorFailed")
			}
			m.answer(s, i, id, replyFailed, "Undone")
		}
	}
	m.resolve(s, i)
}

// ready says whether the turn of the first message in a hop's queue has come.
func (m *fence) ready(s *state, i int) bool {
	h := &s.hop[i]
	if len(h.queue) == 0 || h.unwind {
		return false
	}
	x := h.queue[0]
	if x.kind == msgIteration {
		return true
	}
	if x.arg == h.top() && i < hops-1 && !m.room(s, i+1) {
		return false
	}
	if x.arg == h.top() && !m.markFree(s, i, x) {
		return false
	}
	for id := int8(1); id < x.step; id++ {
		if m.kindOf(id) == 'G' && h.holds(id) && h.reply[id] == replyNone {
			return false
		}
		if m.barrier && m.kindOf(x.step) == 'X' && h.passed[id] && h.reply[id] == replyNone {
			return false
		}
	}
	return true
}

// dispatch runs the first message in a hop's queue; the engine may fail.
func (m *fence) dispatch(s *state, i int, fails bool) {
	h := &s.hop[i]
	x := h.queue[0]
	h.queue = h.queue[1:]
	if x.kind == msgStep {
		refused := x.arg != h.top()
		m.refund(s, i, fails || refused)
		if refused {
			m.fire(s, i, x.step, "FailedHere")
			m.answer(s, i, x.step, replyFailed, "Undone")
			return
		}
	}
	m.takeMark(s, i, x)
	if fails {
		h.dropped[x.step] = h.dropped[x.step] || x.kind == msgStep
		m.takeBack(s, i, x.step, h.newest(x.step), true)
		return
	}
	if m.effect && x.kind == msgStep && h.named[x.step] {
		s.fail("hop %d runs step %d after its CancelStep came", i+1, x.step)
	}
	m.apply(s, i, x)
	if i < hops-1 {
		m.fire(s, i, x.step, map[byte]string{msgStep: "Applied", msgIteration: "Advanced"}[x.kind])
		h.passed[x.step] = true
		m.send(s, i+1, x)
		return
	}
	m.endHere(s, i, x)
}

// apply changes the cache of a hop.
func (m *fence) apply(s *state, i int, x message) {
	h := &s.hop[i]
	start := int8(len(h.cache))
	if x.kind == msgIteration {
		h.grow(m.caches[i], 'a'+byte(x.arg))
		h.prefilled = false
		return
	}
	h.prefilled = m.kindOf(x.step) == 'T' && x.to == 0
	if x.to > 0 {
		m.truncate(s, i, x.to)
		h.applied = append(h.applied, applied{x.step, start, min(start, x.to)})
		return
	}
	if m.kindOf(x.step) == 'X' {
		h.cut(m.caches[i], 0)
		h.forget()
		h.applied = append(h.applied, applied{x.step, start, 0})
		return
	}
	h.grow(m.caches[i], '0'+byte(x.step))
	h.applied = append(h.applied, applied{x.step, start, start})
}

// endHere is the end of a step or an iteration at the last hop.
func (m *fence) endHere(s *state, i int, x message) {
	h := &s.hop[i]
	if m.kindOf(x.step) == 'G' {
		m.fire(s, i, x.step, map[byte]string{msgStep: "Applied", msgIteration: "Advanced"}[x.kind])
		t := message{kind: msgToken, step: x.step, arg: h.run.tokens, last: h.run.tokens+1 == m.tokens}
		h.run.tokens++
		s.tell(i, t)
		if m.scenario.ring {
			s.ring = append(s.ring, t)
		}
		if !t.last {
			return
		}
	}
	m.answer(s, i, x.step, replyResult, "Finished")
}
