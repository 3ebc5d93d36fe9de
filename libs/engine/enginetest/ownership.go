package enginetest

import (
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// ownershipCases: an engine keeps no slice that it was given and touches no slice that it returned.
func (s suite) ownershipCases() []testCase {
	return []testCase{
		{"tokens_and_boundary_may_be_changed_after_the_call", func(t *testing.T) {
			n := s.load(t, engine.LayerRange{}).info.NLayer
			want, got := s.load(t, engine.LayerRange{First: s.cuts(n)[0]}), s.load(t, engine.LayerRange{First: s.cuts(n)[0]})
			a, b := want.open(t, 1, 16), got.open(t, 1, 16)
			want.one(t, want.step(a, 0, want.tokens(1, 5), engine.WantNone))
			step := got.step(b, 0, got.tokens(1, 5), engine.WantNone)
			got.one(t, step)
			clear(step.Tokens)
			clear(step.Boundary.Data)
			x := want.one(t, want.step(a, 5, want.tokens(2, 1), engine.WantLogitsLast))
			y := got.one(t, got.step(b, 5, got.tokens(2, 1), engine.WantLogitsLast))
			sameBits(t, "logits after the caller's slices changed", y.Logits, x.Logits)
		}},
		{"penalties_see_the_tokens_that_were_given", func(t *testing.T) {
			p := s.surprise(t)
			best, seen := p.best()[0], p.prompt[len(p.prompt)-1]
			session := p.open(t, 1, 32)
			prompt := slices.Clone(p.prompt)
			p.one(t, p.step(session, 0, prompt[:5], engine.WantNone))
			clear(prompt)
			step := p.step(session, 5, p.prompt[5:], engine.WantSample)
			step.Sampling.PresencePenalty, step.Sampling.PenaltyWindow = 2, 64
			step.Sampling.LogitBias = []engine.LogitBias{{Token: seen, Bias: p.logits[best] - p.logits[seen] + 1}}
			if got := p.one(t, step).Sample.Token; got != best {
				t.Errorf("token %d, want %d", got, best)
			}
		}},
		{"results_stay_as_they_were", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			n := sh.info.NLayer
			head := s.load(t, engine.LayerRange{End: s.cuts(n)[0]})
			a, b := sh.open(t, 1, 16), head.open(t, 1, 16)
			logits := sh.one(t, sh.step(a, 0, sh.tokens(1, 5), engine.WantLogitsAll))
			boundary := head.one(t, head.step(b, 0, head.tokens(1, 5), engine.WantNone))
			x, y := slices.Clone(logits.Logits.Data), slices.Clone(boundary.Boundary.Data)
			reach := slices.Clone(logits.Cache.Reach)
			sh.one(t, sh.step(a, 5, sh.tokens(2, 5), engine.WantLogitsAll))
			head.one(t, head.step(b, 5, head.tokens(2, 5), engine.WantNone))
			if !slices.Equal(x, logits.Logits.Data) || !slices.Equal(y, boundary.Boundary.Data) || !slices.Equal(reach, logits.Cache.Reach) {
				t.Error("a later step changed the result of an earlier one")
			}
		}},
		{"results_may_be_changed", func(t *testing.T) {
			want := s.load(t, engine.LayerRange{}).trace(t, 1)
			c := chain{s.load(t, engine.LayerRange{})}
			session, at := c.open(t, 1, 24), engine.Pos(0)
			for i := range plan {
				got := c.next(t, session, &at, i)
				sameBits(t, "logits after results were changed", got, want[i])
				clear(got.Data)
				info := c[0].Capabilities()
				info.Shard.Layers.End = 99
				clear(info.Features)
			}
			if c[0].Capabilities().Shard.Layers.End == 99 || c[0].Capabilities().Features[0].Name == "" {
				t.Error("a caller's change of Capabilities reached the engine")
			}
		}},
		{"the_request_may_be_changed", func(t *testing.T) {
			sh := fresh(t, s.Factory)
			request := s.request(engine.LayerRange{})
			info, err := sh.Load(t.Context(), request, nil)
			if err != nil {
				t.Fatal(err)
			}
			sh.info = info
			for i := range request.Paths {
				request.Paths[i] = "gone"
			}
			session := sh.open(t, 1, 16)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 5), engine.WantNone))
		}},
	}
}
