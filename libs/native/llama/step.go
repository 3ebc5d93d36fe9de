//go:build llama && cgo

package llama

import (
	"cmp"
	"context"
	"slices"
	"time"
	"unsafe"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// scratch is memory that every batch uses again.
type scratch struct {
	plan    []planned
	ids     []engine.SessionID
	steps   []stepDesc
	tokens  []engine.TokenID
	rows    []float32 // incoming boundaries
	outcome []uint32
}

// boundary is room for n values.
func (s *scratch) boundary(n int) []float32 {
	s.rows = slices.Grow(s.rows[:0], n)[:n]
	return s.rows
}

// planned is a step that goes into native code.
type planned struct {
	index   int // in the batch and the results
	session *session
	row     int    // its first in the native batch
	before  []byte // its session's state, where a window may lose what taking the step back needs
}

// Step evaluates a batch.
func (e *shardEngine) Step(ctx context.Context, batch []engine.Step) ([]engine.StepResult, error) {
	if err := e.check(stateLoaded); err != nil {
		return nil, err
	}
	if err := e.enter(ctx); err != nil {
		if ctx.Err() == nil {
			return nil, err
		}
		return e.allInterrupted(ctx, batch)
	}
	defer e.leave()
	if err := e.checkBatch(batch); err != nil {
		return nil, err
	}
	results := make([]engine.StepResult, len(batch))
	e.plan(batch, results)
	if len(e.scratch.plan) > 0 {
		if err := e.run(ctx, batch, results); err != nil {
			return nil, err
		}
	}
	for i := range batch {
		if s, open := e.sessions[batch[i].Session]; open {
			results[i].Cache = s.state()
		}
	}
	e.count(results)
	return results, nil
}

// allInterrupted is the outcome of a batch whose context ended before its turn came.
func (e *shardEngine) allInterrupted(ctx context.Context, batch []engine.Step) ([]engine.StepResult, error) {
	results := make([]engine.StepResult, len(batch))
	for i := range batch {
		results[i].Err = engine.Errorf(engine.Cancelled, "the step of session %s was cancelled: %w", batch[i].Session, context.Cause(ctx))
	}
	// Only who holds the turn knows the caches; whoever had it is about to give it back.
	e.turn <- struct{}{}
	defer e.leave()
	if err := e.check(stateLoaded); err != nil {
		return nil, err
	}
	if err := e.checkBatch(batch); err != nil {
		return nil, err
	}
	for i := range batch {
		if s, open := e.sessions[batch[i].Session]; open {
			results[i].Cache = s.state()
		}
	}
	e.count(results)
	return results, nil
}

// plan checks each step and lines up those that are right, by slot.
func (e *shardEngine) plan(batch []engine.Step, results []engine.StepResult) {
	w := &e.scratch
	w.plan = w.plan[:0]
	for i := range batch {
		if err := e.checkStep(&batch[i]); err != nil {
			results[i].Err = err
			continue
		}
		w.plan = append(w.plan, planned{index: i, session: e.sessions[batch[i].Session]})
	}
	slices.SortFunc(w.plan, func(a, b planned) int { return cmp.Compare(a.session.slot, b.session.slot) })
	w.ids, w.steps = w.ids[:0], w.steps[:0]
	row := 0
	for i := range w.plan {
		p := &w.plan[i]
		step := &batch[p.index]
		p.row = row
		row += len(step.Tokens)
		w.ids = append(w.ids, step.Session)
		w.steps = append(w.steps, describe(p.session.slot, step.Start, len(step.Tokens), step.Want))
	}
	w.outcome = append(w.outcome[:0], make([]uint32, len(w.plan))...)
}

// run takes the planned steps through native code and fills their results. An error is the loss of the engine.
func (e *shardEngine) run(ctx context.Context, batch []engine.Step, results []engine.StepResult) error {
	w := &e.scratch
	if err := e.remember(); err != nil {
		return e.lose(err)
	}
	tokens, boundary := e.gather(batch)
	generation := e.begin(w.ids)
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, func() { e.cancelAll(generation) })
	}
	if ctx.Err() != nil { // the function that waits for it may come late
		e.cancelAll(generation)
	}
	begin := time.Now()
	err := e.native.step(w.steps, tokens, boundary, w.outcome)
	took := time.Since(begin)
	stop()
	if ctx.Err() != nil {
		e.cancelAll(generation)
	}
	cancelled := e.end()
	e.drainLog(ctx)

	e.mu.Lock()
	e.metrics.Batches++
	e.metrics.Rows += uint64(len(tokens))
	e.metrics.Compute += took
	e.mu.Unlock()
	if code := engine.CodeOf(err); err != nil && code != engine.Cancelled && code != engine.EngineOutOfMemory {
		return e.lose(err)
	}
	for i, p := range w.plan {
		step, result := &batch[p.index], &results[p.index]
		result.Compute = took * time.Duration(len(step.Tokens)) / time.Duration(len(tokens))
		if lost := e.conclude(p, step, result, err, cancelled[i], w.outcome[i] != 0); lost != nil {
			return lost
		}
	}
	return nil
}

// remember keeps the state before each planned step that could not be taken back otherwise.
func (e *shardEngine) remember() (err error) {
	for i := range e.scratch.plan {
		if p := &e.scratch.plan[i]; e.native.info.window > 0 && p.session.length() > 0 && err == nil {
			p.before, err = e.native.mark(p.session.slot)
		}
	}
	return err
}

// gather lays the planned steps' tokens and boundaries one after the other. A single step's are taken as they lie.
func (e *shardEngine) gather(batch []engine.Step) (tokens []engine.TokenID, boundary []float32) {
	w := &e.scratch
	width := int(e.native.info.boundaryIn)
	if len(w.plan) == 1 {
		step := &batch[w.plan[0].index]
		tokens = step.Tokens
		data := unsafe.Pointer(unsafe.SliceData(step.Boundary.Data))
		if width > 0 && uintptr(data)%unsafe.Alignof(float32(0)) == 0 {
			return tokens, unsafe.Slice((*float32)(data), len(step.Boundary.Data)/4)
		}
	} else {
		w.tokens = w.tokens[:0]
		for _, p := range w.plan {
			w.tokens = append(w.tokens, batch[p.index].Tokens...)
		}
		tokens = w.tokens
	}
	if width == 0 {
		return tokens, nil
	}
	boundary = w.boundary(width * len(tokens))
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(boundary))), 4*len(boundary))
	for _, p := range w.plan {
		bytes = bytes[copy(bytes, batch[p.index].Boundary.Data):]
	}
	return tokens, boundary
}

// conclude makes the result of one step: failed is the error of the whole batch. An error is the loss of the engine.
func (e *shardEngine) conclude(p planned, step *engine.Step, result *engine.StepResult, failed error, cancelled, numeric bool) error {
	if numeric {
		p.session.poisoned = true
	}
	switch {
	case cancelled:
		result.Err = engine.Errorf(engine.Cancelled, "the step of session %s was cancelled", step.Session)
	case failed != nil:
		result.Err = failed
	case numeric:
		result.Err = engine.Errorf(engine.NumericFault, "the layers gave NaN or Inf for session %s", step.Session)
	default:
		p.session.tokens = append(p.session.tokens, step.Tokens...)
		if err := e.output(p, step, result); err != nil {
			p.session.tokens = p.session.tokens[:step.Start]
			result.Boundary, result.Logits, result.Sample = engine.Rows{}, engine.Rows{}, nil
			if engine.CodeOf(err) == engine.EngineFault {
				return e.lose(err)
			}
			result.Err = err
		}
	}
	if result.Err != nil && failed == nil && !numeric { // not undone by the shim
		return e.undo(p, step)
	}
	if err := e.measure(p.session); err != nil {
		return e.lose(err)
	}
	return nil
}

// undo takes back a step that native code has done. An error is the loss of the engine.
func (e *shardEngine) undo(p planned, step *engine.Step) error {
	err := e.measure(p.session)
	if err == nil && p.before != nil {
		err = e.native.returnTo(p.session.slot, step.Start, p.before)
	} else if err == nil {
		err = e.native.truncate(p.session.slot, step.Start)
	}
	if err == nil {
		err = e.measure(p.session)
	}
	if err != nil {
		return e.lose(err)
	}
	return nil
}

// output fills what a step asked for from the native batch.
func (e *shardEngine) output(p planned, step *engine.Step, result *engine.StepResult) error {
	rows := len(step.Tokens)
	if width := e.native.info.boundaryOut; width > 0 {
		data := make([]byte, 4*rows*int(width))
		result.Boundary = engine.Rows{N: uint32(rows), Width: width, Data: data}
		return e.native.boundary(p.row, rows, data)
	}
	switch step.Want {
	case engine.WantLogitsLast:
		return e.logits(p.row+rows-1, 1, &result.Logits)
	case engine.WantLogitsAll:
		return e.logits(p.row, rows, &result.Logits)
	case engine.WantSample:
		return e.sample(p, step, result)
	}
	return nil
}

func (e *shardEngine) logits(row, rows int, out *engine.Rows) error {
	vocab := int(e.native.info.vocab)
	*out = engine.Rows{N: uint32(rows), Width: uint32(vocab), Data: make([]byte, 4*rows*vocab)}
	for i := range rows {
		if err := e.native.logits(row+i, unsafe.Pointer(&out.Data[4*i*vocab])); err != nil {
			return err
		}
	}
	return nil
}

// sample chooses the token after the step.
func (e *shardEngine) sample(p planned, step *engine.Step, result *engine.StepResult) error {
	var g *grammar
	if step.Sampling.Grammar != nil {
		g = p.session.grammar
	}
	s, err := e.native.sample(p.row+len(step.Tokens)-1, p.session.tokens, step.Sampling, g)
	if err != nil {
		return err
	}
	s.EndOfGeneration = e.native.endsGeneration(s.Token)
	if s.Bytes, err = e.piece(s.Token); err != nil {
		return err
	}
	for i := range s.Top {
		if s.Top[i].Bytes, err = e.piece(s.Top[i].Token); err != nil {
			return err
		}
	}
	result.Sample = s
	return nil
}

// piece is the bytes of one token.
func (e *shardEngine) piece(token engine.TokenID) ([]byte, error) {
	e.scratch.tokens = append(e.scratch.tokens[:0], token)
	return e.native.bytes(e.scratch.tokens, false, e.native.message[:])
}

// count adds results to the metrics.
func (e *shardEngine) count(results []engine.StepResult) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range results {
		switch r := &results[i]; {
		case r.Err == nil && r.Sample != nil:
			e.metrics.Sampled++
		case r.Err == nil:
		case engine.CodeOf(r.Err) == engine.Cancelled:
			e.metrics.Cancelled++
		default:
			e.metrics.Failed++
		}
	}
}
