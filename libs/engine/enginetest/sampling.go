package enginetest

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// position is a prompt of which the logits are known.
type position struct {
	*shard
	prompt []engine.TokenID
	logits []float32
}

func (s suite) position(t *testing.T, seed uint32) *position {
	t.Helper()
	sh := s.load(t, engine.LayerRange{})
	p := &position{shard: sh, prompt: sh.tokens(seed, 6)}
	session := sh.open(t, 0, 32)
	p.logits = floats(sh.one(t, sh.step(session, 0, p.prompt, engine.WantLogitsLast)).Logits)
	return p
}

// surprise is a position whose most probable token is not in the prompt.
func (s suite) surprise(t *testing.T) *position {
	t.Helper()
	for seed := range uint32(64) {
		if p := s.position(t, seed); !slices.Contains(p.prompt, p.best()[0]) {
			return p
		}
	}
	t.Fatal("after each of 64 prompts the most probable token was one of the prompt")
	return nil
}

// sample chooses the token after the prompt, in a session of its own.
func (p *position) sample(t *testing.T, change func(*engine.Sampling)) *engine.Sample {
	t.Helper()
	sampling := greedy()
	if change != nil {
		change(sampling)
	}
	session := p.open(t, 1, 32)
	step := p.step(session, 0, p.prompt, engine.WantSample)
	step.Sampling = sampling
	result := p.one(t, step)
	if result.Sample == nil || uint32(result.Sample.Token) >= p.info.Vocab {
		t.Fatalf("the sample is %+v", result.Sample)
	}
	if err := p.Release(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	return result.Sample
}

// best is the ids from the most probable on.
func (p *position) best() []engine.TokenID {
	ids := make([]engine.TokenID, len(p.logits))
	for i := range ids {
		ids[i] = engine.TokenID(i)
	}
	slices.SortStableFunc(ids, func(a, b engine.TokenID) int {
		switch {
		case p.logits[a] > p.logits[b]:
			return -1
		case p.logits[a] < p.logits[b]:
			return 1
		}
		return 0
	})
	return ids
}

// mostTypical is the token whose surprise is nearest to the expected one.
func (p *position) mostTypical() engine.TokenID {
	var entropy float64
	for id := range p.logits {
		surprise := -p.logprob(engine.TokenID(id))
		entropy += math.Exp(-surprise) * surprise
	}
	var best engine.TokenID
	off := math.Inf(1)
	for id := range p.logits {
		if d := math.Abs(-p.logprob(engine.TokenID(id)) - entropy); d < off {
			best, off = engine.TokenID(id), d
		}
	}
	return best
}

func (p *position) logprob(id engine.TokenID) float64 {
	top := float64(slices.Max(p.logits))
	var sum float64
	for _, logit := range p.logits {
		sum += math.Exp(float64(logit) - top)
	}
	return float64(p.logits[id]) - top - math.Log(sum)
}

func (s suite) samplingCases() []testCase {
	return []testCase{
		{"greedy_is_the_most_probable", func(t *testing.T) {
			for seed := range uint32(4) {
				p := s.position(t, seed)
				if got := p.sample(t, nil).Token; got != p.best()[0] {
					t.Errorf("prompt %d: token %d, want %d", seed, got, p.best()[0])
				}
			}
		}},
		{"greedy_takes_the_lowest_id_of_equals", func(t *testing.T) {
			// Two tokens are raised to the same great logit; in float32 they are equal.
			p := s.position(t, 1)
			low, high := engine.TokenID(5), engine.TokenID(p.info.Vocab-1)
			got := p.sample(t, func(x *engine.Sampling) {
				x.LogitBias = []engine.LogitBias{{Token: high, Bias: 1e9}, {Token: low, Bias: 1e9}}
			})
			if got.Token != low {
				t.Errorf("token %d, want %d, the lowest of two equals", got.Token, low)
			}
		}},
		{"top_k_1_is_greedy", s.isGreedy(func(x *engine.Sampling) { x.Temperature, x.TopK = 1.5, 1 })},
		{"top_p_tiny_is_greedy", s.isGreedy(func(x *engine.Sampling) { x.Temperature, x.TopP = 1.5, 1e-6 })},
		{"min_p_1_is_greedy", s.isGreedy(func(x *engine.Sampling) { x.Temperature, x.MinP = 1.5, 1 })},
		{"typical_tiny_is_one_token", func(t *testing.T) {
			p := s.position(t, 1)
			tiny := func(seed uint64) func(*engine.Sampling) {
				return func(x *engine.Sampling) { x.Temperature, x.Typical, x.Seed = 20, 1e-6, seed }
			}
			first := p.sample(t, tiny(0)).Token
			if want := p.mostTypical(); first != want {
				t.Errorf("token %d, want %d, the most typical", first, want)
			}
			for seed := range uint64(8) {
				if got := p.sample(t, tiny(seed)).Token; got != first {
					t.Errorf("seed %d: token %d, want %d", seed, got, first)
				}
			}
		}},
		{"typical_1_is_off", func(t *testing.T) {
			p := s.position(t, 1)
			for seed := range uint64(8) {
				hot := func(typical float32) engine.TokenID {
					return p.sample(t, func(x *engine.Sampling) { x.Temperature, x.Typical, x.Seed = 20, typical, seed }).Token
				}
				if off, one := hot(0), hot(1); off != one {
					t.Errorf("seed %d: token %d with 0 and %d with 1", seed, off, one)
				}
			}
		}},
		{"top_k_keeps_the_k_best", func(t *testing.T) {
			p := s.position(t, 1)
			allowed, seen := p.best()[:4], make(map[engine.TokenID]bool)
			for seed := range uint64(40) {
				got := p.sample(t, func(x *engine.Sampling) { x.Temperature, x.TopK, x.Seed = 50, 4, seed }).Token
				if !slices.Contains(allowed, got) {
					t.Fatalf("token %d is none of the 4 best %v", got, allowed)
				}
				seen[got] = true
			}
			if len(seen) < 2 {
				t.Error("40 seeds at a high temperature gave one token")
			}
		}},
		{"a_function_of_seed_tokens_and_position", s.pureSampling},
		{"bias_forces", func(t *testing.T) {
			p := s.position(t, 1)
			worst := p.best()[len(p.logits)-1]
			got := p.sample(t, func(x *engine.Sampling) { x.LogitBias = []engine.LogitBias{{Token: worst, Bias: 1e6}} })
			if got.Token != worst {
				t.Errorf("token %d, want %d", got.Token, worst)
			}
		}},
		{"bias_forbids", func(t *testing.T) {
			p := s.position(t, 1)
			best := p.best()
			got := p.sample(t, func(x *engine.Sampling) {
				x.LogitBias = []engine.LogitBias{{Token: best[0], Bias: float32(math.Inf(-1))}}
			})
			if got.Token != best[1] {
				t.Errorf("token %d, want the second best %d", got.Token, best[1])
			}
		}},
		{"presence_penalty_looks_back_on_the_window", s.penalty},
		{"logprob_and_alternatives", s.logprobs},
		{"bytes_are_those_of_detokenize", func(t *testing.T) {
			p := s.position(t, 1)
			got := p.sample(t, func(x *engine.Sampling) { x.Logprobs = 5 })
			p.checkBytes(t, got.Token, got.Bytes)
			for _, top := range got.Top {
				p.checkBytes(t, top.Token, top.Bytes)
			}
		}},
		{"end_of_generation_is_told", s.needs(EndOfGeneration, func(t *testing.T) {
			p, end := s.position(t, 1), *s.EndOfGeneration
			got := p.sample(t, func(x *engine.Sampling) { x.LogitBias = []engine.LogitBias{{Token: end, Bias: 1e6}} })
			if got.Token != end || !got.EndOfGeneration {
				t.Errorf("sample %+v, want the end of generation %d", got, end)
			}
			got = p.sample(t, func(x *engine.Sampling) { x.LogitBias = []engine.LogitBias{{Token: end, Bias: float32(math.Inf(-1))}} })
			if got.EndOfGeneration {
				t.Errorf("token %d is told to be an end of generation", got.Token)
			}
		})},
		{"the_sample_is_not_evaluated", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			result := sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantSample))
			if result.Cache.Length != 4 {
				t.Errorf("the cache has %d tokens after 4 and a sample", result.Cache.Length)
			}
		}},
	}
}

func (s suite) isGreedy(change func(*engine.Sampling)) func(*testing.T) {
	return func(t *testing.T) {
		p := s.position(t, 1)
		for seed := range uint64(8) {
			got := p.sample(t, func(x *engine.Sampling) { change(x); x.Seed = seed }).Token
			if got != p.best()[0] {
				t.Errorf("seed %d: token %d, want %d", seed, got, p.best()[0])
			}
		}
	}
}

// pureSampling: the same seed gives the same token whatever was sampled before, another seed another.
func (s suite) pureSampling(t *testing.T) {
	p, again := s.position(t, 1), s.position(t, 1)
	tokens := make(map[engine.TokenID]bool)
	var first []engine.TokenID
	hot := func(seed uint64) func(*engine.Sampling) {
		return func(x *engine.Sampling) { x.Temperature, x.Seed = 20, seed }
	}
	for seed := range uint64(16) {
		got := p.sample(t, hot(seed)).Token
		tokens[got] = true
		first = append(first, got)
	}
	if len(tokens) < 4 {
		t.Errorf("16 seeds at a high temperature gave %d tokens", len(tokens))
	}
	for seed := uint64(15); seed < 16; seed-- { // the other way round, on another engine
		if got := again.sample(t, hot(seed)).Token; got != first[seed] {
			t.Errorf("seed %d: token %d, and %d before", seed, got, first[seed])
		}
	}
	// The position counts too: one seed over a session does not draw the same place each time.
	session := p.open(t, 2, 32)
	places := make(map[engine.TokenID]bool)
	for at := range engine.Pos(12) {
		step := p.step(session, at, p.prompt[:1], engine.WantSample)
		step.Sampling.Temperature, step.Sampling.Seed = 1e6, 7 // all tokens alike: the token shows the draw
		places[p.one(t, step).Sample.Token] = true
	}
	if len(places) < 4 {
		t.Errorf("12 positions with one seed drew %d tokens", len(places))
	}
}

// penalty raises a token of the prompt just above the best one; a presence penalty of 2 takes it down again.
func (s suite) penalty(t *testing.T) {
	p := s.surprise(t)
	best := p.best()[0]
	seen := p.prompt[len(p.prompt)-1]
	bias := []engine.LogitBias{{Token: seen, Bias: p.logits[best] - p.logits[seen] + 1}}
	for _, c := range []struct {
		name    string
		penalty float32
		window  uint32
		want    engine.TokenID
	}{
		{"off", 0, 64, seen},
		{"on", 2, 64, best},
		{"on without a window", 2, 0, seen},
	} {
		got := p.sample(t, func(x *engine.Sampling) { x.LogitBias, x.PresencePenalty, x.PenaltyWindow = bias, c.penalty, c.window })
		if got.Token != c.want {
			t.Errorf("penalty %s: token %d, want %d", c.name, got.Token, c.want)
		}
	}
}

func (s suite) logprobs(t *testing.T) {
	const alternatives, tolerance = 5, 1e-3
	p := s.position(t, 1)
	best := p.best()
	got := p.sample(t, func(x *engine.Sampling) { x.Logprobs, x.WantLogprob = alternatives, true })
	if diff := math.Abs(float64(got.Logprob) - p.logprob(got.Token)); !(diff <= tolerance) {
		t.Errorf("logprob of token %d is %v, want %v", got.Token, got.Logprob, p.logprob(got.Token))
	}
	if len(got.Top) != alternatives {
		t.Fatalf("%d alternatives, want %d", len(got.Top), alternatives)
	}
	for i, top := range got.Top {
		if top.Token != best[i] && p.logits[top.Token] != p.logits[best[i]] {
			t.Errorf("alternative %d is token %d, want %d", i, top.Token, best[i])
		}
		if diff := math.Abs(float64(top.Logprob) - p.logprob(top.Token)); !(diff <= tolerance) {
			t.Errorf("logprob of alternative %d is %v, want %v", i, top.Logprob, p.logprob(top.Token))
		}
	}
	// A truncated distribution does not change what is reported.
	cut := p.sample(t, func(x *engine.Sampling) { x.Temperature, x.TopK, x.WantLogprob = 1, 1, true })
	if diff := math.Abs(float64(cut.Logprob) - p.logprob(cut.Token)); !(diff <= tolerance) {
		t.Errorf("logprob with top_k 1 is %v, want %v", cut.Logprob, p.logprob(cut.Token))
	}
	if len(cut.Top) != 0 {
		t.Errorf("%d alternatives that nobody asked for", len(cut.Top))
	}
}

func (p *position) checkBytes(t *testing.T, id engine.TokenID, got []byte) {
	t.Helper()
	want, err := p.text.Detokenize(t.Context(), []engine.TokenID{id}, false)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("token %d has the bytes %q, Detokenize says %q, %v", id, got, want, err)
	}
}
