package session

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// failHere fails a step that has no terminal reply yet, for a reason of this hop.
func (c *Core) failHere(s *step, err *fault.Error) {
	if err.Scope != workerpb.ErrorScope_ERROR_SCOPE_STEP {
		c.fire(tables.SessionEventViolation, cause{err: err})
		return
	}
	if s.fault == nil {
		s.fault = err
	}
	c.fire(tables.SessionEventStepFailedHere, cause{step: s})
}

// cancelStep takes a CancelStep from the upstream.
func (c *Core) cancelStep(m *workerpb.CancelStep) {
	if m.GetStepId() == 0 || m.GetThrough() < m.GetStepId() {
		c.violation(malformed("cancel_step", "with 1 ≤ step_id ≤ through"))
		return
	}
	event := tables.SessionEventCancelStepAnswered
	for _, s := range c.steps.open {
		if c.cancels(m, s) {
			event = tables.SessionEventCancelStepUnanswered
		}
	}
	c.fire(event, cause{cancel: m})
	if c.opened != nil && !c.steps.remember(m.GetStepId(), m.GetThrough()) {
		c.violation(c.unlawful("more than %d ranges of steps are cancelled that were never sent", maxCancels))
	}
}

// cancels says whether a CancelStep has an effect on a step without terminal reply. Nothing up to a Truncate whose turn
// has come can be cancelled any more.
func (c *Core) cancels(m *workerpb.CancelStep, s *step) bool {
	return m.GetStepId() <= s.id && s.id <= m.GetThrough() && !c.immune(s)
}

// unwind begins to take steps back: those that why names, and those that build on them.
func (c *Core) unwind(why cause) {
	switch {
	case why.cancel != nil:
		c.unwindRange(why.cancel)
	case why.step.refused != nil:
		c.fireStep(why.step, tables.StepEventFailedDownstream)
		c.failLater(why.step, tables.StepEventPredecessorFailed)
	default:
		c.fireStep(why.step, tables.StepEventFailedHere)
		c.failLater(why.step, tables.StepEventCancelled)
	}
}

func (c *Core) unwindRange(m *workerpb.CancelStep) {
	for _, s := range append([]*step(nil), c.steps.open...) {
		if !c.cancels(m, s) {
			continue
		}
		if s.run != nil && s.id == m.GetStepId() && !m.GetUndo() && s.state == tables.StepForwarded {
			c.fireStep(s, tables.StepEventStopped)
			continue
		}
		if s.fault == nil {
			s.fault = c.cancelledBy()
		}
		c.fireStep(s, tables.StepEventCancelled)
	}
}

// failLater fails the steps behind one that failed.
func (c *Core) failLater(failed *step, event tables.StepEvent) {
	for _, s := range append([]*step(nil), c.steps.open...) {
		if s.id > failed.id {
			if s.fault == nil {
				s.fault = c.mine(predecessorFailed(failed.id))
			}
			c.fireStep(s, event)
		}
	}
}

// drop takes a step out of the engine and frees what it holds here.
func (c *Core) drop(s *step) {
	if c.place.first {
		c.flow.receive.give(uint64(s.reserved.steps), uint64(s.reserved.bytes))
	}
	c.freeRoom(s)
	s.reserved = credit{}
	if s.run != nil {
		s.run.next, s.run.gapTo = nil, time.Time{}
	}
	if c.job != nil && c.job.step == s {
		c.stopWork(s.deadline)
		return
	}
	s.frames = nil
	c.refund(s)
}

// stopWork asks the engine for an early end of what it does. until is when that is due at the latest.
func (c *Core) stopWork(until time.Time) {
	if c.job.stopped {
		return
	}
	c.job.stopped = true
	if until.Before(c.now) {
		until = c.now
	}
	c.restDeadline = until.Add(c.hop.Limits.EngineRest)
	c.emit(StopWork{})
}

// cancelBelow makes CancelStep name a step that was forwarded and not answered.
func (c *Core) cancelBelow(s *step) {
	if !s.passed || s.answer != nil || s.refused != nil {
		return
	}
	if c.steps.unsent == 0 {
		c.steps.unsent = s.id
	}
	c.steps.through = s.id
}

// flushCancel sends the CancelStep that was gathered: the fence cancels with undo.
func (c *Core) flushCancel() {
	if c.steps.unsent == 0 {
		return
	}
	c.sendCancel(&workerpb.CancelStep{StepId: c.steps.unsent, Through: c.steps.through, Undo: true})
	c.steps.unsent, c.steps.through = 0, 0
}

func (c *Core) sendCancel(m *workerpb.CancelStep) {
	if c.linked {
		c.emit(Down{Message: &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{CancelStep: m}}, Control: true})
	}
}

// stopRun ends a run that a person stopped: between iterations, at the head; the tail answers.
func (c *Core) stopRun(s *step) {
	r := s.run
	r.stopped = true
	busy := c.job != nil && c.job.step == s
	switch {
	case c.place.last && !busy:
		r.next = nil
		s.finish = workerpb.Finish_FINISH_CANCELLED
		c.fireStep(s, tables.StepEventFinished)
	case c.place.last: // the iteration in flight ends it
	case !c.place.first, r.next != nil:
		r.next = nil
		c.tellStopped(s)
	default: // the token of the iteration in flight comes first
	}
}

// tellStopped passes the stop of a run to the next hop.
func (c *Core) tellStopped(s *step) {
	if !s.run.told {
		s.run.told = true
		s.run.gapTo = c.waitBelow(s.run.gap)
		c.sendCancel(&workerpb.CancelStep{StepId: s.id, Through: s.id})
	}
}

// resolve takes failed steps back in their order, as far as it can go now: each once the engine is at rest and the next hop
// has said what became of it. It says whether anything was done.
func (c *Core) resolve() bool {
	for _, s := range c.steps.open {
		if s.state != tables.StepCancelling {
			continue
		}
		length := c.cache.length()
		switch {
		case s.passed && s.answer == nil && s.refused == nil, c.job != nil && c.job.step == s:
			return false
		case s.answer != nil && s.run != nil && length > s.answer.GetCache().GetLength():
			return c.goBack(s.answer.GetCache().GetLength())
		case s.answer != nil:
			c.fireStep(s, tables.StepEventResultDownstream)
		case s.applied && length > s.start:
			return c.goBack(s.start)
		default:
			s.applied = false
			c.fireStep(s, tables.StepEventUndone)
		}
		return true
	}
	c.fire(tables.SessionEventUnwound, cause{})
	return true
}

// goBack makes the cache shorter, as soon as the engine is free.
func (c *Core) goBack(length uint32) bool {
	if c.job != nil {
		return false
	}
	c.submit(&job{undo: true}, Work{Kind: WorkTruncate, Session: c.seat, Length: engine.Pos(length)})
	return true
}

// sendFailed is the bad terminal reply of a step.
func (c *Core) sendFailed(s *step) {
	c.steps.remove(s)
	c.active = c.now
	c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepFailed{StepFailed: &workerpb.StepFailed{
		StepId: s.id, Error: s.fault.Proto(), Cache: c.routeCache(),
	}}})
}
