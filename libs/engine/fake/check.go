package fake

import (
	"math"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// checkBatch finds what refuses a batch as a whole.
func (e *fakeEngine) checkBatch(batch []engine.Step) error {
	e.mu.Lock()
	limit := e.request.BatchTokens
	e.mu.Unlock()
	rows := 0
	seen := make(map[engine.SessionID]bool, len(batch))
	for i := range batch {
		if seen[batch[i].Session] {
			return engine.Errorf(engine.Malformed, "session %s stands twice in one batch; give it one step a batch", batch[i].Session)
		}
		seen[batch[i].Session] = true
		rows += len(batch[i].Tokens)
	}
	switch {
	case len(batch) == 0:
		return engine.Errorf(engine.Malformed, "the batch is empty; give it a step")
	case rows > int(limit):
		return engine.Errorf(engine.Malformed, "the batch has %d rows and the limit is %d; cut it", rows, limit)
	}
	return nil
}

// checkStep finds what refuses one step. The caller holds mu and the turn.
func (e *fakeEngine) checkStep(step *engine.Step) error {
	c, open := e.sessions[step.Session]
	switch {
	case !open:
		return unknown(step.Session)
	case step.MultiToken != nil:
		return engine.Errorf(engine.UnsupportedFeature, "multi-token prediction is reserved; leave it out")
	case len(step.Auxiliary) > 0:
		return engine.Errorf(engine.UnsupportedFeature, "auxiliary state is reserved; leave it out")
	case len(step.Tokens) == 0:
		return engine.Errorf(engine.Malformed, "the step of session %s has no tokens", step.Session)
	case step.Start != c.length():
		return engine.Errorf(engine.CacheMismatch, "the step of session %s starts at %d and its cache holds %d tokens", step.Session, step.Start, c.length())
	case uint64(step.Start)+uint64(len(step.Tokens)) > uint64(c.reserved):
		return engine.Errorf(engine.ContextOverflow, "session %s holds %d of %d tokens; %d more do not fit", step.Session, step.Start, c.reserved, len(step.Tokens))
	}
	for _, token := range step.Tokens {
		if uint32(token) >= e.options.Vocab {
			return outOfRange(token, e.options.Vocab)
		}
	}
	if err := e.checkBoundary(step); err != nil {
		return err
	}
	return e.checkWant(step)
}

func (e *fakeEngine) checkBoundary(step *engine.Step) error {
	b := step.Boundary
	if e.model.head() {
		if b.N != 0 || b.Width != 0 || len(b.Data) != 0 {
			return engine.Errorf(engine.Malformed, "the head takes no boundary; leave it out")
		}
		return nil
	}
	if int(b.N) != len(step.Tokens) || b.Width != e.options.Width || uint64(len(b.Data)) != 4*uint64(b.N)*uint64(b.Width) {
		return engine.Errorf(engine.Malformed, "the boundary has %d × %d values in %d bytes; it must be %d × %d float32",
			b.N, b.Width, len(b.Data), len(step.Tokens), e.options.Width)
	}
	return nil
}

func (e *fakeEngine) checkWant(step *engine.Step) error {
	switch {
	case step.Want < engine.WantNone || step.Want > engine.WantSample:
		return engine.Errorf(engine.Malformed, "the step wants %d; there is no such output", step.Want)
	case (step.Want == engine.WantSample) != (step.Sampling != nil):
		return engine.Errorf(engine.Malformed, "sampling goes with WantSample and with nothing else")
	case step.Sampling == nil:
		return nil
	}
	return checkSampling(step.Sampling, e.options.Vocab)
}

// within says whether lo ≤ v ≤ hi; NaN is nowhere.
func within(v, lo, hi float32) bool { return v >= lo && v <= hi }

func checkSampling(s *engine.Sampling, vocab uint32) error {
	finite := float32(math.MaxFloat32)
	checks := []struct {
		ok   bool
		what string
	}{
		{within(s.Temperature, 0, finite), "temperature must be 0 or more"},
		{within(s.TopP, 0, 1) && s.TopP > 0, "top_p must be more than 0 and at most 1"},
		{within(s.MinP, 0, 1), "min_p must be 0 to 1"},
		{within(s.Typical, 0, 1), "typical must be 0 to 1"},
		{within(s.RepeatPenalty, 0, finite) && s.RepeatPenalty > 0, "repeat_penalty must be more than 0"},
		{within(s.FrequencyPenalty, -2, 2), "frequency_penalty must be −2 to 2"},
		{within(s.PresencePenalty, -2, 2), "presence_penalty must be −2 to 2"},
		{s.Logprobs <= 20, "logprobs must be 0 to 20"},
		{len(s.LogitBias) <= 1024, "logit_bias must have 1024 entries at most"},
	}
	for _, check := range checks {
		if !check.ok {
			return engine.Errorf(engine.Malformed, "%s", check.what)
		}
	}
	for _, bias := range s.LogitBias {
		if uint32(bias.Token) >= vocab {
			return outOfRange(bias.Token, vocab)
		}
		if math.IsNaN(float64(bias.Bias)) || bias.Bias > finite {
			return engine.Errorf(engine.Malformed, "the bias of token %d must be finite or −Inf", bias.Token)
		}
	}
	if s.Grammar != nil {
		return noGrammars()
	}
	return nil
}

func noGrammars() error {
	return engine.Errorf(engine.UnsupportedFeature, "the fake engine compiles no grammars; leave the grammar out")
}
