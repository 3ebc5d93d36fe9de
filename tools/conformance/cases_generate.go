package conformance

import (
	"encoding/binary"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// logits waits for a step and returns its logits' bytes, inline or from frames, after checking their form.
func (d *driver) logits(id uint64) []byte {
	r := d.done(id)
	if r.failed != nil {
		d.t.Fatalf("step %d failed: %v", id, r.failed.GetError())
	}
	return d.payload(r, r.result.GetOutput().GetLogits())
}

// payload checks a payload and puts its frames together.
func (d *driver) payload(r *reply, b *workerpb.Boundary) []byte {
	if b == nil {
		d.t.Fatalf("the result of step %d has no such output: %v", r.result.GetStepId(), r.result.GetOutput())
	}
	if want := uint64(b.GetRows()) * uint64(b.GetWidth()) * 4; b.GetSize() != want || b.GetEncoding() != workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32 {
		d.t.Errorf("%d × %d values have the size %d and the encoding %v", b.GetRows(), b.GetWidth(), b.GetSize(), b.GetEncoding())
	}
	full := uint64(d.opened.GetFrameBytes())
	if b.GetSize() <= full {
		if uint64(len(b.GetData())) != b.GetSize() || len(r.frames) > 0 {
			d.t.Errorf("%d bytes must be inline, %d are, with %d frames", b.GetSize(), len(b.GetData()), len(r.frames))
		}
		return b.GetData()
	}
	var all []byte
	for i, f := range r.frames {
		if f.Index == nil || f.GetIndex() != uint32(i) || i < len(r.frames)-1 && uint64(len(f.GetData())) != full {
			d.t.Errorf("frame %d has the index %v and %d bytes", i, f.Index, len(f.GetData()))
		}
		all = append(all, f.GetData()...)
	}
	if uint64(len(all)) != b.GetSize() || len(b.GetData()) > 0 {
		d.t.Errorf("frames bring %d bytes of %d, %d are inline", len(all), b.GetSize(), len(b.GetData()))
	}
	return all
}

// floats are the values of a payload.
func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// best is the index of the greatest value, the lowest among equals.
func best(values []float32) uint32 {
	at := 0
	for i, v := range values {
		if v > values[at] {
			at = i
		}
	}
	return uint32(at)
}

func decodeCases() []Case {
	return []Case{
		{ID: "decode.none", Clauses: []string{"STP-12"}, Says: "Decode with want NONE returns no output.", Run: func(t *T) {
			d := t.openDriver()
			if r := d.result(d.put(d.step(decode(workerpb.Want_WANT_NONE, t.ids(3, 1)...)))); r.GetOutput() != nil || r.GetFinish() != workerpb.Finish_FINISH_DONE {
				t.Errorf("the result is %v", r)
			}
			d.finish()
		}},
		{ID: "decode.prefill-no-output", Clauses: []string{"STP-11"}, Says: "Prefill returns no output and no token.", Run: func(t *T) {
			d := t.openDriver()
			id := d.put(d.step(somePrefill(t)))
			if r := d.result(id); r.GetOutput() != nil || r.GetFinish() != workerpb.Finish_FINISH_DONE || len(d.of(id).tokens) > 0 {
				t.Errorf("the result is %v, %d tokens came", r, len(d.of(id).tokens))
			}
			d.finish()
		}},
		{ID: "decode.logits-last", Clauses: []string{"STP-12", "FLO-5"}, Says: "LOGITS_LAST gives one row of n_vocab finite values.", Run: func(t *T) {
			d := t.openDriver()
			id := d.put(d.step(decode(workerpb.Want_WANT_LOGITS_LAST, t.ids(4, 1)...)))
			values := floats(d.logits(id))
			if b := d.of(id).result.GetOutput().GetLogits(); b.GetRows() != 1 || b.GetWidth() != t.vocab() || uint32(len(values)) != t.vocab() {
				t.Errorf("%d × %d values came", b.GetRows(), b.GetWidth())
			}
			for _, v := range values {
				if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
					t.Fatalf("the logits hold %v", v)
				}
			}
			d.finish()
		}},
		{ID: "decode.logits-all", Clauses: []string{"STP-12", "FLO-5"}, Says: "LOGITS_ALL gives a row for each token, the last of them what LOGITS_LAST gives.", Run: func(t *T) {
			tokens := t.ids(5, 1)
			a, b := t.openDriver(), t.openDriver()
			id := a.put(a.step(decode(workerpb.Want_WANT_LOGITS_ALL, tokens...)))
			all := a.logits(id)
			last := b.logits(b.put(b.step(decode(workerpb.Want_WANT_LOGITS_LAST, tokens...))))
			row := int(t.vocab()) * 4
			if len(all) != 5*row || a.of(id).result.GetOutput().GetLogits().GetRows() != 5 {
				t.Fatalf("%d bytes came for 5 rows of %d", len(all), row)
			}
			if deterministic(t.Target) && string(all[4*row:]) != string(last) {
				t.Errorf("the last row of LOGITS_ALL is not what LOGITS_LAST gives")
			}
			a.finish()
			b.finish()
		}},
		{ID: "decode.sample", Clauses: []string{"STP-12", "GEN-2", "GEN-3", "GEN-4"}, Says: "SAMPLE at temperature 0 gives the most probable token, once, and does not cache it.", Run: func(t *T) {
			tokens := t.ids(4, 3)
			a := t.openDriver()
			want := best(floats(a.logits(a.put(a.step(decode(workerpb.Want_WANT_LOGITS_LAST, tokens...))))))
			a.finish()
			d := t.openDriver()
			id := d.put(d.step(decode(workerpb.Want_WANT_SAMPLE, tokens...)))
			r := d.result(id)
			got := d.of(id).tokens
			if len(got) != 1 || got[0].Index == nil || got[0].GetIndex() != 0 || r.GetSampled() != 1 {
				t.Fatalf("%d tokens came, sampled is %d", len(got), r.GetSampled())
			}
			if got[0].GetId() != want {
				t.Errorf("token %d came, %d is the most probable", got[0].GetId(), want)
			}
			d.usable()
			d.finish()
		}},
		{ID: "decode.repeatable", Clauses: []string{"CAP-7", "CAC-4"}, Says: "The same steps in another session give the same logits.", Run: func(t *T) {
			var first []byte
			for i := range 3 {
				d := t.openDriver()
				d.result(d.put(d.step(prefill(t.ids(6, 2)...))))
				got := d.logits(d.put(d.step(decode(workerpb.Want_WANT_LOGITS_LAST, t.ids(1, 3)...))))
				if i > 0 && string(got) != string(first) {
					t.Errorf("session %d gives other logits", i)
				}
				first = got
				d.finish()
			}
		}},
	}
}

func generateCases() []Case {
	cases := []Case{
		{ID: "generate.count", Clauses: []string{"GEN-1", "GEN-2", "GEN-3"}, Says: "max_tokens tokens come with indices from 0, the last of them not cached, finish LENGTH.", Run: func(t *T) {
			d := t.openDriver()
			tokens := t.ids(3, 1)
			ids := d.run(9, tokens)
			r := d.of(d.id)
			if len(ids) != 9 || r.result.GetFinish() != workerpb.Finish_FINISH_LENGTH || r.result.GetSampled() != 9 {
				t.Errorf("%d tokens came, finish %v, sampled %d", len(ids), r.result.GetFinish(), r.result.GetSampled())
			}
			for i, token := range r.tokens {
				if token.Index == nil || token.GetIndex() != uint32(i) || token.Id == nil || token.GetId() >= t.vocab() {
					t.Errorf("token %d is %v", i, token)
				}
			}
			d.usable()
			d.finish()
		}},
		{ID: "generate.one", Clauses: []string{"GEN-1", "GEN-3"}, Says: "A run of one token caches its own tokens only.", Run: func(t *T) {
			d := t.openDriver()
			if ids := d.run(1, t.ids(3, 1)); len(ids) != 1 || len(d.tokens) != 3 {
				t.Errorf("%d tokens came, %d are cached", len(ids), len(d.tokens))
			}
			d.usable()
			d.finish()
		}},
		{ID: "generate.greedy-is-argmax", Clauses: []string{"GEN-4"}, Says: "Each token of a greedy run is the most probable one after those before it.", Run: func(t *T) {
			tokens := t.ids(3, 2)
			d := t.openDriver()
			ids := d.run(5, tokens)
			d.finish()
			check := t.openDriver()
			next := tokens
			for i, id := range ids {
				want := best(floats(check.logits(check.put(check.step(decode(workerpb.Want_WANT_LOGITS_LAST, next...))))))
				if id != want {
					t.Errorf("token %d is %d, %d is the most probable", i, id, want)
				}
				next = []uint32{id}
			}
			check.finish()
		}},
		{ID: "generate.stop-token", Clauses: []string{"GEN-1", "GEN-2"}, Says: "A stop token ends the run, is told, and finish is STOP_TOKEN.", Run: func(t *T) {
			tokens := t.ids(3, 2)
			a := t.openDriver()
			ids := a.run(8, tokens)
			a.finish()
			at := slices.Index(ids, ids[4])
			d := t.openDriver()
			got := d.run(8, tokens, func(g *workerpb.Generate) { g.StopTokens = []uint32{ids[4]} })
			if !slices.Equal(got, ids[:at+1]) || d.of(d.id).result.GetFinish() != workerpb.Finish_FINISH_STOP_TOKEN {
				t.Errorf("with the stop token %d the run gave %v and %v, without %v", ids[4], got, d.of(d.id).result.GetFinish(), ids)
			}
			d.usable()
			d.finish()
		}},
		{ID: "decode.end-of-generation", Clauses: []string{"STP-15"}, Says: "A Decode that samples an end-of-generation token says so, as a run does.", Run: decodedEnd},
		{ID: "generate.end-of-generation", Clauses: []string{"GEN-1", "GEN-2"}, Says: "An end-of-generation token ends a run and is told; with ignore_eog the run goes on.", Run: endOfGeneration},
		{ID: "generate.continued", Clauses: []string{"GEN-4"}, Says: "A run of 4 and a run of 5 behind it give what a run of 9 gives.", Run: func(t *T) { continued(t, nil) }},
		{ID: "generate.continued-drawn", Clauses: []string{"GEN-4"}, Says: "The same with a seed and temperature 1.", Run: func(t *T) {
			continued(t, func(g *workerpb.Generate) {
				g.Sampling = &workerpb.Sampling{Temperature: proto.Float32(1), Seed: proto.Uint64(42), AnswerStart: proto.Uint32(3)}
			})
		}},
		{ID: "generate.bytes", Clauses: []string{"GEN-10"}, Skip: needs("text.tokenize"), Says: "A token's bytes are what Detokenize gives for it alone.", Run: func(t *T) {
			d := t.openDriver()
			d.run(6, t.ids(3, 2))
			for _, token := range d.of(d.id).tokens {
				a, err := t.head().Text.Detokenize(t.ctx, &workerpb.DetokenizeRequest{Fingerprint: d.open.GetExpect().GetFingerprint(), Tokens: []uint32{token.GetId()}})
				if err != nil || string(a.GetData()) != string(token.GetBytes()) {
					t.Errorf("token %d has the bytes %q, Detokenize says %q, %v", token.GetId(), token.GetBytes(), a.GetData(), err)
				}
			}
			d.finish()
		}},
		{ID: "generate.logprobs-absent", Clauses: []string{"GEN-5"}, Says: "Without logprobs no token carries any.", Run: func(t *T) {
			d := t.openDriver()
			d.run(3, t.ids(3, 2))
			for _, token := range d.of(d.id).tokens {
				if token.Logprob != nil || len(token.GetTop()) > 0 {
					t.Errorf("a token carries %v, %v", token.Logprob, token.GetTop())
				}
			}
			d.finish()
		}},
	}
	for _, n := range []uint32{0, 1, 5, 20} {
		cases = append(cases, Case{ID: label("generate.logprobs-%02d", n), Clauses: []string{"GEN-5"}, Skip: needs("sampling.logprobs"),
			Says: label("With logprobs %d each token carries its own and %d alternatives, most probable first.", n, n), Run: func(t *T) { logprobs(t, n) }})
	}
	return cases
}

// decodedEnd samples each of the first ids, where vocabularies keep their ends, by Decode and by a run: they agree on what ends.
func decodedEnd(t *T) {
	for id := range min(16, t.vocab()) {
		bias := []*workerpb.LogitBias{{Id: proto.Uint32(id), Bias: proto.Float32(1e9)}}
		d := t.openDriver()
		d.run(1, t.ids(2, 2), func(g *workerpb.Generate) { g.IgnoreEog, g.Sampling.LogitBias = false, bias })
		want := workerpb.Finish_FINISH_DONE
		if d.of(d.id).result.GetFinish() == workerpb.Finish_FINISH_END_OF_GENERATION {
			want = workerpb.Finish_FINISH_END_OF_GENERATION
		}
		s := d.step(decode(workerpb.Want_WANT_SAMPLE, t.ids(1, 7)...))
		s.GetDecode().Sampling.LogitBias = bias
		if got := d.result(d.put(s)).GetFinish(); got != want {
			t.Errorf("a Decode that samples token %d ends with %v, and a run with it says %v", id, got, want)
		}
		d.finish()
	}
}

// endOfGeneration looks for an end-of-generation token among the first ids, where vocabularies keep them, by forcing each.
func endOfGeneration(t *T) {
	forced := func(id uint32, ignore bool) (*reply, []uint32) {
		d := t.openDriver()
		ids := d.run(3, t.ids(2, 2), func(g *workerpb.Generate) {
			g.IgnoreEog, g.Sampling.LogitBias = ignore, []*workerpb.LogitBias{{Id: proto.Uint32(id), Bias: proto.Float32(1e9)}}
		})
		r := d.of(d.id)
		d.finish()
		return r, ids
	}
	for id := range min(16, t.vocab()) {
		r, ids := forced(id, false)
		if r.result.GetFinish() != workerpb.Finish_FINISH_END_OF_GENERATION {
			continue
		}
		if !slices.Equal(ids, []uint32{id}) || r.result.GetSampled() != 1 {
			t.Errorf("the run that token %d ended gave %v, sampled is %d", id, ids, r.result.GetSampled())
		}
		if r, ids = forced(id, true); len(ids) != 3 || r.result.GetFinish() != workerpb.Finish_FINISH_LENGTH {
			t.Errorf("with ignore_eog token %d ended the run of 3 after %v with %v", id, ids, r.result.GetFinish())
		}
		return
	}
	if t.head().Is.GetShard().GetArchitecture() == "fake" {
		t.Errorf("no token of the first 16 ends a run")
	}
}

func continued(t *T, change func(*workerpb.Generate)) {
	var changes []func(*workerpb.Generate)
	if change != nil {
		changes = append(changes, change)
	}
	tokens := t.ids(3, 2)
	whole := t.openDriver()
	want := whole.run(9, tokens, changes...)
	whole.finish()
	d := t.openDriver()
	first := d.run(4, tokens, changes...)
	second := d.run(5, first[3:], changes...)
	if got := append(slices.Clone(first), second...); !slices.Equal(got, want) {
		t.Errorf("in two runs %v, in one %v", got, want)
	}
	d.finish()
}

func logprobs(t *T, n uint32) {
	d := t.openDriver()
	d.run(4, t.ids(3, 2), func(g *workerpb.Generate) { g.Sampling.Logprobs = proto.Uint32(n) })
	for _, token := range d.of(d.id).tokens {
		top := token.GetTop()
		if token.Logprob == nil || token.GetLogprob() > 1e-4 || uint32(len(top)) != min(n, t.vocab()) {
			t.Fatalf("a token carries %v and %d alternatives", token.Logprob, len(top))
		}
		for i, alternative := range top {
			if alternative.GetLogprob() > 1e-4 || i > 0 && alternative.GetLogprob() > top[i-1].GetLogprob() {
				t.Errorf("alternative %d has %v behind %v", i, alternative.GetLogprob(), top[max(i, 1)-1].GetLogprob())
			}
		}
		if n > 0 && (top[0].GetId() != token.GetId() || math.Abs(float64(top[0].GetLogprob()-token.GetLogprob())) > 1e-4) {
			t.Errorf("the greedy token %d with %v is not the first alternative, %v", token.GetId(), token.GetLogprob(), top[0])
		}
	}
	d.finish()
}

func samplingCases() []Case {
	draw := func(seed uint64, change ...func(*workerpb.Sampling)) func(*workerpb.Generate) {
		return func(g *workerpb.Generate) {
			g.Sampling = &workerpb.Sampling{Temperature: proto.Float32(1.5), Seed: proto.Uint64(seed)}
			for _, c := range change {
				c(g.Sampling)
			}
		}
	}
	one := func(t *T, change func(*workerpb.Generate)) []uint32 {
		d := t.openDriver()
		ids := d.run(16, t.ids(3, 2), change)
		d.finish()
		return ids
	}
	greedy := func(*workerpb.Generate) {}
	same := func(id, says string, a, b func(*workerpb.Generate)) Case {
		return Case{ID: "sampling." + id, Clauses: []string{"GEN-4"}, Says: says, Run: func(t *T) {
			if x, y := one(t, a), one(t, b); !slices.Equal(x, y) {
				t.Errorf("%v and %v", x, y)
			}
		}}
	}
	return []Case{
		same("same-seed", "The same seed gives the same tokens in another session.", draw(7), draw(7)),
		same("same-seed-large", "So does the greatest seed.", draw(math.MaxUint64), draw(math.MaxUint64)),
		same("top-k-1", "top_k 1 is greedy.", draw(7, func(s *workerpb.Sampling) { s.TopK = proto.Uint32(1) }), greedy),
		same("top-p-tiny", "A tiny top_p is greedy.", draw(7, func(s *workerpb.Sampling) { s.TopP = proto.Float32(1e-6) }), greedy),
		same("min-p-1", "min_p 1 is greedy.", draw(7, func(s *workerpb.Sampling) { s.MinP = proto.Float32(1) }), greedy),
		same("typical-tiny", "A tiny typical leaves one token: the seed is without effect.",
			draw(7, func(s *workerpb.Sampling) { s.Typical = proto.Float32(1e-6) }), draw(8, func(s *workerpb.Sampling) { s.Typical = proto.Float32(1e-6) })),
		same("typical-1", "typical 1 is off.", draw(7, func(s *workerpb.Sampling) { s.Typical = proto.Float32(1) }), draw(7)),
		same("greedy-ignores-seed", "Temperature 0 does not depend on the seed.", func(g *workerpb.Generate) { g.Sampling.Seed = proto.Uint64(99) }, greedy),
		{ID: "sampling.seeds-differ", Clauses: []string{"GEN-4"}, Says: "Among eight seeds at temperature 1.5 not all give the same tokens.", Run: func(t *T) {
			first := one(t, draw(0))
			for seed := uint64(1); seed < 8; seed++ {
				if !slices.Equal(one(t, draw(seed)), first) {
					return
				}
			}
			t.Errorf("eight seeds gave %v", first)
		}},
		{ID: "sampling.seeds-differ-high", Clauses: []string{"GEN-4"}, Says: "So do seeds that differ in their upper half alone.", Run: func(t *T) {
			first := one(t, draw(7))
			for high := uint64(1); high < 8; high++ {
				if !slices.Equal(one(t, draw(7|high<<40)), first) {
					return
				}
			}
			t.Errorf("eight seeds gave %v", first)
		}},
		{ID: "sampling.bias-forces", Clauses: []string{"GEN-4"}, Says: "A great bias makes a token the choice.", Run: func(t *T) {
			want := t.ids(1, 50)[0]
			ids := one(t, func(g *workerpb.Generate) {
				g.Sampling.LogitBias = []*workerpb.LogitBias{{Id: proto.Uint32(want), Bias: proto.Float32(1e9)}}
			})
			for _, id := range ids {
				if id != want {
					t.Fatalf("%v came, all are to be %d", ids, want)
				}
			}
		}},
		{ID: "sampling.bias-forbids", Clauses: []string{"GEN-4"}, Says: "A bias of −inf forbids a token.", Run: func(t *T) {
			banned := one(t, greedy)[0]
			ids := one(t, func(g *workerpb.Generate) {
				inf := float32(math.Inf(-1))
				g.Sampling.LogitBias = []*workerpb.LogitBias{{Id: proto.Uint32(banned), Bias: &inf}}
			})
			if slices.Contains(ids, banned) {
				t.Errorf("%v came, %d is forbidden", ids, banned)
			}
		}},
		{ID: "sampling.grammar-holds", Clauses: []string{"GEN-12"}, Skip: needs("sampling.grammar"), Says: "Under a grammar the answer is of its language, and ends where it may.", Run: grammarHolds},
		{ID: "sampling.grammar-goes-on", Clauses: []string{"GEN-4", "GEN-12"}, Skip: needs("sampling.grammar"), Says: "A run under a grammar goes on in another session as it would have.", Run: grammarGoesOn},
		{ID: "sampling.grammar-left", Clauses: []string{"GEN-11"}, Skip: needs("sampling.grammar"), Says: "Tokens from answer_start on that do not follow the grammar are INVALID_GRAMMAR, and the step is undone.", Run: func(t *T) {
			d := t.openDriver()
			d.failed(d.give(d.step(generate(2, t.ids(2, 1), grammar(`root ::= ""`, 0)))), invalidGrammar)
			d.usable()
			d.finish()
		}},
		{ID: "sampling.grammar-off", Clauses: []string{"VER-8"}, Says: "Where sampling.grammar is not ON a grammar is UNSUPPORTED_FEATURE, never an unconstrained answer.", Skip: func(t *Target) string {
			if t.on("sampling.grammar") {
				return "the feature sampling.grammar is ON"
			}
			return ""
		}, Run: func(t *T) {
			d := t.openDriver()
			s := d.step(generate(2, t.ids(2, 1), func(g *workerpb.Generate) { g.Sampling.Grammar = &workerpb.Grammar{Text: `root ::= "a"`} }))
			d.failed(d.give(s), unsupported)
			d.usable()
			d.finish()
		}},
	}
}
