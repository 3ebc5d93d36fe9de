//go:build llama && cgo

package llama

import (
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/llama/sample"
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
	return e.checkWant(step)
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

func (e *shardEngine) checkWant(step *engine.Step) error {
	switch {
	case step.Want < engine.WantNone || step.Want > engine.WantSample:
		return engine.Errorf(engine.Malformed, "the step wants %d; there is no such output", step.Want)
	case (step.Want == engine.WantSample) != (step.Sampling != nil):
		return engine.Errorf(engine.Malformed, "sampling goes with WantSample and with nothing else")
	case step.Sampling == nil:
		return nil
	}
	return sample.Check(step.Sampling, e.native.info.vocab)
}
