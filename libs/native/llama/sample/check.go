package sample

import (
	"math"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// MaxLogprobs is the most alternatives that a choice reports.
const MaxLogprobs = 20

// within says whether lo ≤ v ≤ hi; NaN is nowhere.
func within(v, lo, hi float32) bool { return v >= lo && v <= hi }

// Check says what is wrong with s for a vocabulary of vocab tokens. Errors: MALFORMED, TOKEN_OUT_OF_RANGE,
// UNSUPPORTED_FEATURE for a grammar.
func Check(s *engine.Sampling, vocab uint32) error {
	checks := [...]struct {
		ok   bool
		what string
	}{
		{within(s.Temperature, 0, math.MaxFloat32), "temperature must be 0 or more"},
		{within(s.TopP, 0, 1) && s.TopP > 0, "top_p must be more than 0 and at most 1"},
		{within(s.MinP, 0, 1), "min_p must be 0 to 1"},
		{within(s.RepeatPenalty, 0, math.MaxFloat32) && s.RepeatPenalty > 0, "repeat_penalty must be more than 0"},
		{within(s.FrequencyPenalty, -2, 2), "frequency_penalty must be −2 to 2"},
		{within(s.PresencePenalty, -2, 2), "presence_penalty must be −2 to 2"},
		{s.Logprobs <= MaxLogprobs, "logprobs must be 0 to 20"},
	}
	for _, check := range checks {
		if !check.ok {
			return engine.Errorf(engine.Malformed, "%s", check.what)
		}
	}
	for _, bias := range s.LogitBias {
		if uint32(bias.Token) >= vocab {
			return engine.Errorf(engine.TokenOutOfRange, "the bias names token %d and the vocabulary ends before %d", bias.Token, vocab)
		}
		if math.IsNaN(float64(bias.Bias)) || bias.Bias > math.MaxFloat32 {
			return engine.Errorf(engine.Malformed, "the bias of token %d must be finite or −Inf", bias.Token)
		}
	}
	if s.Grammar != nil {
		return engine.Errorf(engine.UnsupportedFeature, "this engine compiles no grammars; leave the grammar out")
	}
	return nil
}
