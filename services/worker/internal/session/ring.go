package session

import (
	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// The ring duplicates a run's tokens from the tail straight to the head, so that the head begins the next iteration without
// waiting for the chain. It carries nothing else: what the driver is told comes up the chain, and a ring that was never
// there, or is gone, changes nothing but time.

// offersRing says whether this attempt's tail is told where the ring leads: this hop is the head, and another one the tail.
func (c *Core) offersRing() bool {
	return c.place.first && !c.place.last && c.hop.Shard.Head() && c.hop.Ring != ""
}

// ringBelow is what the next hop is told of the ring: this hop's own, or what the hop before said.
func (c *Core) ringBelow() *workerpb.RingTarget {
	if c.offersRing() {
		return &workerpb.RingTarget{Address: c.hop.Ring}
	}
	return c.open.GetRing()
}

// joinRing opens the ring at the tail, beside everything else.
func (c *Core) joinRing() {
	if at := c.open.GetRing(); at != nil && c.place.last {
		c.emit(DialRing{Address: at.GetAddress(), Hello: &workerpb.RingHello{
			SessionId: c.open.GetSessionId(), SessionKey: c.open.GetSessionKey(), Attempt: c.attempt,
		}})
	}
}

// duplicate sends a run's token by the ring too.
func (c *Core) duplicate(s *step, m *workerpb.Token) {
	if s.run != nil && c.open.GetRing() != nil {
		c.emit(RingOut{&workerpb.RingToken{StepId: m.GetStepId(), Index: m.Index, Id: m.Id, Last: m.GetLast()}})
	}
}

// takeRing takes a duplicate at the head. One that comes before the chain's begins the next iteration; of later ones nothing
// is wanted but that they say the same.
func (c *Core) takeRing(t *workerpb.RingToken) {
	s := c.steps.find(t.GetStepId())
	if s == nil || s.run == nil || s.state != tables.StepForwarded || s.answer != nil {
		return
	}
	known := s.run.known
	switch index := t.GetIndex(); {
	case index > uint32(len(known)):
		c.wrongByRing("token %d of step %d came by the ring, the next one is %d", index, s.id, len(known))
	case index == uint32(len(known)):
		c.emit(RungFirst{})
		c.goOnWith(s, index, t.GetId(), t.GetLast())
	case known[index] != t.GetId():
		c.twoIDs(s, index, t.GetId())
	}
}

// twoIDs is INTERNAL of the tail: it sampled two tokens for one place.
func (c *Core) twoIDs(s *step, index, id uint32) {
	c.wrongByRing("token %d of step %d is %d by the ring or the chain and %d by the other", index, s.id, s.run.known[index], id)
}

// wrongByRing ends the session, which may hold a token that the driver is never told: the next attempt begins empty.
func (c *Core) wrongByRing(format string, args ...any) {
	c.linger = 0
	hops := c.opened.GetHops()
	err := fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, format, args...).At(c.hop.ref(), hops[len(hops)-1].GetHop())
	c.fire(tables.SessionEventViolation, cause{err: err})
}

// MayRing refuses a ring that is not this attempt's. Nothing is changed.
//
// Errors: PERMISSION_DENIED (another key), STALE_ATTEMPT, LIFECYCLE_VIOLATION (this attempt has no ring).
func (c *Core) MayRing(h *workerpb.RingHello) *fault.Error {
	switch {
	case !c.Owns(h.GetSessionKey()):
		return fault.New(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, "session %v has another key", c.id)
	case h.GetAttempt() != c.attempt || !c.attached:
		return fault.New(workerpb.ErrorCode_ERROR_CODE_STALE_ATTEMPT, "a ring of attempt %d, session %v is at attempt %d", h.GetAttempt(), c.id, c.attempt)
	case !c.offersRing():
		return fault.New(workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION, "attempt %d of session %v has no ring", c.attempt, c.id)
	}
	return nil
}

// CheckRingHello refuses a hello that is not complete.
func CheckRingHello(h *workerpb.RingHello) *fault.Error {
	switch {
	case len(h.GetSessionId()) != 16:
		return malformed("hello.session_id", "16 bytes")
	case len(h.GetSessionKey()) != 32:
		return malformed("hello.session_key", "32 bytes")
	case h.GetAttempt() == 0:
		return malformed("hello.attempt", "1 or more")
	}
	return nil
}

// CheckRingToken refuses a duplicate that is not complete.
func CheckRingToken(h *Hop, t *workerpb.RingToken) *fault.Error {
	switch {
	case t.GetStepId() == 0:
		return malformed("token.step_id", "1 or more")
	case t.Index == nil:
		return malformed("token.index", "present")
	case t.Id == nil || t.GetId() >= h.Shard.Vocab:
		return malformed("token.id", "an id below %d", h.Shard.Vocab)
	}
	return nil
}
