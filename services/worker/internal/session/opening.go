package session

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// stage is how far an opening is.
type stage uint8

const (
	stageRest    stage = iota + 1 // the engine ends what an older attempt began
	stageReserve                  // room is asked for
	stageAdopt                    // a kept prefix is copied
	stageDial                     // the next hop is being opened
	stageEqual                    // the cache goes back to what all hops hold
	stageOpened
)

// opening is the work between Open and Opened.
type opening struct {
	stage   stage
	waited  bool // the engine had to be waited for
	room    Room
	found   *workerpb.CacheState // before the caches are made equal
	adopted bool                 // what the cache holds is a copy of a kept prefix
	target  uint32               // length that this hop and those before it can have; at last, that all have
	below   *workerpb.Opened     // of the next hop
	dialed  time.Time
}

// beginOpening takes on an attempt. What an older one left in the cache stays for now.
func (c *Core) beginOpening(o *workerpb.Open, room Room) {
	c.meter()
	c.emit(Attach{})
	c.attempt, c.open, c.attached, c.active = o.GetAttempt(), o, true, c.now
	c.place = place{
		first: o.GetHeld() == nil, last: len(o.GetRoute()) == 0, below: len(o.GetRoute()),
		hub: o.GetEgress() == workerpb.Egress_EGRESS_RETURN,
	}
	c.opening = opening{stage: stageRest, waited: c.job != nil, room: room}
	c.keep = false
	c.flow, c.steps, c.usage, c.metered = flow{}, queue{}, usage{}, usage{}
	c.lingerDeadline, c.closeDeadline, c.restDeadline = time.Time{}, time.Time{}, time.Time{}
	c.linger = o.GetLinger().AsDuration()
	c.openDeadline = c.now.Add(o.GetBudget().AsDuration())
}

// advanceOpening does what can be done now; it says whether anything was.
func (c *Core) advanceOpening() bool {
	if c.job != nil {
		return false
	}
	if c.hop.stepTokens(c.opening.room) == 0 {
		c.fire(tables.SessionEventRefusedHere, cause{err: c.mine(fault.New(workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY,
			"the windows and answers of other sessions take all that worker %s has", c.hop.WorkerID))})
		return true
	}
	switch c.opening.stage {
	case stageRest:
		if c.opening.waited {
			c.fire(tables.SessionEventUnwound, cause{})
		}
		c.reserve()
	case stageEqual:
		c.makeEqual()
	default:
		return false
	}
	return true
}

// reserve asks the engine for room, unless an older attempt left enough.
func (c *Core) reserve() {
	c.opening.stage = stageReserve
	if c.cache.reserved >= c.open.GetContextTokens() {
		c.adopt()
		return
	}
	if c.cache.reserved > 0 { // room cannot grow: what was cached is given up
		c.emit(Submit{Work{Kind: WorkRelease, Session: c.seat}})
		c.cache.lose()
	}
	c.submit(&job{context: c.open.GetContextTokens()}, Work{Kind: WorkOpen, Session: c.seat, Context: c.open.GetContextTokens()})
}

// reserved is the engine's answer. One that an older attempt asked for is room for the newer to look at.
func (c *Core) reserved(j *job, o Outcome) {
	mine := c.state == tables.SessionOpening && c.opening.stage == stageReserve
	if o.Err != nil {
		if mine {
			c.fire(tables.SessionEventRefusedHere, cause{err: c.mine(sessionScope(c.fromEngine(o.Err)))})
		}
		return
	}
	c.cache.lose()
	c.cache.reserved = j.context
	if mine {
		c.adopt()
	}
}

// sessionScope widens an error to the attempt.
func sessionScope(err *fault.Error) *fault.Error {
	return err.With(func(e *fault.Error) { e.Scope = workerpb.ErrorScope_ERROR_SCOPE_SESSION })
}

// passOpenOn opens the next hop; the last hop chooses what all hold.
func (c *Core) passOpenOn() {
	length, reach := c.agree(c.open.GetHeld())
	c.opening.target = length
	if c.place.last {
		c.opening.stage = stageEqual
		return
	}
	c.opening.stage, c.opening.dialed = stageDial, c.now
	next := c.open.GetRoute()[0]
	c.linked = true
	c.emit(Dial{Address: next.GetAddress(), Open: c.openBelow(length, reach)})
}

// agree is the greatest length that this hop and those before it can have in common, and all such lengths.
func (c *Core) agree(held *workerpb.CacheState) (uint32, []engine.Span) {
	own := withLength(c.cache.reach, c.cache.length())
	if held == nil {
		return c.cache.length(), own
	}
	if n := held.GetLength(); n <= c.cache.length() && !c.cache.at(n, held.GetChainHash()) {
		return 0, []engine.Span{{}}
	}
	both := meet(withLength(reachOf(held.GetReach()), held.GetLength()), own)
	if len(both) == 0 {
		return 0, []engine.Span{{}}
	}
	return uint32(both[len(both)-1].To), both
}

// withLength is reach and the present length.
func withLength(reach []engine.Span, length uint32) []engine.Span {
	if holds(reach, length) {
		return reach
	}
	return append(append([]engine.Span(nil), reach...), engine.Span{From: engine.Pos(length), To: engine.Pos(length)})
}

// common is the revisions that the upstream and this hop speak.
func (c *Core) common() *workerpb.RevisionRange {
	both, _ := c.hop.Revisions.Common(c.open.GetRevisions()) // CheckOpen has seen that there is one
	return both
}

// openBelow is the Open for the next hop.
func (c *Core) openBelow(length uint32, reach []engine.Span) *workerpb.Open {
	o, next := c.open, c.open.GetRoute()[0]
	expect := &workerpb.Expectation{
		Fingerprint: o.GetExpect().GetFingerprint(), Layers: next.GetLayers(), BoundaryIn: layoutOf(c.hop.Shard.BoundaryOut),
	}
	if len(o.GetRoute()) > 1 { // all links of a route have one layout
		expect.BoundaryOut = expect.BoundaryIn
	}
	return &workerpb.Open{
		SessionId: o.GetSessionId(), SessionKey: o.GetSessionKey(), Attempt: o.GetAttempt(),
		Revisions: c.common(), Needs: o.GetNeeds(),
		Expect: expect, ContextTokens: o.GetContextTokens(), Egress: o.GetEgress(), Route: o.GetRoute()[1:], Receive: o.GetReceive(),
		Linger: o.GetLinger(), Budget: clampBudget(c.budgetBelow()), OnBehalfOf: o.GetOnBehalfOf(), Ring: c.ringBelow(),
		Held:   &workerpb.CacheState{Length: proto.Uint32(length), ChainHash: c.cache.hash(length), Reach: spansOf(reach)},
		Prefix: c.offers(),
	}
}

// budgetBelow is what the hops below may take: all that is left, without this hop's own share.
func (c *Core) budgetBelow() time.Duration {
	all := c.open.GetBudget().AsDuration()
	share := min(all/time.Duration(c.place.below+1), c.hop.Limits.OpenBudget)
	return min(all-share, c.openDeadline.Sub(c.now))
}

// openedBelow takes the next hop's Opened.
func (c *Core) openedBelow(o *workerpb.Opened) {
	if c.state != tables.SessionOpening || c.opening.stage != stageDial {
		c.fire(tables.SessionEventOpenedDownstream, cause{})
		return
	}
	if r := o.GetRevision(); r < c.common().GetMin() || r > c.common().GetMax() {
		c.wrong("hop %s chose revision %d, which it was not offered", c.nextAddress(), r)
		return
	}
	length := o.GetCache().GetLength()
	if length > c.opening.target || !c.cache.canBe(length) || !c.cache.at(length, o.GetCache().GetChainHash()) {
		c.linger = 0 // so that the next attempt begins with equal, empty caches
		c.fire(tables.SessionEventRefusedHere, cause{err: c.mine(sessionScope(fault.New(workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH,
			"the hops hold different tokens; this hop drops its %d, open again with a greater attempt", c.cache.length())))})
		return
	}
	c.opening.below, c.opening.target, c.opening.stage = o, length, stageEqual
}

// makeEqual goes back to what all hops hold; then the opening is done.
func (c *Core) makeEqual() {
	if c.cache.length() > c.opening.target {
		c.submit(&job{}, Work{Kind: WorkTruncate, Session: c.seat, Length: engine.Pos(c.opening.target)})
		return
	}
	c.opening.stage = stageOpened
	c.fire(tables.SessionEventOpenedDownstream, cause{})
}

// sendOpened tells the upstream what this hop and all below agreed on.
func (c *Core) sendOpened() {
	limits := c.hop.Limits
	o := &workerpb.Opened{
		Revision: c.common().GetMax(), Features: c.hop.ready(),
		Window:        &workerpb.Credit{Steps: proto.Uint32(limits.WindowSteps), Bytes: proto.Uint64(c.opening.room.Window)},
		MaxStepTokens: c.hop.stepTokens(c.opening.room), FrameBytes: limits.FrameBytes, Cache: c.cache.state(),
		Ability: c.ability(), Hops: []*workerpb.HopReport{c.report()}, Linger: c.open.GetLinger(),
		ChunkTokens: c.hop.chunkTokens(c.opening.room),
	}
	if b := c.opening.below; b != nil {
		o.Revision, o.Features = b.GetRevision(), common(o.Features, b.GetFeatures())
		o.MaxStepTokens = min(o.MaxStepTokens, b.GetMaxStepTokens())
		o.ChunkTokens = min(o.ChunkTokens, o.MaxStepTokens, cmp.Or(b.GetChunkTokens(), o.MaxStepTokens))
		o.FrameBytes = min(o.FrameBytes, b.GetFrameBytes())
		o.Cache.Reach = spansOf(meet(c.cache.reach, reachOf(b.GetCache().GetReach())))
		o.Ability = weaker(o.Ability, b.GetAbility())
		for _, h := range b.GetHops() {
			h.Hop = below(h.GetHop())
			o.Hops = append(o.Hops, h)
		}
		if b.GetLinger().AsDuration() < c.linger {
			c.linger, o.Linger = b.GetLinger().AsDuration(), durationpb.New(b.GetLinger().AsDuration())
		}
	}
	o.Window.Steps = proto.Uint32(WindowSteps(o.GetWindow().GetSteps(), o.GetAbility()))
	c.belowReach = reachOf(c.opening.below.GetCache().GetReach())
	c.flow = newFlow(o, c.opening.below, c.open.GetReceive(), c.opening.room)
	c.opened, c.openDeadline = o, time.Time{}
	c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: o}})
	c.joinRing()
}

// report is what this hop brought to the opening.
func (c *Core) report() *workerpb.HopReport {
	l := c.hop.Shard.Layers
	r := &workerpb.HopReport{
		Hop: c.hop.ref(), Layers: &workerpb.LayerRange{First: proto.Uint32(l.First), End: l.End},
		Found: c.opening.found, Numerics: c.hop.numerics(),
	}
	if c.roundTrip > 0 {
		r.LinkRtt = durationpb.New(c.roundTrip)
	}
	return r
}

// RoundTrip takes over what was measured on the link to the next hop.
func (c *Core) RoundTrip(d time.Duration) { c.roundTrip = d }

// LinkRTT is what was measured on the link to the next hop; 0: nothing.
func (c *Core) LinkRTT() time.Duration { return c.roundTrip }

// Route is the hops after this one in the present attempt.
func (c *Core) Route() []*workerpb.RouteHop { return c.open.GetRoute() }

// nextRef names the next hop, as far as it is known.
func (c *Core) nextRef() *workerpb.HopRef {
	if b := c.opening.below; b != nil && len(b.GetHops()) > 0 {
		h := b.GetHops()[0].GetHop()
		return &workerpb.HopRef{Index: proto.Uint32(1), WorkerId: h.GetWorkerId(), Instance: h.GetInstance()}
	}
	return &workerpb.HopRef{Index: proto.Uint32(1)}
}

// nextAddress is where the next hop was dialled.
func (c *Core) nextAddress() string {
	if c.open == nil || len(c.open.GetRoute()) == 0 {
		return "nowhere"
	}
	return c.open.GetRoute()[0].GetAddress()
}
