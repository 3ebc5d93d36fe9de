package session

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// answer takes a message of the next hop. Responses are read leniently: an unknown kind is passed over.
func (c *Core) answer(m *workerpb.SessionResponse) {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Opened:
		c.openedBelow(kind.Opened)
	case *workerpb.SessionResponse_Closed:
		c.closedBelow(kind.Closed)
	case *workerpb.SessionResponse_StepResult:
		c.resultBelow(kind.StepResult)
	case *workerpb.SessionResponse_StepFailed:
		c.failedBelow(kind.StepFailed)
	case nil:
	default:
		c.fire(tables.SessionEventProgress, cause{response: m})
	}
}

// closedBelow is the end of the next hop's part. Without an error somebody ended it there, behind the driver's back.
func (c *Core) closedBelow(m *workerpb.Closed) {
	err := fault.FromProto(m.GetError())
	if err == nil {
		err = fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED, "the session was ended at hop %s", c.nextAddress()).
			With(func(e *fault.Error) { e.Scope = workerpb.ErrorScope_ERROR_SCOPE_SESSION }).At(c.hop.ref(), c.nextRef())
	} else {
		err = fromBelow(err)
	}
	c.fire(tables.SessionEventClosedDownstream, cause{err: err})
}

// wrong is INTERNAL of the next hop: it broke the contract.
func (c *Core) wrong(format string, args ...any) {
	err := fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, format, args...).At(c.hop.ref(), c.nextRef())
	c.fire(tables.SessionEventViolation, cause{err: err})
}

// answering says whether steps are being answered.
func (c *Core) answering() bool {
	return c.state == tables.SessionActive || c.state == tables.SessionUnwinding
}

func (c *Core) resultBelow(m *workerpb.StepResult) {
	s := c.steps.find(m.GetStepId())
	switch {
	case !c.answering():
		return
	case s == nil || !s.passed || s.answer != nil || s.refused != nil:
		c.wrong("hop %s sent a result of step %d, which waits for none", c.nextAddress(), m.GetStepId())
		return
	case !c.cache.at(m.GetCache().GetLength(), m.GetCache().GetChainHash()):
		c.wrong("after step %d hop %s holds other tokens than this one", m.GetStepId(), c.nextAddress())
		return
	}
	s.answer, s.sampled = m, m.GetSampled()
	c.belowReach = reachOf(m.GetCache().GetReach())
	busy := c.job != nil && c.job.step == s
	switch {
	case s.state == tables.StepCancelling: // resolve takes it in its order
	case s.run != nil && (busy || c.cache.length() > m.GetCache().GetLength()):
		s.run.next, s.run.gapTo = nil, time.Time{}
		if busy {
			c.stopWork(s.deadline)
		}
	default:
		c.fireStep(s, tables.StepEventResultDownstream)
	}
}

// settle ends a run whose last token was evaluated here before its end was known.
func (c *Core) settle(s *step) bool {
	if length := s.answer.GetCache().GetLength(); c.cache.length() > length {
		return c.goBack(length)
	}
	c.fireStep(s, tables.StepEventResultDownstream)
	return true
}

func (c *Core) failedBelow(m *workerpb.StepFailed) {
	s := c.steps.find(m.GetStepId())
	switch {
	case !c.answering():
	case s == nil:
		c.fire(tables.SessionEventStepFailedDownstreamAnswered, cause{})
	case !s.passed || s.answer != nil || s.refused != nil:
		c.wrong("hop %s failed step %d, which waits for no answer", c.nextAddress(), m.GetStepId())
	default:
		s.refused = fromBelow(orInternal(fault.FromProto(m.GetError())))
		if s.fault == nil {
			s.fault = s.refused
		}
		c.belowReach = reachOf(m.GetCache().GetReach())
		c.fire(tables.SessionEventStepFailedDownstreamUnanswered, cause{step: s})
	}
}

// orInternal is for a peer that fails a step and does not say why.
func orInternal(err *fault.Error) *fault.Error {
	if err == nil {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "the hop failed the step without an error")
	}
	return err
}

// takeProgress takes what the next hop sends between terminal replies.
func (c *Core) takeProgress(m *workerpb.SessionResponse) {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Credit:
		c.flow.out.give(uint64(kind.Credit.GetSteps()), kind.Credit.GetBytes())
	case *workerpb.SessionResponse_Token:
		c.tokenBelow(kind.Token)
	case *workerpb.SessionResponse_Frame:
		if s := c.steps.find(kind.Frame.GetStepId()); s != nil {
			c.usage.bytesOut += uint64(len(kind.Frame.GetData()))
			s.sent += uint64(len(kind.Frame.GetData()))
			c.up(m)
		}
	case *workerpb.SessionResponse_Draining:
		kind.Draining.Hop = below(kind.Draining.GetHop())
		c.up(m)
	}
}

// tokenBelow passes a token up; at the head it begins the next iteration.
func (c *Core) tokenBelow(t *workerpb.Token) {
	s := c.steps.find(t.GetStepId())
	if s == nil {
		return
	}
	if t.GetIndex() != s.sampled || t.Id == nil {
		c.wrong("hop %s sent token %d of step %d, the next one is %d", c.nextAddress(), t.GetIndex(), s.id, s.sampled)
		return
	}
	r := s.run
	rung := r != nil && t.GetIndex() < uint32(len(r.known))
	if rung && r.known[t.GetIndex()] != t.GetId() {
		c.twoIDs(s, t.GetIndex(), t.GetId())
		return
	}
	c.tokenUp(s, t)
	switch {
	case r == nil || s.state != tables.StepForwarded || rung:
	case c.place.first:
		c.goOnWith(s, t.GetIndex(), t.GetId(), t.GetLast())
	case t.GetIndex() == r.begun: // not one that an Iteration proved meanwhile
		r.gapTo = time.Time{}
		if r.stopped {
			r.gapTo = c.waitBelow(r.gap)
		}
	}
}

// goOnWith takes a run's next token at the head, whichever way it came, and begins the next iteration unless the run ends.
func (c *Core) goOnWith(s *step, index, id uint32, last bool) {
	r := s.run
	r.known, r.gapTo = append(r.known, id), time.Time{}
	switch {
	case r.stopped:
		c.tellStopped(s)
	case last || index+1 >= r.max:
		r.gapTo = c.waitBelow(r.gap)
	default:
		r.next = &iteration{index: index, token: id}
		r.gapTo = c.now.Add(r.gap)
	}
}

// sendResult is the good terminal reply of a step.
func (c *Core) sendResult(s *step) {
	c.steps.remove(s)
	c.active = c.now
	m := &workerpb.StepResult{
		StepId: s.id, Cache: c.routeCache(), Finish: s.finish, Output: s.output, Timing: []*workerpb.HopTiming{c.timing(s)},
	}
	if s.want != 0 && s.sampled > 0 || s.run != nil {
		m.Sampled = proto.Uint32(s.sampled)
	}
	if a := s.answer; a != nil {
		m.Cache = &workerpb.CacheState{
			Length: a.GetCache().Length, ChainHash: a.GetCache().GetChainHash(),
			Reach: spansOf(meet(c.cache.reach, c.belowReach)),
		}
		m.Finish, m.Output, m.Sampled = a.GetFinish(), a.GetOutput(), a.Sampled
		for _, t := range a.GetTiming() {
			t.Hop = proto.Uint32(t.GetHop() + 1)
			m.Timing = append(m.Timing, t)
		}
	}
	c.flow.receive.give(uint64(s.reserved.steps), 0)
	c.sendFrames(s, payloadOf(s.output))
	s.sent += uint64(len(payloadOf(m.GetOutput()).GetData()))
	c.freeRoom(s)
	c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepResult{StepResult: m}})
}

// payloadOf is the bulk of what this hop made; nil for what came from below, whose frames have passed already.
func payloadOf(o *workerpb.Output) *workerpb.Boundary {
	if b := o.GetLogits(); b != nil {
		return b
	}
	return o.GetBoundary()
}

// sendFrames sends a payload that is larger than a frame ahead of its result.
func (c *Core) sendFrames(s *step, b *workerpb.Boundary) {
	c.usage.bytesOut += b.GetSize()
	frames := framed(s.id, b.GetData(), c.flow.frameBytes)
	if frames == nil {
		return
	}
	b.Data = nil
	for _, f := range frames {
		s.sent += uint64(len(f.GetData()))
		c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Frame{Frame: f}})
	}
}

func (c *Core) timing(s *step) *workerpb.HopTiming {
	t := &workerpb.HopTiming{Hop: proto.Uint32(0), Compute: durationpb.New(s.compute), Shapes: s.shapes}
	if s.run == nil && !s.passed {
		t.Queued = durationpb.New(max(c.now.Sub(s.received)-s.compute, 0))
	}
	return t
}

// routeCache is the cache as this hop and all below hold it.
func (c *Core) routeCache() *workerpb.CacheState {
	state := c.cache.state()
	if !c.place.last {
		state.Reach = spansOf(meet(c.cache.reach, c.belowReach))
	}
	return state
}
