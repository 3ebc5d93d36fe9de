package conformance

import (
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// edgeCases are where a reading of the contract that is nearly right shows.
func edgeCases() []Case {
	return []Case{
		{ID: "edge.attempt-of-64-bits", Clauses: []string{"OPN-4"}, Says: "Attempts are compared as unsigned: 2 is stale behind one of 2^63.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Attempt = 1 << 63 })
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			t.refuseAt(t.head(), workerpb.ErrorCode_ERROR_CODE_STALE_ATTEMPT, o)
			d.usable()
			d.finish()
		}},
		{ID: "edge.expects-nothing-cached", Clauses: []string{"STP-3"}, Says: "A step that expects 0 tokens where there are some is CACHE_MISMATCH: 0 is not absent.", Run: func(t *T) {
			d := t.openDriver()
			d.usable()
			d.failed(d.give(d.step(prefill(t.ids(1, 1)...), func(s *workerpb.Step) { s.ExpectCache.Length = proto.Uint32(0) })), workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH)
			d.usable()
			d.finish()
		}},
		{ID: "edge.longest-run", Clauses: []string{"STP-5"}, Says: "A Generate of 2^32 − 1 tokens is CONTEXT_OVERFLOW: sizes do not wrap around.", Run: func(t *T) {
			d := t.openDriver()
			id := d.give(d.step(generate(math.MaxUint32, t.ids(3, 1))))
			d.failed(id, workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW)
			if n := len(d.of(id).tokens); n > 0 {
				t.Errorf("%d tokens came before it was refused", n)
			}
			d.usable()
			d.finish()
		}},
		{ID: "edge.second-stop-token", Clauses: []string{"GEN-1"}, Says: "Each of several stop tokens ends a run, also the last one.", Run: func(t *T) {
			tokens := t.ids(3, 2)
			a := t.openDriver()
			ids := a.run(8, tokens)
			a.finish()
			absent := uint32(8)
			for slices.Contains(ids, absent) {
				absent++
			}
			d := t.openDriver()
			got := d.run(8, tokens, func(g *workerpb.Generate) { g.StopTokens = []uint32{absent, ids[4]} })
			if want := ids[:slices.Index(ids, ids[4])+1]; !slices.Equal(got, want) {
				t.Errorf("the run gave %v, %v was due", got, want)
			}
			d.finish()
		}},
		{ID: "edge.lowest-id-among-equals", Clauses: []string{"GEN-4"}, Says: "At temperature 0 the lowest of equally probable ids is taken.", Run: func(t *T) {
			d := t.openDriver()
			got := d.run(1, t.ids(3, 2), func(g *workerpb.Generate) { g.Sampling.LogitBias = biased(1e30, 40, 200) })
			if !slices.Equal(got, []uint32{40}) {
				t.Errorf("of 40 and 200, both with the greatest bias, %v was taken", got)
			}
			d.finish()
		}},
		{ID: "edge.logprob-before-bias", Clauses: []string{"GEN-5"}, Skip: needs("sampling.logprobs"), Says: "A token's log-probability is that of the logits, before bias and penalties.", Run: logprobBeforeBias},
		{ID: "edge.penalties-see-the-prompt", Clauses: []string{"GEN-4"}, Says: "A repetition penalty lowers tokens of the prompt, not of the last step alone.", Run: penaltiesSeeThePrompt},
		{ID: "edge.credit-in-bytes", Clauses: []string{"FLO-1"}, Skip: hops(2), Says: "The credit of a step gives the bytes of its boundary back.", Run: func(t *T) {
			d := t.asHop()
			s := d.step(prefill(t.ids(4, 1)...))
			fill(t, len(t.Hops)-1, s)
			d.result(d.put(s))
			if got := d.credit.GetBytes(); d.credit.GetSteps() != 1 || got != s.GetBoundary().GetSize() {
				t.Errorf("%d step(s) and %d bytes came back, the step had a boundary of %d bytes", d.credit.GetSteps(), got, s.GetBoundary().GetSize())
			}
			d.finish()
		}},
		wrongFrames("frame-misnumbered", "A full frame with the number of the one after it", func(d *driver, frames []*workerpb.SessionRequest) {
			frames[0].GetFrame().Index = proto.Uint32(1)
			d.send(frames[0])
		}),
	}
}

func biased(bias float32, ids ...uint32) []*workerpb.LogitBias {
	var all []*workerpb.LogitBias
	for _, id := range ids {
		all = append(all, &workerpb.LogitBias{Id: proto.Uint32(id), Bias: proto.Float32(bias)})
	}
	return all
}

func logprobBeforeBias(t *T) {
	tokens := t.ids(3, 2)
	a := t.openDriver()
	values := floats(a.logits(a.put(a.step(decode(workerpb.Want_WANT_LOGITS_LAST, tokens...)))))
	a.finish()
	top, sum := best(values), 0.0
	for _, v := range values {
		sum += math.Exp(float64(v - values[top]))
	}
	forced := (top + 1) % t.vocab()
	want := float64(values[forced]-values[top]) - math.Log(sum)
	d := t.openDriver()
	d.run(1, tokens, func(g *workerpb.Generate) {
		g.Sampling.Logprobs, g.Sampling.LogitBias = proto.Uint32(0), biased(1e6, forced)
	})
	got := d.of(d.id).tokens[0]
	if got.GetId() != forced || math.Abs(float64(got.GetLogprob())-want) > 1e-2 {
		t.Errorf("token %d with %v was sampled; %d is forced and has %v", got.GetId(), got.GetLogprob(), forced, want)
	}
	d.finish()
}

// penaltiesSeeThePrompt lets two tokens alone be likely, one of which the prompt holds, and looks that a penalty changes the
// choice for at least one of several prompts.
func penaltiesSeeThePrompt(t *T) {
	for n := range uint32(12) {
		tokens := append(t.ids(1, 100+n), t.ids(3, 2)...)
		other := t.ids(1, 200+n)[0]
		choose := func(penalty float32) uint32 {
			d := t.openDriver()
			d.result(d.put(d.step(prefill(tokens[:3]...))))
			got := d.run(1, tokens[3:], func(g *workerpb.Generate) {
				g.Sampling.LogitBias = biased(1e4, tokens[0], other)
				g.Sampling.RepeatPenalty, g.Sampling.PenaltyWindow = proto.Float32(penalty), proto.Uint32(64)
			})
			d.finish()
			return got[0]
		}
		if choose(1) == tokens[0] && choose(1e3) == other {
			return
		}
	}
	t.Errorf("no token of a prompt became less likely")
}
