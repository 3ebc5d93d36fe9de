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
		{ID: "upstream.frame-missing", Clauses: []string{"FLO-6"}, Says: "A boundary whose frames do not all come in the budget fails the step with DEADLINE_EXCEEDED.", Skip: either(hops(2), func(t *Target) string {
			shard := t.tail().Is.GetShard()
			if most := uint64(shard.GetBoundaryIn().GetWidth()) * 4 * uint64(t.tail().Is.GetLimits().GetStepTokens()); most <= 2<<20 {
				return label("the boundary of a greatest step is %d bytes, which may be less than a frame", most)
			}
			return ""
		}), Run: frameMissing},
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
