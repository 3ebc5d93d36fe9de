package enginetest

import (
	"fmt"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// parityCases: a chain of shards over any cut gives what the whole model gives, bit for bit.
func (s suite) parityCases() []testCase {
	return []testCase{
		{"two_shards_every_cut", func(t *testing.T) {
			want, n := s.reference(t)
			for _, cut := range s.cuts(n) {
				t.Run(fmt.Sprint(cut), func(t *testing.T) { s.compare(t, want, s.loadChain(t, n, cut)) })
			}
		}},
		{"three_shards_every_pair_of_cuts", func(t *testing.T) {
			want, n := s.reference(t)
			cuts := s.cuts(n)
			for i, a := range cuts {
				for _, b := range cuts[i+1:] {
					t.Run(fmt.Sprintf("%d_%d", a, b), func(t *testing.T) { s.compare(t, want, s.loadChain(t, n, a, b)) })
				}
			}
		}},
		{"a_shard_for_every_layer", func(t *testing.T) {
			want, n := s.reference(t)
			s.compare(t, want, s.loadChain(t, n, s.cuts(n)...))
		}},
		{"greedy_text", func(t *testing.T) {
			whole := chain{s.load(t, engine.LayerRange{})}
			want := whole.generate(t, 1, greedy(), 12)
			n := whole[0].info.NLayer
			for _, cut := range s.cuts(n) {
				if got := s.loadChain(t, n, cut).generate(t, 1, greedy(), 12); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("cut at %d: tokens %v, want %v", cut, got, want)
				}
			}
		}},
		{"seeded_text", func(t *testing.T) {
			sampling := greedy()
			sampling.Temperature, sampling.Seed, sampling.TopK, sampling.TopP = 1, 42, 12, 0.95
			whole := chain{s.load(t, engine.LayerRange{})}
			want := whole.generate(t, 1, sampling, 12)
			n := whole[0].info.NLayer
			if got := s.loadChain(t, n, s.cuts(n)[0]).generate(t, 1, sampling, 12); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("tokens %v, want %v", got, want)
			}
		}},
		{"after_going_back", func(t *testing.T) {
			whole := chain{s.load(t, engine.LayerRange{})}
			n := whole[0].info.NLayer
			want, got := whole.thereAndBack(t), s.loadChain(t, n, s.cuts(n)[0]).thereAndBack(t)
			sameBits(t, "logits after going back", got, want)
		}},
	}
}

// reference is the traces of two interleaved sessions on the whole model.
func (s suite) reference(t *testing.T) (rows []engine.Rows, nLayer uint32) {
	t.Helper()
	whole := s.load(t, engine.LayerRange{})
	return chain{whole}.interleaved(t), whole.info.NLayer
}

func (s suite) compare(t *testing.T, want []engine.Rows, c chain) {
	t.Helper()
	for i, rows := range c.interleaved(t) {
		sameBits(t, fmt.Sprintf("logits of step %d", i), rows, want[i])
	}
}

// interleaved runs the plan on two sessions in turn.
func (c chain) interleaved(t *testing.T) []engine.Rows {
	t.Helper()
	a, b := c.open(t, 1, 24), c.open(t, 2, 24)
	var atA, atB engine.Pos
	var rows []engine.Rows
	for i := range plan {
		rows = append(rows, c.next(t, a, &atA, i), c.next(t, b, &atB, i))
	}
	return rows
}

// generate prefills five tokens and samples n.
func (c chain) generate(t *testing.T, session byte, sampling *engine.Sampling, n int) []engine.TokenID {
	t.Helper()
	id := c.open(t, session, uint32(5+n))
	var out []engine.TokenID
	var at engine.Pos
	tokens := c[0].tokens(3, 5)
	for range n {
		result := c.run(t, engine.Step{Session: id, Start: at, Tokens: tokens, Want: engine.WantSample, Sampling: sampling})
		at = result.Cache.Length
		tokens = []engine.TokenID{result.Sample.Token}
		out = append(out, result.Sample.Token)
	}
	return out
}

// thereAndBack prefills, goes on, goes back to nothing and prefills again.
func (c chain) thereAndBack(t *testing.T) engine.Rows {
	t.Helper()
	id := c.open(t, 1, 24)
	c.run(t, c[0].step(id, 0, c[0].tokens(1, 6), engine.WantNone))
	c.run(t, c[0].step(id, 6, c[0].tokens(2, 2), engine.WantNone))
	for _, sh := range c {
		if state, err := sh.Truncate(t.Context(), id, 0); err != nil || state.Length != 0 {
			t.Fatalf("Truncate to 0: %v, %+v", err, state)
		}
	}
	return c.run(t, c[0].step(id, 0, c[0].tokens(3, 5), engine.WantLogitsAll)).Logits
}

// isolationCases: no session touches another's cache.
func (s suite) isolationCases() []testCase {
	return []testCase{
		{"interleaved_equals_alone", func(t *testing.T) {
			// Each native call holds one session, so the bits are the same.
			both := chain{s.load(t, engine.LayerRange{})}.interleaved(t)
			for i, n := range []byte{1, 2} {
				for j, rows := range s.load(t, engine.LayerRange{}).trace(t, n) {
					sameBits(t, fmt.Sprintf("session %d, step %d", n, j), both[2*j+i], rows)
				}
			}
		}},
		{"batched_equals_alone", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			a, b := sh.open(t, 1, 24), sh.open(t, 2, 24)
			sh.one(t, sh.step(a, 0, sh.tokens(1, 6), engine.WantNone))
			results := sh.batch(t, sh.step(a, 6, sh.tokens(2, 1), engine.WantLogitsLast), sh.step(b, 0, sh.tokens(3, 6), engine.WantLogitsLast))
			other := s.load(t, engine.LayerRange{})
			a, b = other.open(t, 1, 24), other.open(t, 2, 24)
			other.one(t, other.step(a, 0, sh.tokens(1, 6), engine.WantNone))
			want := []engine.StepResult{
				other.one(t, other.step(a, 6, sh.tokens(2, 1), engine.WantLogitsLast)),
				other.one(t, other.step(b, 0, sh.tokens(3, 6), engine.WantLogitsLast)),
			}
			for i := range results {
				if results[i].Err != nil {
					t.Fatal(results[i].Err)
				}
				s.near(t, "logits in a mixed batch", floats(results[i].Logits), floats(want[i].Logits))
			}
		}},
		{"release_and_truncate_of_another", func(t *testing.T) {
			want := s.load(t, engine.LayerRange{}).trace(t, 1)
			c := chain{s.load(t, engine.LayerRange{})}
			session := c.open(t, 1, 24)
			var at engine.Pos
			for i := range plan {
				other := c.open(t, 9, 24)
				c.run(t, c[0].step(other, 0, c[0].tokens(77, 5), engine.WantNone))
				if _, err := c[0].Truncate(t.Context(), other, 0); err != nil {
					t.Fatal(err)
				}
				sameBits(t, fmt.Sprintf("step %d", i), c.next(t, session, &at, i), want[i])
				if err := c[0].Release(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
		}},
	}
}
