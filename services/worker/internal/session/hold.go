package session

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// holdStep takes a Step in. bad is what is wrong with the message as such.
func (c *Core) holdStep(m *workerpb.Step, bad *fault.Error) {
	size := m.GetBoundary().GetSize()
	switch {
	case m.GetStepId() <= c.steps.last:
		c.violation(malformed("step.step_id", "greater than %d", c.steps.last))
		return
	case c.steps.incomplete():
		c.violation(malformed("step", "behind the last frame of the step before it"))
		return
	case size > 1<<62 || !c.flow.in.has(1, int64(size)):
		c.violation(fault.New(workerpb.ErrorCode_ERROR_CODE_WINDOW_EXCEEDED, "step %d of %d bytes, %d steps and %d bytes were free",
			m.GetStepId(), size, c.flow.in.steps, c.flow.in.bytes))
		return
	}
	c.flow.in.take(1, int64(size))
	runBefore := c.steps.ran
	c.steps.ran = runBefore || m.GetGenerate() != nil
	s := &step{id: m.GetStepId(), after: m.GetAfter(), state: tables.StepHeld, message: m, size: size}
	s.tightSteps, s.tightBytes = c.flow.in.steps == 0, c.flow.in.bytes < int64(size)
	c.steps.last = s.id
	c.steps.open = append(c.steps.open, s)
	if bad == nil {
		bad = checkStep(stepRules{
			hop: c.hop, stepTokens: c.flow.stepTokens, frameBytes: c.flow.frameBytes, hub: c.place.hub,
			lastHop: c.place.last, first: c.place.first, runBefore: runBefore, outputBytes: uint64(c.flow.room),
		}, m)
	}
	data := m.GetBoundary().GetData()
	framed := size > uint64(len(data))
	if m.GetBoundary() != nil {
		m.Boundary.Data = nil // the message outlives it
	}
	switch {
	case bad != nil:
		c.failHere(s, c.mine(bad))
		return
	case c.steps.cancelled(s.id):
		c.failHere(s, c.cancelledBy())
		return
	}
	s.tokens, s.want = idsOf(tokensOf(m)), wants(m)
	s.sampling = samplingOf(m.GetDecode().GetSampling())
	if g := m.GetGenerate(); g != nil {
		s.sampling = samplingOf(g.GetSampling())
		s.run = &run{max: g.GetMaxTokens(), stops: g.GetStopTokens(), anyEnd: !g.GetIgnoreEog(), gap: g.GetTokenBudget().AsDuration()}
	}
	c.usage.bytesIn += uint64(len(data))
	s.deadline = c.now.Add(m.GetBudget().AsDuration())
	if framed {
		s.frames = newCollector(size, c.flow.frameBytes)
		return
	}
	s.data = data
	c.complete(s)
}

// complete says that the last byte of a step is here; its time begins.
func (c *Core) complete(s *step) {
	s.received, s.frames = c.now, nil
	s.deadline = c.now.Add(s.message.GetBudget().AsDuration())
}

// incomplete says whether frames of a step or an iteration are still to come.
func (q *queue) incomplete() bool {
	for _, s := range q.open {
		if s.frames != nil && s.state == tables.StepHeld || s.run != nil && s.run.next != nil && s.run.next.frame != nil {
			return true
		}
	}
	return false
}

func (c *Core) violation(err *fault.Error) {
	c.fire(tables.SessionEventViolation, cause{err: c.mine(err)})
}

// takeInput takes what is no Step: frames, iterations and room for responses.
func (c *Core) takeInput(m *workerpb.SessionRequest) {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionRequest_Frame:
		c.takeFrame(kind.Frame)
	case *workerpb.SessionRequest_Iteration:
		c.takeIteration(kind.Iteration)
	case *workerpb.SessionRequest_ReceiveCredit:
		c.flow.receive.give(uint64(kind.ReceiveCredit.GetTokens()), kind.ReceiveCredit.GetBytes())
	}
}

func (c *Core) takeFrame(f *workerpb.Frame) {
	s := c.steps.find(f.GetStepId())
	c.usage.bytesIn += uint64(len(f.GetData()))
	switch {
	case f.Index == nil || len(f.GetData()) == 0:
		c.violation(malformed("frame", "an index and 1 to %d bytes", c.flow.frameBytes))
	case s != nil && s.frames != nil && s.state == tables.StepHeld:
		if !s.frames.add(f.GetIndex(), f.GetData()) {
			c.violation(malformed("frame", "the frame %d of step %d, full unless the last", s.frames.index, s.id))
		} else if s.frames.whole() {
			s.data = s.frames.data
			c.complete(s)
		}
	case s != nil && s.run != nil && s.run.next != nil && s.run.next.frame != nil:
		next := s.run.next
		if !next.frame.add(f.GetIndex(), f.GetData()) {
			c.violation(malformed("frame", "the frame %d of iteration %d", next.frame.index, next.index))
		} else if next.frame.whole() {
			next.data, next.frame = next.frame.data, nil
		}
	case f.GetStepId() <= c.steps.last && (s == nil || s.state == tables.StepCancelling):
		// of a step that has failed meanwhile
	default:
		c.violation(malformed("frame", "of a step that waits for one, step %d does not", f.GetStepId()))
	}
}

// takeIteration takes the next token of a run from the hop before.
func (c *Core) takeIteration(m *workerpb.Iteration) {
	s := c.steps.find(m.GetStepId())
	switch {
	case c.place.first:
		c.violation(c.unlawful("an Iteration comes from a hop, never from a driver"))
		return
	case m.Index == nil || m.Token == nil || m.GetStepId() == 0:
		c.violation(malformed("iteration", "with step_id, index and token"))
		return
	case len(m.GetAuxiliary()) > 0:
		c.violation(reserved("auxiliary_state"))
		return
	case s == nil && m.GetStepId() <= c.steps.last, s != nil && (s.state == tables.StepCancelling || s.answer != nil):
		return // answered, or about to be
	case s == nil || s.run == nil:
		c.violation(c.unlawful("an Iteration of step %d, which is no run", m.GetStepId()))
		return
	case s.state != tables.StepForwarded || s.run.next != nil || c.job != nil && c.job.step == s:
		c.violation(c.unlawful("iteration %d of step %d came before the answer to the one before", m.GetIndex(), s.id))
		return
	}
	rules := stepRules{hop: c.hop, frameBytes: c.flow.frameBytes}
	err := checkBoundary(rules, "iteration.boundary", m.GetBoundary(), 1)
	if err == nil {
		err = checkIDs(rules, "iteration.token", []uint32{m.GetToken()})
	}
	if err != nil {
		c.failHere(s, c.mine(stepScope(err)))
		return
	}
	if m.GetIndex() != s.run.begun {
		c.violation(c.unlawful("iteration %d of step %d, the next one is %d", m.GetIndex(), s.id, s.run.begun))
		return
	}
	c.usage.bytesIn += uint64(len(m.GetBoundary().GetData()))
	s.run.begun++
	s.run.next = &iteration{index: m.GetIndex(), token: m.GetToken(), data: m.GetBoundary().GetData()}
	if size := m.GetBoundary().GetSize(); size > uint64(len(s.run.next.data)) {
		s.run.next.frame = newCollector(size, c.flow.frameBytes)
	}
	s.run.gapTo = c.now.Add(s.run.gap)
}

// cancelledBy is the error of a step that the upstream cancelled.
func (c *Core) cancelledBy() *fault.Error {
	return c.mine(fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED, "CancelStep")).With(func(e *fault.Error) { e.Subject = nil })
}

// waitBelow is how long the hops below may take for what is due in d, seen from here.
func (c *Core) waitBelow(d time.Duration) time.Time {
	return c.now.Add(max(d, 0) + time.Duration(c.place.below)*linkSlack)
}
