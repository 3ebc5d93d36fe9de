//go:build llama && cgo

package llama

import (
	"math"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// checkBatch finds what refuses a batch as a whole. The caller holds the turn.
func (e *shardEngine) checkBatch(batch []engine.Step) error {
	rows := 0
	for i := range batch {
		for k := range i {
			if batch[k].Session == batch[i].Session {
				return engine.Errorf(engine.Malformed, "session %s stands twice in one batch; give it one step a batch", batch[i].Session)
			}
		}
		rows += len(batch[i].Tokens)
	}
	switch {
	case len(batch) == 0:
		return engine.Errorf(engine.Malformed, "the batch is empty; give it a step")
	case rows > int(e.request.BatchTokens):
		return engine.Errorf(engine.Malformed, "the batch has %d rows and the limit is %d; cut it", rows, e.request.BatchTokens)
	}
	return nil
}

// checkStep finds what refuses one step. The caller holds the turn.
func (e *shardEngine) checkStep(step *engine.Step) error {
	s, open := e.sessions[step.Session]
	switch {
	case !open:
		return unknown(step.Session)
	case step.MultiToken != nil:
		return engine.Errorf(engine.UnsupportedFeature, "multi-token prediction is reserved; leave it out")
	case len(step.Auxiliary) > 0:
		return engine.Errorf(engine.UnsupportedFeature, "auxiliary state is reserved; leave it out")
	case len(step.Tokens) == 0:
		return engine.Errorf(engine.Malformed, "the step of session %s has no tokens", step.Session)
	case step.Start != s.length():
		return engine.Errorf(engine.CacheMismatch, "the step of session %s starts at %d and its cache holds %d tokens", step.Session, step.Start, s.length())
	case uint64(step.Start)+uint64(len(step.Tokens)) > uint64(s.reserved):
		return engine.Errorf(engine.ContextOverflow, "session %s holds %d of %d tokens; %d more do not fit", step.Session, step.Start, s.reserved, len(step.Tokens))
	}
	for _, token := range step.Tokens {
		if err := checkToken(token, e.native.info.vocab); err != nil {
			return err
		}
	}
	if err := e.checkBoundary(step); err != nil {
		return err
	}
	return e.checkWant(s, step)
}

func (e *shardEngine) checkBoundary(step *engine.Step) error {
	b, width := step.Boundary, e.native.info.boundaryIn
	if width == 0 {
		if b.N != 0 || b.Width != 0 || len(b.Data) != 0 {
			return engine.Errorf(engine.Malformed, "the head takes no boundary; leave it out")
		}
		return nil
	}
	if int(b.N) != len(step.Tokens) || b.Width != width || uint64(len(b.Data)) != 4*uint64(b.N)*uint64(b.Width) {
		return engine.Errorf(engine.Malformed, "the boundary has %d × %d values in %d bytes; it must be %d × %d float32",
			b.N, b.Width, len(b.Data), len(step.Tokens), width)
	}
	if !allFinite(b.Data) {
		return engine.Errorf(engine.NumericFault, "the boundary of session %s holds NaN or Inf", step.Session)
	}
	return nil
}

func (e *shardEngine) checkWant(s *session, step *engine.Step) error {
	switch {
	case step.Want < engine.WantNone || step.Want > engine.WantSample:
		return engine.Errorf(engine.Malformed, "the step wants %d; there is no such output", step.Want)
	case (step.Want == engine.WantSample) != (step.Sampling != nil):
		return engine.Errorf(engine.Malformed, "sampling goes with WantSample and with nothing else")
	case step.Sampling == nil:
		return nil
	}
	if err := checkSampling(step.Sampling, e.native.info.vocab); err != nil {
		return err
	}
	return e.prepareGrammar(s, step)
}

// prepareGrammar compiles the step's grammar, if the session does not hold it from an earlier step, and takes it to the end
// of the step, so that nothing is evaluated for an answer that cannot go on.
func (e *shardEngine) prepareGrammar(s *session, step *engine.Step) error {
	source, start := step.Sampling.Grammar, step.Sampling.AnswerStart
	if source == nil || e.native.info.boundaryOut > 0 {
		return nil
	}
	tokens := append(s.tokens, step.Tokens...) // what is behind the session's end is nobody's
	if uint64(start) > uint64(len(tokens)) {
		return engine.Errorf(engine.Malformed, "the answer starts at %d and session %s has %d tokens with this step", start, step.Session, len(tokens))
	}
	if !s.grammar.is(source) {
		compiled, err := e.native.compile(source, e.native.message[:])
		if err != nil {
			return err
		}
		s.grammar.free()
		s.grammar = compiled
	}
	return s.grammar.follow(tokens[start:], e.native.message[:])
}

// maxLogprobs is the most alternatives that a choice reports.
const maxLogprobs = 20

// within says whether lo ≤ v ≤ hi; NaN is nowhere.
func within(v, lo, hi float32) bool { return v >= lo && v <= hi }

// checkSampling says what is wrong with values for a vocabulary of vocab tokens.
func checkSampling(s *engine.Sampling, vocab uint32) error {
	checks := [...]struct {
		ok   bool
		what string
	}{
		{within(s.Temperature, 0, math.MaxFloat32), "temperature must be 0 or more"},
		{within(s.TopP, 0, 1) && s.TopP > 0, "top_p must be more than 0 and at most 1"},
		{within(s.MinP, 0, 1), "min_p must be 0 to 1"},
		{within(s.Typical, 0, 1), "typical must be 0 to 1"},
		{within(s.RepeatPenalty, 0, math.MaxFloat32) && s.RepeatPenalty > 0, "repeat_penalty must be more than 0"},
		{within(s.FrequencyPenalty, -2, 2), "frequency_penalty must be −2 to 2"},
		{within(s.PresencePenalty, -2, 2), "presence_penalty must be −2 to 2"},
		{s.Logprobs <= maxLogprobs, "logprobs must be 0 to 20"},
		{len(s.LogitBias) <= maxBiases, "logit_bias must have 1024 entries at most"},
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
	return nil
}
