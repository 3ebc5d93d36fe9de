package conformance

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// upstreamCases speak to the last worker of the route as the hop before it does.
func upstreamCases() []Case {
	return []Case{
		{ID: "upstream.held", Clauses: []string{"OPN-14"}, Skip: hops(2), Says: "A hop that is offered more than it holds opens at what both hold.", Run: func(t *T) {
			d := t.asHop(func(o *workerpb.Open) {
				tokens := t.ids(3, 1)
				o.Held = heldOf(o, tokens)
			})
			d.holds(d.opened.GetCache(), nil)
			d.finish()
		}},
		{ID: "upstream.held-other-tokens", Clauses: []string{"OPN-14", "FEN-7"}, Skip: hops(2), Says: "A hop that is offered other tokens than it holds opens empty, and tells what it held.", Run: func(t *T) {
			d := t.hopLingers()
			next := t.hopAgain(d, t.ids(4, 77))
			next.holds(next.opened.GetCache(), nil)
			next.holds(next.opened.GetHops()[0].GetFound(), d.tokens)
			next.finish()
		}},
		{ID: "upstream.held-shorter", Clauses: []string{"OPN-14", "FEN-7"}, Skip: either(hops(2), anyLength), Says: "A hop that is offered less than it holds opens at what it is offered.", Run: func(t *T) {
			d := t.hopLingers()
			next := t.hopAgain(d, d.tokens[:2])
			next.tokens = d.tokens[:2]
			next.holds(next.opened.GetCache(), next.tokens)
			next.holds(next.opened.GetHops()[0].GetFound(), d.tokens)
			next.finish()
		}},
		{ID: "upstream.held-malformed", Clauses: []string{"VER-2"}, Skip: hops(2), Says: "held without a length is MALFORMED.", Run: func(t *T) {
			o := t.openFor(len(t.Hops) - 1)
			o.Held = &workerpb.CacheState{ChainHash: make([]byte, 16)}
			t.refuseAt(t.tail(), malformed, o)
		}},
		{ID: "upstream.token-budget", Clauses: []string{"GEN-6", "TIM-2", "STP-10"}, Skip: hops(2), Says: "A run whose next iteration does not come in token_budget fails with DEADLINE_EXCEEDED and is undone.", Run: func(t *T) {
			d := t.asHop()
			id := t.beginRun(d, func(g *workerpb.Generate) { g.TokenBudget = durationpb.New(150 * time.Millisecond) })
			began := time.Now()
			d.failed(id, workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED)
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("it took %v", took)
			}
			d.holds(d.of(id).failed.GetCache(), nil)
			d.finish()
		}},
		{ID: "upstream.iteration-index", Clauses: []string{"STP-7"}, Skip: hops(2), Says: "An Iteration that is not the next one ends the attempt.", Run: func(t *T) {
			d := t.asHop()
			id := t.beginRun(d)
			d.send(t.iterationOf(id, 3))
			if c := d.over(); c.GetError() == nil {
				t.Errorf("the attempt ended with %v", c)
			}
		}},
		{ID: "upstream.iterations", Clauses: []string{"GEN-1", "GEN-2"}, Skip: hops(2), Says: "Each Iteration gives one token, and the last one is marked.", Run: func(t *T) {
			d := t.asHop()
			id := t.beginRun(d, func(g *workerpb.Generate) { g.MaxTokens = 3 })
			for i := range uint32(2) {
				d.send(t.iterationOf(id, i))
				for len(d.of(id).tokens) < int(i)+2 {
					if !d.take() {
						t.Fatalf("the stream ended: %v", d.end)
					}
				}
			}
			r := d.done(id)
			if r.failed != nil || r.result.GetFinish() != workerpb.Finish_FINISH_LENGTH {
				t.Fatalf("the run ended with %v", r)
			}
			for i, token := range r.tokens {
				if token.GetLast() != (i == 2) {
					t.Errorf("token %d has last %v", i, token.GetLast())
				}
			}
			d.finish()
		}},
		{ID: "upstream.frame-missing", Clauses: []string{"FLO-6"}, Skip: framedBoundary, Says: "A boundary whose frames do not all come in the budget fails the step with DEADLINE_EXCEEDED.", Run: frameMissing},
		{ID: "upstream.frames", Clauses: []string{"FLO-5", "STP-13"}, Skip: framedBoundary, Says: "A boundary that comes in frames, with control between them, is evaluated.", Run: func(t *T) {
			d := t.asHop(func(o *workerpb.Open) { o.ContextTokens = t.tail().Is.GetShard().GetContextLimit() })
			id, frames := t.framed(d)
			d.send(frames[0])
			d.send(receiveCredit(1, 1))
			for _, f := range frames[1:] {
				d.send(f)
			}
			d.result(id)
			d.finish()
		}},
		wrongFrames("frame-skipped", "A frame that is not the next one", func(d *driver, frames []*workerpb.SessionRequest) { d.send(frames[1]) }),
		wrongFrames("frame-short", "A frame that is neither full nor the last", func(d *driver, frames []*workerpb.SessionRequest) {
			f := frames[0].GetFrame()
			f.Data = f.Data[:len(f.Data)-4]
			d.send(frames[0])
		}),
		wrongFrames("frame-interrupted", "A step between the frames of another", func(d *driver, frames []*workerpb.SessionRequest) {
			d.send(frames[0])
			s := d.step(prefill(d.t.ids(1, 1)...))
			fill(d.t, len(d.t.Hops)-1, s)
			d.give(s)
		}),
	}
}

// asHop opens the last worker of the route as a hop before it that holds nothing.
func (t *T) asHop(change ...func(*workerpb.Open)) *driver {
	o := t.openFor(len(t.Hops) - 1)
	o.Held = heldOf(o, nil)
	for _, c := range change {
		c(o)
	}
	return t.openWith(t.tail(), o)
}

// hopLingers leaves four tokens in the last worker, as a hop before it that goes away does.
func (t *T) hopLingers() *driver {
	d := t.asHop(func(o *workerpb.Open) { o.Linger = durationpb.New(10 * time.Second) })
	s := d.step(prefill(t.ids(4, 1)...))
	fill(t, len(t.Hops)-1, s)
	d.result(d.put(s))
	before := t.health(t.tail()).GetUse().GetLingering()
	d.hangUp()
	for d.take() {
	}
	t.until("the cache lingers", func() bool { return t.health(t.tail()).GetUse().GetLingering() > before })
	return d
}

// hopAgain opens the next attempt as a hop that holds tokens.
func (t *T) hopAgain(d *driver, tokens []uint32) *driver {
	o := proto.CloneOf(d.open)
	o.Attempt, o.Held = o.GetAttempt()+1, heldOf(o, tokens)
	return t.openWith(t.tail(), o)
}

func heldOf(o *workerpb.Open, tokens []uint32) *workerpb.CacheState {
	return &workerpb.CacheState{
		Length: proto.Uint32(uint32(len(tokens))), ChainHash: chainHash(o.GetExpect().GetFingerprint(), tokens),
		Reach: []*workerpb.LengthSpan{{From: proto.Uint32(0), To: proto.Uint32(uint32(len(tokens)))}},
	}
}

// beginRun begins a run with a boundary of zeros and waits for its first token.
func (t *T) beginRun(d *driver, change ...func(*workerpb.Generate)) uint64 {
	s := d.step(generate(8, t.ids(2, 1), change...))
	fill(t, len(t.Hops)-1, s)
	id := d.give(s)
	for len(d.of(id).tokens) == 0 {
		if !d.take() {
			t.Fatalf("the stream ended: %v", d.end)
		}
	}
	return id
}

// iterationOf is an Iteration with a boundary of zeros.
func (t *T) iterationOf(id uint64, index uint32) *workerpb.SessionRequest {
	width := t.tail().Is.GetShard().GetBoundaryIn().GetWidth()
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Iteration{Iteration: &workerpb.Iteration{
		StepId: id, Index: proto.Uint32(index), Token: proto.Uint32(t.ids(1, index)[0]), Boundary: boundaryOf(1, width, make([]byte, uint64(width)*4)),
	}}}
}

// framedBoundary is a Case.Skip for routes whose boundaries are never larger than a frame.
func framedBoundary(t *Target) string {
	if reason := hops(2)(t); reason != "" {
		return reason
	}
	shard := t.tail().Is.GetShard()
	if most := uint64(shard.GetBoundaryIn().GetWidth()) * 4 * uint64(t.tail().Is.GetLimits().GetStepTokens()); most <= 2<<20 {
		return label("the boundary of a greatest step is %d bytes, which may be less than a frame", most)
	}
	return ""
}

// framed sends a step whose boundary of zeros is larger than a frame, and returns its frames.
func (t *T) framed(d *driver) (id uint64, frames []*workerpb.SessionRequest) {
	width, full := t.tail().Is.GetShard().GetBoundaryIn().GetWidth(), int(d.opened.GetFrameBytes())
	rows := uint32(full)/(width*4) + 1
	s := d.step(prefill(t.ids(int(rows), 1)...))
	data := make([]byte, uint64(rows)*uint64(width)*4)
	s.Boundary = boundaryOf(rows, width, data)
	s.Boundary.Data = nil
	for i := uint32(0); len(data) > 0; i++ {
		n := min(len(data), full)
		frames = append(frames, &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: s.GetStepId(), Index: proto.Uint32(i), Data: data[:n]}}})
		data = data[n:]
	}
	return d.put(s), frames
}

// wrongFrames are frames that end the attempt.
func wrongFrames(id, what string, send func(*driver, []*workerpb.SessionRequest)) Case {
	return Case{ID: "upstream." + id, Clauses: []string{"FLO-5", "STP-7"}, Skip: framedBoundary, Says: what + " ends the attempt as MALFORMED.", Run: func(t *T) {
		d := t.asHop(func(o *workerpb.Open) { o.ContextTokens = t.tail().Is.GetShard().GetContextLimit() })
		_, frames := t.framed(d)
		send(d, frames)
		d.ends(malformed)
	}}
}

func frameMissing(t *T) {
	d := t.asHop()
	width := t.tail().Is.GetShard().GetBoundaryIn().GetWidth()
	rows := d.opened.GetFrameBytes()/(width*4) + 1
	s := d.step(prefill(t.ids(int(rows), 1)...), func(s *workerpb.Step) { s.Budget = durationpb.New(200 * time.Millisecond) })
	s.Boundary = boundaryOf(rows, width, nil)
	s.Boundary.Size = uint64(rows) * uint64(width) * 4
	d.failed(d.give(s), workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED)
	d.finish()
}
