//go:build unix

package child

import (
	"bytes"
	"context"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child/internal/wire"
)

// Step writes the batch into shared memory, rings, and waits on this thread until the child rings back.
func (e *Engine) Step(ctx context.Context, batch []engine.Step) ([]engine.StepResult, error) {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	number, err := e.begin(batch)
	if err != nil {
		return nil, err
	}
	defer e.end()
	told, err := e.giveBatch(batch, ctx.Err() != nil)
	if err != nil {
		return nil, e.broken(err)
	}
	told.batch = number
	if err := e.process.bell.ring(told); err != nil {
		return nil, e.lost(err)
	}
	stop := watch(ctx, e.patience, func() { e.send("CancelBatch", wire.Call{Number: number}) }, e.process.kill)
	answer, err := e.process.bell.wait()
	stop()
	if err != nil {
		return nil, e.lost(err)
	}
	results, failure, err := e.takeOutcome(answer)
	if err != nil {
		return nil, e.broken(err)
	}
	return results, failure
}

// begin marks the sessions of a batch as running.
func (e *Engine) begin(batch []engine.Step) (uint64, error) {
	if err := e.refusal(); err != nil {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.batch++
	e.running = make(map[engine.SessionID]bool, len(batch))
	for _, s := range batch {
		e.running[s.Session] = false
	}
	return e.batch, nil
}

func (e *Engine) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = nil
}

func (e *Engine) giveBatch(steps []engine.Step, ended bool) (ring, error) {
	batch := wire.Batch{Steps: make([]engine.Step, len(steps)), Rows: make([]int, len(steps)), Ended: ended}
	rows := make([][]byte, len(steps))
	for i, s := range steps {
		rows[i], batch.Rows[i] = s.Boundary.Data, len(s.Boundary.Data)
		s.Boundary.Data = nil
		batch.Steps[i] = s
	}
	header, err := e.speaks.Encode(batch)
	if err != nil {
		return ring{}, err
	}
	return write(e.process.requests, header, rows)
}

// takeOutcome copies results out of shared memory, which the next batch is written to.
func (e *Engine) takeOutcome(told ring) (results []engine.StepResult, failure, err error) {
	header, rows, err := read(e.process.replies, told)
	if err != nil {
		return nil, nil, err
	}
	var outcome wire.Outcome
	if err := e.hears.Decode(header, &outcome); err != nil {
		return nil, nil, err
	}
	e.learn(outcome.Counts, outcome.Failure)
	if outcome.Failure != nil {
		return nil, outcome.Failure.Err(), nil
	}
	results = make([]engine.StepResult, len(outcome.Results))
	for i, r := range outcome.Results {
		results[i] = engine.StepResult{Err: r.Failure.Err(), Cache: r.Cache, Sample: r.Sample, Compute: r.Compute}
		if results[i].Boundary, err = takeRows(rows, r.Boundary); err != nil {
			return nil, nil, err
		}
		if results[i].Logits, err = takeRows(rows, r.Logits); err != nil {
			return nil, nil, err
		}
	}
	return results, nil, nil
}

func takeRows(from *rowReader, s wire.Shape) (engine.Rows, error) {
	data, err := from.next(s.Bytes())
	if err != nil {
		return engine.Rows{}, err
	}
	return engine.Rows{N: s.N, Width: s.Width, Data: bytes.Clone(data)}, nil
}

// broken is what a batch means that one side did not understand: nothing that follows could be trusted.
func (e *Engine) broken(cause error) error {
	e.process.kill()
	return e.lost(cause)
}
