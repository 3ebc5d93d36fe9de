package session

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Outcome takes the end of the Work that was submitted last. That of a WorkRelease is of no interest.
func (c *Core) Outcome(now time.Time, o Outcome) []Effect {
	c.begin(now)
	if j := c.job; o.Kind != WorkRelease && j != nil {
		c.job, c.restDeadline = nil, time.Time{}
		switch o.Kind {
		case WorkOpen:
			c.reserved(j, o)
		case WorkAdopt:
			c.adopted(o)
		case WorkTruncate:
			c.wentBack(j, o)
		case WorkStep:
			c.evaluated(j, o)
		}
	}
	return c.finish()
}

// wentBack is the end of a truncation.
func (c *Core) wentBack(j *job, o Outcome) {
	switch {
	case c.engineLost(o.Err):
	case o.Err != nil && j.step != nil && c.place.first && !j.undo:
		c.failHere(j.step, c.mine(stepScope(c.fromEngine(o.Err))))
	case o.Err != nil:
		c.violation(sessionScope(c.fromEngine(o.Err)))
	default:
		c.cache.now(o.Cache)
		if j.undo {
			c.unapply()
		} else if j.step != nil {
			c.refund(j.step)
			c.truncated(j.step)
		}
	}
}

// unapply forgets the steps that the cache does not hold any more.
func (c *Core) unapply() {
	for _, s := range c.steps.open {
		if s.applied && s.truncate() == nil && s.start >= c.cache.length() {
			s.applied = false
		}
	}
}

// truncated says that this hop has done a Truncate.
func (c *Core) truncated(s *step) {
	s.applied = true
	if c.place.last {
		s.finish = workerpb.Finish_FINISH_DONE
		c.fireStep(s, tables.StepEventFinished)
		return
	}
	c.fireStep(s, tables.StepEventApplied)
}

// engineLost says whether err means that the engine is gone; then the session is over.
func (c *Core) engineLost(err error) bool {
	if err == nil || engine.CodeOf(err) != engine.EngineFault {
		return false
	}
	c.cache.lose()
	c.fire(tables.SessionEventEngineLost, cause{err: c.mine(sessionScope(c.fromEngine(err)))})
	return true
}

// evaluated is the end of a step or of an iteration in the engine.
func (c *Core) evaluated(j *job, o Outcome) {
	r, s := o.Result, j.step
	err := o.Err
	if err == nil {
		err = r.Err
	}
	c.usage.compute += r.Compute
	c.marked(j, o)
	if err == nil {
		c.cache.chain.Append(j.tokens...)
		c.cache.reach = r.Cache.Reach
		c.cache.prefilled = j.prefill
		c.usage.evaluated += uint64(len(j.tokens))
	}
	if c.engineLost(err) || s == nil {
		return
	}
	s.compute += r.Compute
	s.shapes = append(s.shapes, uint32(len(j.tokens)))
	if !j.iterate {
		c.refund(s)
		if s.applied = err == nil; s.applied {
			c.grow(s)
		}
	}
	if err == nil && !finite(r.Boundary.Data) {
		err = engine.Errorf(engine.NumericFault, "what the engine made holds NaN or Inf") // and is undone like any failed step
	}
	switch {
	case s.answer != nil: // the run ended meanwhile; settle goes back to its length
	case err != nil && s.state == tables.StepCancelling:
		c.fireStep(s, tables.StepEventFailedHere)
	case err != nil:
		c.failHere(s, c.mine(c.engineFault(err)))
	case s.state == tables.StepCancelling:
		c.fireStep(s, j.event())
	case c.place.last:
		c.made(s, j, r)
	default:
		s.data = r.Boundary.Data
		c.fireStep(s, j.event())
	}
}

// finite says whether no float32 of data is NaN or Inf: none has all bits of its exponent set.
func finite(data []byte) bool {
	for ; len(data) >= float; data = data[float:] {
		if data[3]&0x7f == 0x7f && data[2]&0x80 != 0 {
			return false
		}
	}
	return true
}

// engineFault is an engine's error about one step. All of them end the step alone, but for lack of memory.
func (c *Core) engineFault(err error) *fault.Error {
	f := c.fromEngine(err)
	if f.Code == workerpb.ErrorCode_ERROR_CODE_ENGINE_OUT_OF_MEMORY {
		return f
	}
	return stepScope(f)
}

// event is what the success of a job is to its step.
func (j *job) event() tables.StepEvent {
	if j.iterate {
		return tables.StepEventAdvanced
	}
	return tables.StepEventApplied
}

// made takes what the last hop of the route made.
func (c *Core) made(s *step, j *job, r engine.StepResult) {
	s.finish = workerpb.Finish_FINISH_DONE
	switch {
	case !c.hop.Shard.Tail():
		s.output = &workerpb.Output{Kind: &workerpb.Output_Boundary{Boundary: rowsOf(r.Boundary)}}
	case s.want == engine.WantLogitsLast, s.want == engine.WantLogitsAll:
		s.output = &workerpb.Output{Kind: &workerpb.Output_Logits{Logits: rowsOf(r.Logits)}}
	case s.want == engine.WantSample && r.Sample == nil:
		c.failHere(s, c.mine(stepScope(fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "the engine returned no sample"))))
		return
	case s.run != nil:
		if !c.drawn(s, r.Sample) {
			c.fireStep(s, j.event())
			return
		}
	case s.want == engine.WantSample:
		c.sampled(s, r.Sample, true)
		if r.Sample.EndOfGeneration {
			s.finish = workerpb.Finish_FINISH_END_OF_GENERATION
		}
	}
	c.fireStep(s, tables.StepEventFinished)
}

func rowsOf(r engine.Rows) *workerpb.Boundary {
	return &workerpb.Boundary{
		Rows: r.N, Width: r.Width, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: uint64(len(r.Data)), Data: r.Data,
	}
}

// sampled sends a token up; last says that the tail ends the step with it.
func (c *Core) sampled(s *step, t *engine.Sample, last bool) {
	m := &workerpb.Token{
		StepId: s.id, Index: proto.Uint32(s.sampled), Id: proto.Uint32(uint32(t.Token)), Bytes: t.Bytes, Last: last,
	}
	if s.sampling.WantLogprob {
		m.Logprob = proto.Float32(t.Logprob)
		for _, top := range t.Top {
			m.Top = append(m.Top, &workerpb.TokenLogprob{
				Id: proto.Uint32(uint32(top.Token)), Bytes: top.Bytes, Logprob: proto.Float32(top.Logprob),
			})
		}
	}
	c.usage.sampled++
	c.tokenUp(s, m)
	c.duplicate(s, m)
}

// tokenUp counts a token that goes up.
func (c *Core) tokenUp(s *step, m *workerpb.Token) {
	s.sampled++
	s.reserved.steps = max(s.reserved.steps-1, 0)
	c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Token{Token: m}})
}

// drawn takes a run's next token at the tail: it goes up, and either ends the run or is evaluated next.
func (c *Core) drawn(s *step, t *engine.Sample) (ended bool) {
	r := s.run
	s.finish = r.finish(t, s.sampled+1)
	ended = s.finish != workerpb.Finish_FINISH_DONE
	c.sampled(s, t, ended)
	if ended {
		return true
	}
	r.gapTo = c.now.Add(r.gap + 2*linkSlack) // the hop before this one is the first to see that it is late itself
	if c.place.first {
		r.next = &iteration{index: s.sampled - 1, token: uint32(t.Token)}
		r.gapTo = c.now.Add(r.gap)
	}
	return false
}

// finish is how a run ends with its n-th token; DONE: it does not.
func (r *run) finish(t *engine.Sample, n uint32) workerpb.Finish {
	switch {
	case t.EndOfGeneration && r.anyEnd:
		return workerpb.Finish_FINISH_END_OF_GENERATION
	case slices.Contains(r.stops, uint32(t.Token)):
		return workerpb.Finish_FINISH_STOP_TOKEN
	case n >= r.max:
		return workerpb.Finish_FINISH_LENGTH
	case r.stopped:
		return workerpb.Finish_FINISH_CANCELLED
	}
	return workerpb.Finish_FINISH_DONE
}

// passOn sends what this hop made of a step, or of an iteration of it, to the next hop.
func (c *Core) passOn(s *step) {
	if c.place.last {
		return
	}
	data := s.data
	s.data = nil
	boundary := c.boundary(data)
	c.usage.bytesOut += uint64(len(data))
	if !s.passed {
		c.forward(s, boundary)
	} else {
		it := s.run.now
		c.down(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Iteration{Iteration: &workerpb.Iteration{
			StepId: s.id, Index: proto.Uint32(it.index), Token: proto.Uint32(it.token), Boundary: boundary,
		}}})
	}
	for _, f := range framed(s.id, data, c.flow.frameBytes) {
		c.down(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: f}})
	}
	if s.run != nil {
		s.run.gapTo = c.waitBelow(s.run.gap)
	}
}

// boundary announces data, and holds it unless it goes in frames.
func (c *Core) boundary(data []byte) *workerpb.Boundary {
	out := c.hop.Shard.BoundaryOut
	if len(data) == 0 || out == nil {
		return nil
	}
	b := &workerpb.Boundary{
		Rows: uint32(len(data)) / (out.Width * float), Width: out.Width,
		Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: uint64(len(data)),
	}
	if len(data) <= int(c.flow.frameBytes) {
		b.Data = data
	}
	return b
}

// forward sends a step to the next hop.
func (c *Core) forward(s *step, boundary *workerpb.Boundary) {
	expect := &workerpb.ExpectCache{Length: proto.Uint32(s.start), ChainHash: s.message.GetExpectCache().GetChainHash()}
	m := &workerpb.Step{
		StepId: s.id, After: proto.Uint64(s.after), ExpectCache: expect, Budget: clampBudget(s.deadline.Sub(c.now)),
		Kind: s.message.GetKind(), Boundary: boundary,
	}
	c.flow.out.take(1, int64(boundary.GetSize()))
	c.flow.down -= int64(boundary.GetSize())
	s.passed, c.steps.sent = true, s.id
	s.waitTo = c.waitBelow(s.deadline.Sub(c.now))
	c.down(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: m}})
}

func (c *Core) down(m *workerpb.SessionRequest) {
	if c.linked {
		c.emit(Down{Message: m})
	}
}
