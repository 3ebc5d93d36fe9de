package session

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// reasonOf is what Closed says about an error.
func reasonOf(err *fault.Error) workerpb.CloseReason {
	switch err.Code {
	case workerpb.ErrorCode_ERROR_CODE_DRAINING:
		return workerpb.CloseReason_CLOSE_REASON_DRAINED
	case workerpb.ErrorCode_ERROR_CODE_SUPERSEDED:
		return workerpb.CloseReason_CLOSE_REASON_SUPERSEDED
	}
	return workerpb.CloseReason_CLOSE_REASON_ERROR
}

// endUp ends the stream to the upstream, if there is one: with Closed where Opened was sent, else by its status alone.
func (c *Core) endUp(reason workerpb.CloseReason, err *fault.Error) {
	if !c.attached {
		return
	}
	c.attached = false
	if c.idled {
		reason = workerpb.CloseReason_CLOSE_REASON_IDLE
	}
	if c.opened == nil {
		if err == nil {
			err = c.mine(sessionScope(fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED, "the session was ended before it opened")))
		}
		c.emit(EndUp{err})
		return
	}
	used := c.meter()
	closed := &workerpb.Closed{
		Reason: reason, Usage: used, Lingering: c.state == tables.SessionLingering && c.keeps(),
	}
	if err != nil {
		closed.Error = err.Proto()
	}
	c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: closed}})
	c.emit(EndUp{err})
}

// meter reports what an attempt used, when it ends.
func (c *Core) meter() *workerpb.Usage {
	if c.opened == nil {
		return nil
	}
	c.emit(Metered{c.Meter()})
	c.opened = nil
	return c.usage.proto()
}

// Meter is what the open attempt used here since it was asked last; nil when none is open. What is left when the attempt
// ends comes as Metered.
func (c *Core) Meter() *workerpb.Usage {
	if c.opened == nil {
		return nil
	}
	fresh := c.usage.since(c.metered)
	c.metered = c.usage
	return fresh.proto()
}

// keeps says whether there is a cache to linger with. What an opening that failed adopted is none: there was nothing before.
func (c *Core) keeps() bool {
	failed := c.opening.adopted && c.opening.stage != stageOpened
	return c.linger > 0 && c.cache.reserved > 0 && c.cache.length() > 0 && !failed
}

// hangUp ends the link to the next hop at once.
func (c *Core) hangUp() {
	if c.linked {
		c.linked = false
		c.emit(HangUp{})
	}
}

// cancelAll ends every step without a reply; the end of the stream tells the upstream.
func (c *Core) cancelAll() {
	if c.job != nil && c.job.step != nil {
		c.stopWork(c.now)
		c.restDeadline = time.Time{}
		c.job.step = nil
	}
	c.steps = queue{}
}

// closeDownstream tells the next hop, which says Closed; without one there is nothing to wait for.
func (c *Core) closeDownstream() {
	if !c.linked {
		c.fire(tables.SessionEventClosedDownstream, cause{})
		return
	}
	c.closeDeadline = c.now.Add(c.hop.Limits.CloseWait * time.Duration(c.place.below))
	c.emit(Down{Message: &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{KeepPrefix: c.keep}}}, Control: true})
}

// beginLinger keeps the cache for a greater attempt, if there is one to keep.
func (c *Core) beginLinger() {
	c.meter()
	c.attached, c.steps = false, queue{}
	c.openDeadline, c.closeDeadline, c.restDeadline = time.Time{}, time.Time{}, time.Time{}
	c.emit(FreeWindow{})
	if !c.keeps() {
		c.fire(tables.SessionEventLingerExpired, cause{})
		return
	}
	c.lingerDeadline = c.now.Add(c.linger)
}

// freeAll gives everything back.
func (c *Core) freeAll() {
	c.meter()
	c.attached, c.steps = false, queue{}
	c.openDeadline, c.closeDeadline, c.restDeadline, c.lingerDeadline = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	switch {
	case c.keep && c.job == nil && c.cache.reserved > 0 && c.cache.length() > 0:
		c.emit(Keep{c.cache.kept(c.seat)})
	case c.job != nil || c.cache.reserved > 0:
		c.emit(Submit{Work{Kind: WorkRelease, Session: c.seat}})
	}
	c.cache.lose()
	c.emit(FreeWindow{})
	c.emit(Gone{})
}

// Alarm is when Tick is due at the latest; zero when nothing waits for time.
func (c *Core) Alarm() time.Time {
	var first time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	sooner(c.openDeadline)
	sooner(c.closeDeadline)
	sooner(c.lingerDeadline)
	sooner(c.restDeadline)
	for _, s := range c.steps.open {
		sooner(s.due(c))
	}
	if c.idles() {
		sooner(c.active.Add(c.hop.Limits.Idle))
	}
	return first
}

func (c *Core) idles() bool {
	return c.state == tables.SessionActive && len(c.steps.open) == 0 && c.hop.Limits.Idle > 0
}

// due is the next time that a step waits for.
func (s *step) due(c *Core) time.Time {
	at := s.deadline
	switch {
	case s.state == tables.StepCancelling && s.passed, s.passed:
		at = s.waitTo
	case s.state == tables.StepCancelling, c.immune(s):
		return time.Time{}
	}
	if s.run != nil && !s.run.gapTo.IsZero() && s.run.gapTo.Before(at) {
		return s.run.gapTo
	}
	return at
}

// Tick says what time it is. Calling it early does nothing.
func (c *Core) Tick(now time.Time) []Effect {
	c.begin(now)
	over := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	switch {
	case over(c.openDeadline):
		c.openDeadline = time.Time{}
		c.fire(tables.SessionEventOpenTimeout, cause{err: c.openLate()})
	case over(c.closeDeadline):
		c.closeDeadline = time.Time{}
		c.fire(tables.SessionEventCloseTimeout, cause{})
	case over(c.lingerDeadline):
		c.lingerDeadline = time.Time{}
		c.fire(tables.SessionEventLingerExpired, cause{})
	case over(c.restDeadline):
		c.restDeadline = time.Time{}
		c.violation(sessionScope(fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "the engine of worker %s does not come to rest", c.hop.WorkerID)))
	case c.idles() && over(c.active.Add(c.hop.Limits.Idle)):
		c.idled = true
		c.fire(tables.SessionEventIdleTimeout, cause{err: c.mine(sessionScope(fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED,
			"no message came for %v", c.hop.Limits.Idle)))})
		c.idled = false
	default:
		c.stepLate(over)
	}
	return c.finish()
}

// openLate names the hop that an opening waited for.
func (c *Core) openLate() *fault.Error {
	late := fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "the session did not open in %v", c.open.GetBudget().AsDuration())
	if c.opening.stage == stageDial {
		late = late.At(c.hop.ref(), c.nextRef())
	}
	return c.mine(sessionScope(late))
}

// stepLate fails the first step that is out of time, or ends the session when it is the next hop that does not answer.
func (c *Core) stepLate(over func(time.Time) bool) {
	for _, s := range c.steps.open {
		if !over(s.due(c)) {
			continue
		}
		switch {
		case s.run != nil && s.run.next != nil && c.place.first && !c.flow.receive.has(1, 0),
			s.state == tables.StepHeld && c.waitsForDriver(s):
			c.violation(fault.New(workerpb.ErrorCode_ERROR_CODE_SLOW_CONSUMER, "step %d waits for room for its responses", s.id))
		case s.passed && !c.busyWith(s):
			c.hangUp()
			c.fire(tables.SessionEventDownstreamBroken, cause{err: c.lost(nil)})
		default:
			c.failHere(s, c.late(s))
		}
		return
	}
}

// busyWith says whether this hop itself is what a forwarded run waits for.
func (c *Core) busyWith(s *step) bool {
	return s.state != tables.StepCancelling && (c.job != nil && c.job.step == s || s.run != nil && s.run.next != nil)
}

// waitsForDriver says whether room for responses is all that keeps a held step from running.
func (c *Core) waitsForDriver(s *step) bool {
	return c.job == nil && c.steps.open[0] == s && s.frames == nil && !c.hasRoom(c.responses(s))
}

// late is DEADLINE_EXCEEDED of a step at this hop.
func (c *Core) late(s *step) *fault.Error {
	if c.place.last && s.run != nil && s.state == tables.StepForwarded && !c.busyWith(s) {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "the run of step %d was not done in its budget", s.id).At(c.hop.ref(), nil)
	}
	return c.mine(fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "step %d at worker %s", s.id, c.hop.WorkerID))
}
