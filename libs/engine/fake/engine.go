package fake

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// lifecycle is the states of package engine.
type lifecycle int

const (
	stateNew lifecycle = iota
	stateLoading
	stateLoaded
	stateLost
	stateClosed
)

// fakeEngine is a ShardEngine.
type fakeEngine struct {
	options Options
	faults  *faults
	turn    chan struct{} // whoever computes or changes caches holds its one token
	closing chan struct{} // closed by the first Close

	mu       sync.Mutex // guards all below; held for moments only
	state    lifecycle
	model    *model
	request  engine.LoadRequest
	sessions map[engine.SessionID]*cache
	run      *run // the batch that runs now
	metrics  engine.Metrics
}

func newEngine(options Options, faults *faults) *fakeEngine {
	return &fakeEngine{
		options: options, faults: faults,
		turn: make(chan struct{}, 1), closing: make(chan struct{}),
		sessions: make(map[engine.SessionID]*cache),
	}
}

// loaded is nil in Loaded, else why a call is refused.
func (e *fakeEngine) loaded() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refusal(stateLoaded)
}

// refusal is nil in state want. The caller holds mu.
func (e *fakeEngine) refusal(want lifecycle) error {
	switch {
	case e.state == want:
		return nil
	case e.state == stateLost:
		return engine.Errorf(engine.EngineFault, "the fake engine is lost with every cache; close it and make a new one")
	case e.state == stateClosed:
		return engine.Errorf(engine.LifecycleViolation, "the fake engine is closed; make a new one")
	case want == stateLoaded:
		return engine.Errorf(engine.LifecycleViolation, "the fake engine holds no shard; load one first")
	}
	return engine.Errorf(engine.LifecycleViolation, "the fake engine holds a shard already; close it and make a new one")
}

// enter takes the turn in Loaded; leave gives it back.
func (e *fakeEngine) enter(ctx context.Context) error {
	if err := e.loaded(); err != nil {
		return err
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return interrupted(ctx)
	}
	if err := e.loaded(); err != nil {
		e.leave()
		return err
	}
	return nil
}

func (e *fakeEngine) leave() { <-e.turn }

// interrupted is the error of a call whose context ended.
func interrupted(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return engine.Errorf(engine.DeadlineExceeded, "the fake engine was still busy: %w", context.Cause(ctx))
	}
	return engine.Errorf(engine.Cancelled, "the call was cancelled: %w", context.Cause(ctx))
}

// endure lets the faults of a call that is no step take effect. It holds no lock.
func (e *fakeEngine) endure(ctx context.Context, op Op) error {
	struck := e.faults.next(op, nil)
	if err := e.pause(ctx, struck.delay, struck.stuck, nil); err != nil {
		return err
	}
	if struck.lost {
		return e.lose()
	}
	return struck.err(op)
}

// pause waits for delay, or without end when stuck, unless ctx, the engine or cancelled ends first.
func (e *fakeEngine) pause(ctx context.Context, delay time.Duration, stuck bool, cancelled <-chan struct{}) error {
	var over <-chan time.Time
	if delay > 0 && !stuck {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		over = timer.C
	}
	if over == nil && !stuck {
		if ctx.Err() != nil {
			return interrupted(ctx)
		}
		return nil
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return interrupted(ctx)
	case <-e.closing:
		return engine.Errorf(engine.Cancelled, "the fake engine is being closed")
	case <-cancelled:
		return engine.Errorf(engine.Cancelled, "the step was cancelled")
	}
}

// lose makes the engine Lost.
func (e *fakeEngine) lose() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != stateClosed {
		e.state = stateLost
	}
	e.forget()
	return engine.Errorf(engine.EngineFault, "the script of the fake engine lost it with every cache; close it and make a new one")
}

// forget drops every session. The caller holds mu.
func (e *fakeEngine) forget() {
	clear(e.sessions)
	e.metrics.SessionsOpen, e.metrics.CacheReserved = 0, 0
}

// Open reserves a session.
func (e *fakeEngine) Open(ctx context.Context, session engine.SessionID, contextTokens uint32) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	if err := e.endure(ctx, OpOpen); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, open := e.sessions[session]
	switch {
	case contextTokens == 0:
		return engine.Errorf(engine.Malformed, "session %s asks for a context of 0 tokens; ask for 1 or more", session)
	case contextTokens > e.request.ContextLimit:
		return engine.Errorf(engine.ContextOverflow, "session %s asks for %d tokens and the limit is %d", session, contextTokens, e.request.ContextLimit)
	case open:
		return engine.Errorf(engine.LifecycleViolation, "session %s is open already; release it first", session)
	case len(e.sessions) >= int(e.request.Sessions):
		return engine.Errorf(engine.NoCapacity, "all %d sessions are taken; release one", e.request.Sessions)
	}
	e.sessions[session] = &cache{reserved: contextTokens}
	e.metrics.SessionsOpen++
	e.metrics.CacheReserved += uint64(contextTokens)
	return nil
}

// Truncate makes a cache shorter.
func (e *fakeEngine) Truncate(ctx context.Context, session engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	if err := e.enter(ctx); err != nil {
		return engine.CacheState{}, err
	}
	defer e.leave()
	if err := e.endure(ctx, OpTruncate); err != nil {
		return engine.CacheState{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c, open := e.sessions[session]
	if !open {
		return engine.CacheState{}, unknown(session)
	}
	state := c.state(e.options)
	if length >= state.Length {
		return state, nil
	}
	if !reaches(state.Reach, length) {
		return state, engine.Errorf(engine.CacheMismatch, "session %s cannot go back from %d to %d tokens; it reaches %v", session, state.Length, length, state.Reach)
	}
	c.truncate(e.model.depth(), length)
	return c.state(e.options), nil
}

// Mark keeps a checkpoint.
func (e *fakeEngine) Mark(ctx context.Context, session engine.SessionID) (engine.CacheState, error) {
	return e.change(ctx, session, func(c *cache) error {
		if !c.markHere(e.options.Marks) {
			return engine.Errorf(engine.NoCapacity, "session %s holds all %d marks that it may; unmark one", session, e.options.Marks)
		}
		return nil
	})
}

// Unmark drops a checkpoint.
func (e *fakeEngine) Unmark(ctx context.Context, session engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	return e.change(ctx, session, func(c *cache) error {
		c.unmark(length)
		return nil
	})
}

// change does something to the cache of one session.
func (e *fakeEngine) change(ctx context.Context, session engine.SessionID, do func(*cache) error) (engine.CacheState, error) {
	if err := e.enter(ctx); err != nil {
		return engine.CacheState{}, err
	}
	defer e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	c, open := e.sessions[session]
	if !open {
		return engine.CacheState{}, unknown(session)
	}
	err := do(c)
	return c.state(e.options), err
}

// Copy fills an empty cache.
func (e *fakeEngine) Copy(ctx context.Context, from, to engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	if err := e.enter(ctx); err != nil {
		return engine.CacheState{}, err
	}
	defer e.leave()
	if err := e.endure(ctx, OpCopy); err != nil {
		return engine.CacheState{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	source, open := e.sessions[from]
	if !open {
		return engine.CacheState{}, unknown(from)
	}
	target, open := e.sessions[to]
	if !open {
		return engine.CacheState{}, unknown(to)
	}
	state := source.state(e.options)
	switch {
	case target.length() > 0:
		return target.state(e.options), engine.Errorf(engine.CacheMismatch, "session %s holds %d tokens; only an empty one takes a copy", to, target.length())
	case length > state.Length, e.options.Copy != engine.CopyPrefix && !reaches(state.Reach, length):
		return target.state(e.options), engine.Errorf(engine.CacheMismatch, "session %s of %d tokens cannot be copied at %d; it reaches %v", from, state.Length, length, state.Reach)
	case uint64(length) > uint64(target.reserved):
		return target.state(e.options), engine.Errorf(engine.ContextOverflow, "session %s has room for %d tokens; %d do not fit", to, target.reserved, length)
	}
	e.sessions[to] = source.first(e.model.depth(), length, target.reserved)
	return e.sessions[to].state(e.options), nil
}

func unknown(session engine.SessionID) error {
	return engine.Errorf(engine.SessionUnknown, "session %s is not open; open it and prefill again", session)
}

// Release frees a session.
func (e *fakeEngine) Release(ctx context.Context, session engine.SessionID) error {
	e.mu.Lock()
	state := e.state
	e.mu.Unlock()
	if state != stateLoaded && state != stateLost {
		return nil
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	if c, open := e.sessions[session]; open {
		delete(e.sessions, session)
		e.metrics.SessionsOpen--
		e.metrics.CacheReserved -= uint64(c.reserved)
	}
	return nil
}

// Health probes.
func (e *fakeEngine) Health(ctx context.Context, deep bool) (engine.Health, error) {
	if !deep {
		return engine.Health{}, e.loaded()
	}
	begin := time.Now()
	if err := e.enter(ctx); err != nil {
		return engine.Health{}, err
	}
	defer e.leave()
	if err := e.endure(ctx, OpProbe); err != nil {
		return engine.Health{}, err
	}
	row := make([]float32, e.options.Width)
	e.model.forward(row, nil, make([]uint64, e.model.depth()))
	return engine.Health{Took: max(time.Since(begin), 1)}, nil
}

// Cancel stops the running step of a session.
func (e *fakeEngine) Cancel(session engine.SessionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.run != nil {
		e.run.cancel(session)
	}
}

// Metrics counts.
func (e *fakeEngine) Metrics() engine.Metrics {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.metrics
}

// Close ends the engine.
func (e *fakeEngine) Close() error {
	e.mu.Lock()
	if e.state != stateClosed {
		e.state = stateClosed
		close(e.closing)
	}
	e.mu.Unlock()
	e.turn <- struct{}{} // at rest
	defer e.leave()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget()
	return nil
}

// Capabilities describes the fake.
func (e *fakeEngine) Capabilities() engine.Capabilities {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := engine.Capabilities{
		Name: Scheme, Version: "1",
		Features: []engine.Feature{
			{Name: engine.FeatureMultiTokenPrediction, Status: engine.FeatureReserved, Reason: "reserved for a later revision"},
			{Name: engine.FeatureAuxiliaryState, Status: engine.FeatureReserved, Reason: "reserved for a later revision"},
			{Name: engine.FeatureChat, Status: engine.FeatureOn},
			{Name: engine.FeatureGrammar, Status: engine.FeatureOff, Reason: "the fake engine compiles no grammars"},
			{Name: engine.FeatureLogprobs, Status: engine.FeatureOn},
		},
		Devices: []engine.Device{{Name: "arithmetic", Backend: Scheme, MemoryTotal: 1 << 30, MemoryFree: 1 << 30}},
	}
	if e.state == stateLoaded {
		info := e.info()
		c.Shard = &info
	}
	return c
}

// info describes the loaded shard. The caller holds mu.
func (e *fakeEngine) info() engine.ShardInfo {
	layout := engine.BoundaryLayout{Width: e.options.Width, Name: "hidden"}
	info := engine.ShardInfo{
		Architecture: e.options.Architecture, Layers: e.model.layers, NLayer: e.options.NLayer, Vocab: e.options.Vocab,
		ContextLimit: e.request.ContextLimit, TrainContext: e.options.TrainContext,
		Cache: engine.CacheAbility{Truncate: e.options.Truncate, Copy: e.options.Copy, Marks: e.options.Marks},
		Numerics: engine.Numerics{
			Backend: Scheme, InstructionSet: runtime.GOARCH, Threads: e.request.Threads, FlashAttention: e.request.FlashAttention,
			CacheType: e.request.CacheType, MicroBatch: e.request.MicroBatch, Deterministic: true,
		},
		Memory: engine.Memory{
			Weights: 8 * uint64(e.model.depth()),
			Cache:   8 * uint64(e.model.depth()) * uint64(e.request.ContextLimit) * uint64(e.request.Sessions),
		},
	}
	if !e.model.head() {
		in := layout
		info.BoundaryIn = &in
	}
	if !e.model.tail() {
		out := layout
		info.BoundaryOut = &out
	}
	return info
}
