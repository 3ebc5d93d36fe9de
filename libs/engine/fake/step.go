package fake

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// run is a batch while it runs.
type run struct {
	batch     []engine.Step
	cancelled []chan struct{} // closed once the step is cancelled
}

func newRun(batch []engine.Step) *run {
	r := &run{batch: batch, cancelled: make([]chan struct{}, len(batch))}
	for i := range r.cancelled {
		r.cancelled[i] = make(chan struct{})
	}
	return r
}

// cancel marks the session's step. The caller holds the engine's mu.
func (r *run) cancel(session engine.SessionID) {
	for i := range r.batch {
		if r.batch[i].Session == session && !r.isCancelled(i) {
			close(r.cancelled[i])
		}
	}
}

func (r *run) isCancelled(i int) bool {
	select {
	case <-r.cancelled[i]:
		return true
	default:
		return false
	}
}

// work is what one step has computed and not yet applied.
type work struct {
	states []uint64
	result engine.StepResult
}

// Step runs a batch: every step is computed aside, and all that were not cancelled are applied together at the end.
func (e *fakeEngine) Step(ctx context.Context, batch []engine.Step) ([]engine.StepResult, error) {
	if err := e.loaded(); err != nil {
		return nil, err
	}
	if err := e.checkBatch(batch); err != nil {
		return nil, err
	}
	if err := e.enter(ctx); err != nil {
		if ctx.Err() == nil {
			return nil, err
		}
		return e.allInterrupted(ctx, batch), nil
	}
	defer e.leave()
	r := newRun(batch)
	works := make([]work, len(batch))
	e.mu.Lock()
	e.run = r
	for i := range batch {
		works[i].result.Err = e.checkStep(&batch[i])
	}
	e.mu.Unlock()

	lost := false
	for i := range batch {
		if works[i].result.Err == nil {
			begin := time.Now()
			lost = e.evaluate(ctx, r, i, &works[i]) || lost
			works[i].result.Compute = time.Since(begin)
		}
	}
	if lost {
		e.mu.Lock()
		e.run = nil
		e.mu.Unlock()
		return nil, e.lose()
	}
	return e.finish(ctx, r, works), nil
}

func (e *fakeEngine) allInterrupted(ctx context.Context, batch []engine.Step) []engine.StepResult {
	e.mu.Lock()
	defer e.mu.Unlock()
	results := make([]engine.StepResult, len(batch))
	for i := range batch {
		results[i] = engine.StepResult{Err: asCancelled(interrupted(ctx))}
		if c, open := e.sessions[batch[i].Session]; open {
			results[i].Cache = c.state(e.options)
		}
	}
	e.count(results)
	return results
}

// finish applies what was not cancelled and makes the results.
func (e *fakeEngine) finish(ctx context.Context, r *run, works []work) []engine.StepResult {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.run = nil
	results := make([]engine.StepResult, len(works))
	for i := range works {
		step, result := &r.batch[i], works[i].result
		c := e.sessions[step.Session]
		if result.Err == nil && (r.isCancelled(i) || ctx.Err() != nil || e.state == stateClosed) {
			result.Err = engine.Errorf(engine.Cancelled, "the step of session %s was cancelled", step.Session)
		}
		if result.Err != nil {
			result = engine.StepResult{Err: result.Err, Compute: result.Compute}
		} else {
			c.apply(e.options, step.Tokens, works[i].states)
		}
		if c != nil {
			result.Cache = c.state(e.options)
		}
		results[i] = result
	}
	e.metrics.Batches++
	e.count(results)
	return results
}

// count adds results to the metrics. The caller holds mu.
func (e *fakeEngine) count(results []engine.StepResult) {
	for _, result := range results {
		e.metrics.Compute += result.Compute
		switch {
		case engine.CodeOf(result.Err) == engine.Cancelled:
			e.metrics.Cancelled++
		case result.Err != nil:
			e.metrics.Failed++
		case result.Sample != nil:
			e.metrics.Sampled++
		}
	}
}

// evaluate computes step i of a run into w. It says whether the engine is lost.
func (e *fakeEngine) evaluate(ctx context.Context, r *run, i int, w *work) (lost bool) {
	step := &r.batch[i]
	struck := e.faults.next(OpStep, step.Tokens)
	if struck.lost {
		return true
	}
	e.mu.Lock()
	c := e.sessions[step.Session]
	e.mu.Unlock()
	s := e.begin(step, c)
	for n := range step.Tokens {
		if err := e.pause(ctx, struck.delay, struck.stuck, r.cancelled[i]); err != nil {
			w.result.Err = asCancelled(err)
			return false
		}
		if !s.row(n) {
			w.result.Err = engine.Errorf(engine.NumericFault, "the boundary of session %s holds NaN or Inf in row %d", step.Session, n)
			return false
		}
		e.mu.Lock()
		e.metrics.Rows++
		e.mu.Unlock()
	}
	if err := struck.err(OpStep); err != nil {
		w.result.Err = err
		return false
	}
	w.states = s.states
	w.result.Err = s.output(&w.result)
	if struck.poison {
		poison(w.result.Boundary)
		poison(w.result.Logits)
	}
	return false
}

// poison puts a NaN into the first value.
func poison(rows engine.Rows) {
	if len(rows.Data) > 0 {
		binary.LittleEndian.PutUint32(rows.Data, math.Float32bits(float32(math.NaN())))
	}
}

// scan is one step's way through the layers.
type scan struct {
	model    *model
	step     *engine.Step
	history  []engine.TokenID // the session's tokens before this step
	before   []uint64
	states   []uint64
	current  []float32
	boundary []byte
	logits   []float32
	all      []byte
}

func (e *fakeEngine) begin(step *engine.Step, c *cache) *scan {
	depth := e.model.depth()
	s := &scan{
		model: e.model, step: step, history: c.tokens, before: c.last(depth),
		states: make([]uint64, 0, depth*len(step.Tokens)), current: make([]float32, e.options.Width),
	}
	if !e.model.tail() {
		s.boundary = make([]byte, 0, 4*len(s.current)*len(step.Tokens))
	} else if step.Want != engine.WantNone {
		s.logits = make([]float32, e.options.Vocab)
	}
	return s
}

// row computes the step's row n; false means that its boundary is not finite.
func (s *scan) row(n int) bool {
	if s.model.head() {
		s.model.embed(s.current, s.step.Tokens[n])
	} else if size := 4 * len(s.current); !decodeRow(s.current, s.step.Boundary.Data[n*size:(n+1)*size]) {
		return false
	}
	depth := s.model.depth()
	s.states = s.states[:len(s.states)+depth]
	after := s.states[len(s.states)-depth:]
	s.model.forward(s.current, s.before, after)
	s.before = after
	last := n == len(s.step.Tokens)-1
	switch {
	case !s.model.tail():
		s.boundary = appendRow(s.boundary, s.current)
	case s.step.Want == engine.WantLogitsAll, s.step.Want != engine.WantNone && last:
		s.model.logits(s.logits, s.current, engine.Pos(len(s.history)+n+1))
		if s.step.Want != engine.WantSample {
			s.all = appendRow(s.all, s.logits)
		}
	}
	return true
}

// output fills what the step asked for.
func (s *scan) output(result *engine.StepResult) error {
	rows := uint32(len(s.step.Tokens))
	switch {
	case !s.model.tail():
		result.Boundary = engine.Rows{N: rows, Width: uint32(len(s.current)), Data: s.boundary}
	case s.step.Want == engine.WantLogitsLast:
		result.Logits = engine.Rows{N: 1, Width: s.model.options.Vocab, Data: s.all}
	case s.step.Want == engine.WantLogitsAll:
		result.Logits = engine.Rows{N: rows, Width: s.model.options.Vocab, Data: s.all}
	case s.step.Want == engine.WantSample:
		tokens := slices.Concat(s.history, s.step.Tokens)
		sample, err := choose(s.logits, tokens, s.step.Sampling)
		if err != nil {
			return err
		}
		result.Sample = sample
	}
	return nil
}
