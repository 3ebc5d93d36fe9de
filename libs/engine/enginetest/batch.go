package enginetest

import (
	"math"
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (s suite) batchCases() []testCase {
	cases := []testCase{
		{"empty", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			sh.refusedWhole(t)
		}},
		{"too_many_rows", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			a, b := sh.open(t, 1, s.Request.ContextLimit), sh.open(t, 2, s.Request.ContextLimit)
			sh.refusedWhole(t,
				sh.step(a, 0, sh.tokens(1, 1), engine.WantNone),
				sh.step(b, 0, sh.tokens(1, int(s.Request.BatchTokens)), engine.WantNone))
			sh.one(t, sh.step(a, 0, sh.tokens(1, 1), engine.WantNone))
		}},
		{"a_session_twice", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			a := sh.open(t, 1, 8)
			sh.refusedWhole(t, sh.step(a, 0, sh.tokens(1, 1), engine.WantNone), sh.step(a, 1, sh.tokens(1, 1), engine.WantNone))
			sh.one(t, sh.step(a, 0, sh.tokens(1, 1), engine.WantNone))
		}},
		{"results_in_the_order_of_steps", s.resultsInOrder},
		{"a_bad_step_does_not_touch_the_others", s.badStepAlone},
		{"each_bad_step_has_its_own_error_in_its_place", s.badStepsTogether},
		{"context_filled_to_the_last_token", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 9)
			sh.fill(t, session, 9, 4)
		}},
		{"one_row_more_than_fits_changes_nothing", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 8)
			sh.refused(t, sh.step(session, 0, sh.tokens(1, 9), engine.WantNone), engine.ContextOverflow, 0)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 8), engine.WantNone))
		}},
	}
	for _, bad := range s.badSteps() {
		cases = append(cases, testCase{bad.name, func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 3), engine.WantNone))
			step := sh.step(session, 3, sh.tokens(2, 2), engine.WantNone)
			bad.spoil(sh, &step)
			sh.refused(t, step, bad.code, 3)
			sh.one(t, sh.step(session, 3, sh.tokens(2, 2), engine.WantNone))
		}})
	}
	for _, bad := range badBoundaries() {
		cases = append(cases, testCase{"boundary_" + bad.name, func(t *testing.T) {
			n := s.load(t, engine.LayerRange{}).info.NLayer
			sh := s.load(t, engine.LayerRange{First: s.cuts(n)[0]})
			session := sh.open(t, 1, 16)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 3), engine.WantNone))
			step := sh.step(session, 3, sh.tokens(2, 2), engine.WantNone)
			bad.spoil(&step.Boundary)
			sh.refused(t, step, bad.code, 3)
			sh.one(t, sh.step(session, 3, sh.tokens(2, 2), engine.WantNone))
		}})
	}
	return cases
}

// refusedWhole checks that a batch is MALFORMED and changes nothing.
func (sh *shard) refusedWhole(t *testing.T, steps ...engine.Step) {
	t.Helper()
	results, err := sh.Step(t.Context(), steps)
	wantCode(t, err, engine.Malformed)
	if results != nil {
		t.Errorf("a batch refused as a whole has results %v", results)
	}
}

func (s suite) resultsInOrder(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	const sessions = 2
	steps := make([]engine.Step, sessions)
	for i := range steps {
		id := sh.open(t, byte(sessions-i), 16)
		sh.one(t, sh.step(id, 0, sh.tokens(uint32(i), i+1), engine.WantNone))
		steps[i] = sh.step(id, engine.Pos(i+1), sh.tokens(uint32(i), 2), engine.WantLogitsAll)
	}
	slices.Reverse(steps)
	for i, result := range sh.batch(t, steps...) {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
		if want := steps[i].Start + 2; result.Cache.Length != want {
			t.Errorf("result %d has a cache of %d tokens, want %d: it is another step's", i, result.Cache.Length, want)
		}
		checkRows(t, "logits", result.Logits, 2, sh.info.Vocab)
	}
}

func (s suite) badStepAlone(t *testing.T) {
	for _, bad := range s.badSteps() {
		sh := s.load(t, engine.LayerRange{})
		good, spoilt := sh.open(t, 1, 16), sh.open(t, 2, 16)
		sh.one(t, sh.step(spoilt, 0, sh.tokens(1, 3), engine.WantNone))
		step := sh.step(spoilt, 3, sh.tokens(2, 2), engine.WantNone)
		bad.spoil(sh, &step)
		results := sh.batch(t, step, sh.step(good, 0, sh.tokens(3, 4), engine.WantLogitsLast))
		wantCode(t, results[0].Err, bad.code)
		if results[1].Err != nil || results[1].Cache.Length != 4 {
			t.Errorf("%s: the good step beside it gave %v, cache %d", bad.name, results[1].Err, results[1].Cache.Length)
		}
		alone := sh.loneLogits(t, s, sh.tokens(3, 4))
		s.near(t, bad.name+": logits beside a bad step", floats(results[1].Logits), alone)
	}
}

// badStepsTogether puts as many different bad steps as there are sessions into one batch, one good step among them in turn at
// each place.
func (s suite) badStepsTogether(t *testing.T) {
	all, n := s.badSteps(), int(s.Request.Sessions)
	n = min(n, int(s.Request.BatchTokens)/16)
	for good := range n {
		sh := s.load(t, engine.LayerRange{})
		steps, codes := make([]engine.Step, n), make([]engine.Code, n)
		for i := range steps {
			session := sh.open(t, byte(i), 16)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 3), engine.WantNone))
			steps[i] = sh.step(session, 3, sh.tokens(2, 2), engine.WantLogitsLast)
			if i != good {
				bad := all[(good*n+i)%len(all)]
				steps[i].Want = engine.WantNone
				bad.spoil(sh, &steps[i])
				codes[i] = bad.code
			}
		}
		for i, result := range sh.batch(t, steps...) {
			want := engine.Pos(3)
			if i == good {
				want = 5
				checkRows(t, "logits", result.Logits, 1, sh.info.Vocab)
			} else {
				wantCode(t, result.Err, codes[i])
			}
			if result.Cache.Length != want {
				t.Errorf("result %d has a cache of %d tokens, want %d: %v", i, result.Cache.Length, want, result.Err)
			}
		}
	}
}

// loneLogits is the last logits of tokens on an engine of their own.
func (sh *shard) loneLogits(t *testing.T, s suite, tokens []engine.TokenID) []float32 {
	t.Helper()
	other := s.load(t, engine.LayerRange{})
	session := other.open(t, 1, 16)
	return floats(other.one(t, other.step(session, 0, tokens, engine.WantLogitsLast)).Logits)
}

// badStep spoils a good step: session 1 or 2, two tokens, start 3.
type badStep struct {
	name  string
	code  engine.Code
	spoil func(*shard, *engine.Step)
}

func (s suite) badSteps() []badStep {
	sampling := func(change func(*engine.Sampling)) func(*shard, *engine.Step) {
		return func(_ *shard, step *engine.Step) {
			step.Want, step.Sampling = engine.WantSample, greedy()
			change(step.Sampling)
		}
	}
	nan := float32(math.NaN())
	return []badStep{
		{"start_too_small", engine.CacheMismatch, func(_ *shard, step *engine.Step) { step.Start = 2 }},
		{"start_too_great", engine.CacheMismatch, func(_ *shard, step *engine.Step) { step.Start = 4 }},
		{"no_tokens", engine.Malformed, func(_ *shard, step *engine.Step) { step.Tokens = nil }},
		{"overflow", engine.ContextOverflow, func(sh *shard, step *engine.Step) { step.Tokens = sh.tokens(1, 14) }},
		{"token_out_of_range", engine.TokenOutOfRange, func(sh *shard, step *engine.Step) { step.Tokens[1] = engine.TokenID(sh.info.Vocab) }},
		{"token_greatest", engine.TokenOutOfRange, func(_ *shard, step *engine.Step) { step.Tokens[0] = math.MaxUint32 }},
		{"boundary_at_the_head", engine.Malformed, func(_ *shard, step *engine.Step) {
			step.Boundary = engine.Rows{N: 2, Width: 1, Data: make([]byte, 8)}
		}},
		{"want_unknown", engine.Malformed, func(_ *shard, step *engine.Step) { step.Want = engine.WantSample + 1 }},
		{"sample_without_sampling", engine.Malformed, func(_ *shard, step *engine.Step) { step.Want = engine.WantSample }},
		{"sampling_without_sample", engine.Malformed, func(_ *shard, step *engine.Step) { step.Sampling = greedy() }},
		{"temperature_negative", engine.Malformed, sampling(func(p *engine.Sampling) { p.Temperature = -1 })},
		{"temperature_nan", engine.Malformed, sampling(func(p *engine.Sampling) { p.Temperature = nan })},
		{"top_p_0", engine.Malformed, sampling(func(p *engine.Sampling) { p.TopP = 0 })},
		{"top_p_over_1", engine.Malformed, sampling(func(p *engine.Sampling) { p.TopP = 1.5 })},
		{"min_p_over_1", engine.Malformed, sampling(func(p *engine.Sampling) { p.MinP = 1.5 })},
		{"typical_over_1", engine.Malformed, sampling(func(p *engine.Sampling) { p.Typical = 1.5 })},
		{"typical_nan", engine.Malformed, sampling(func(p *engine.Sampling) { p.Typical = nan })},
		{"repeat_penalty_0", engine.Malformed, sampling(func(p *engine.Sampling) { p.RepeatPenalty = 0 })},
		{"frequency_penalty_over_2", engine.Malformed, sampling(func(p *engine.Sampling) { p.FrequencyPenalty = 2.5 })},
		{"presence_penalty_under_minus_2", engine.Malformed, sampling(func(p *engine.Sampling) { p.PresencePenalty = -2.5 })},
		{"logprobs_21", engine.Malformed, sampling(func(p *engine.Sampling) { p.Logprobs = 21 })},
		{"bias_nan", engine.Malformed, sampling(func(p *engine.Sampling) { p.LogitBias = []engine.LogitBias{{Token: 1, Bias: nan}} })},
		{"bias_of_no_token", engine.TokenOutOfRange, func(sh *shard, step *engine.Step) {
			step.Want, step.Sampling = engine.WantSample, greedy()
			step.Sampling.LogitBias = []engine.LogitBias{{Token: engine.TokenID(sh.info.Vocab), Bias: 1}}
		}},
	}
}

// badBoundary spoils a good boundary of two rows.
type badBoundary struct {
	name  string
	code  engine.Code
	spoil func(*engine.Rows)
}

func badBoundaries() []badBoundary {
	put := func(value float64) func(*engine.Rows) {
		return func(b *engine.Rows) {
			bits := math.Float32bits(float32(value))
			copy(b.Data[len(b.Data)-4:], []byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)})
		}
	}
	return []badBoundary{
		{"missing", engine.Malformed, func(b *engine.Rows) { *b = engine.Rows{} }},
		{"too_few_rows", engine.Malformed, func(b *engine.Rows) { b.N, b.Data = 1, b.Data[:4*b.Width] }},
		{"too_many_rows", engine.Malformed, func(b *engine.Rows) { b.N, b.Data = 3, append(b.Data, make([]byte, 4*b.Width)...) }},
		{"too_wide", engine.Malformed, func(b *engine.Rows) { b.Width, b.Data = b.Width+1, append(b.Data, make([]byte, 8)...) }},
		{"bytes_missing", engine.Malformed, func(b *engine.Rows) { b.Data = b.Data[:len(b.Data)-1] }},
		{"nan", engine.NumericFault, put(math.NaN())},
		{"inf", engine.NumericFault, put(math.Inf(-1))},
	}
}

// reservedCases: fields that exist in the types and that nobody may use yet.
func (s suite) reservedCases() []testCase {
	refused := func(spoil func(*engine.Step)) func(t *testing.T) {
		return func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			step := sh.step(session, 0, sh.tokens(1, 2), engine.WantNone)
			spoil(&step)
			sh.refused(t, step, engine.UnsupportedFeature, 0)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 2), engine.WantNone))
		}
	}
	return []testCase{
		{"multi_token_prediction", refused(func(step *engine.Step) { step.MultiToken = &engine.MultiTokenPrediction{MaxDraft: 1} })},
		{"auxiliary_state", refused(func(step *engine.Step) { step.Auxiliary = []engine.AuxiliaryState{{Name: "state"}} })},
	}
}
