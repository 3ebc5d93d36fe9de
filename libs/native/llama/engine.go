//go:build llama && cgo

package llama

import (
	"context"
	"errors"
	"log/slog"
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

// shardEngine is a ShardEngine on llama.cpp.
type shardEngine struct {
	log     *slog.Logger
	library library
	turn    chan struct{} // whoever is in native code or changes sessions holds its one token
	text    textEngine

	// The holder of the turn alone.
	request  engine.LoadRequest
	native   *native // nil unless Loaded or Lost
	sessions map[engine.SessionID]*session
	slots    slots
	scratch  scratch

	mu      sync.Mutex // guards all below; held for moments only
	state   lifecycle
	info    engine.ShardInfo
	running running
	metrics engine.Metrics
}

// New makes an engine and its TextEngine. What llama.cpp says is logged at level debug to slog's default logger.
func New() (engine.ShardEngine, engine.TextEngine, error) {
	e := newEngine(slog.Default())
	return e, &e.text, nil
}

func newEngine(log *slog.Logger) *shardEngine {
	return &shardEngine{
		log: log, library: readLibrary(), turn: make(chan struct{}, 1),
		sessions: make(map[engine.SessionID]*session),
		text:     textEngine{chats: make(chan struct{}, chatsAtOnce)},
	}
}

func isLost() error {
	return engine.Errorf(engine.EngineFault, "the llama.cpp engine is lost with every cache; close it and make a new one")
}

func isClosed() error {
	return engine.Errorf(engine.LifecycleViolation, "the llama.cpp engine is closed; make a new one")
}

// refusal is nil in state want, else why a call is refused. The caller holds mu.
func (e *shardEngine) refusal(want lifecycle) error {
	switch {
	case e.state == want:
		return nil
	case e.state == stateLost:
		return isLost()
	case e.state == stateClosed:
		return isClosed()
	case want == stateLoaded:
		return engine.Errorf(engine.LifecycleViolation, "the llama.cpp engine holds no shard; load one first")
	}
	return engine.Errorf(engine.LifecycleViolation, "the llama.cpp engine holds a shard already or is loading one; close it and make a new one")
}

// check is refusal for a caller without mu.
func (e *shardEngine) check(want lifecycle) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refusal(want)
}

// enter takes the turn in Loaded; leave gives it back.
func (e *shardEngine) enter(ctx context.Context) error {
	if err := e.check(stateLoaded); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return interrupted(ctx)
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return interrupted(ctx)
	}
	if err := e.check(stateLoaded); err != nil {
		e.leave()
		return err
	}
	return nil
}

func (e *shardEngine) leave() { <-e.turn }

// interrupted is the error of a call whose context ended.
func interrupted(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return engine.Errorf(engine.DeadlineExceeded, "the engine was still busy: %w", context.Cause(ctx))
	}
	return engine.Errorf(engine.Cancelled, "the call was cancelled: %w", context.Cause(ctx))
}

// lose makes the engine Lost and returns why. The caller holds the turn.
func (e *shardEngine) lose(err error) error {
	e.text.detach(isLost())
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == stateLoaded {
		e.state = stateLost
	}
	e.forget()
	if engine.CodeOf(err) == engine.EngineFault {
		return err
	}
	return engine.Errorf(engine.EngineFault, "the engine is lost with every cache: %w", err)
}

// forget drops all sessions. The caller holds the turn and mu.
func (e *shardEngine) forget() {
	for _, s := range e.sessions {
		s.grammar.free()
	}
	clear(e.sessions)
	e.metrics.SessionsOpen, e.metrics.CacheReserved = 0, 0
}

// Capabilities describes the engine.
func (e *shardEngine) Capabilities() engine.Capabilities {
	c := engine.Capabilities{
		Name: "llama.cpp", Version: e.library.version, Pin: e.library.pin, Patches: e.library.patches,
		Features: []engine.Feature{
			{Name: engine.FeatureMultiTokenPrediction, Status: engine.FeatureReserved, Reason: "reserved for a later revision"},
			{Name: engine.FeatureAuxiliaryState, Status: engine.FeatureReserved, Reason: "reserved for a later revision"},
			{Name: engine.FeatureChat, Status: engine.FeatureOn},
			{Name: engine.FeatureGrammar, Status: engine.FeatureOn},
			{Name: engine.FeatureLogprobs, Status: engine.FeatureOn},
		},
		Devices: devices(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state == stateLoaded {
		info := e.info
		c.Shard = &info
	}
	return c
}

// Metrics counts.
func (e *shardEngine) Metrics() engine.Metrics {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.metrics
}

// Memory measures which weights of the loaded shard are mapped and present; it takes milliseconds. ok is false unless
// Loaded, and all is 0 where the system does not tell. It waits for a running batch.
func (e *shardEngine) Memory(ctx context.Context) (m Memory, ok bool) {
	if e.enter(ctx) != nil {
		return Memory{}, false
	}
	defer e.leave()
	return e.native.memory(), true
}

// Health probes.
func (e *shardEngine) Health(ctx context.Context, deep bool) (engine.Health, error) {
	if !deep {
		return engine.Health{}, e.check(stateLoaded)
	}
	if err := e.enter(ctx); err != nil {
		return engine.Health{}, err
	}
	defer e.leave()
	begin := time.Now()
	if err := e.probe(ctx); err != nil {
		return engine.Health{}, err
	}
	return engine.Health{Took: max(time.Since(begin), 1)}, nil
}

// probe runs one token, behind the head with a boundary of zeros, in the slot behind all sessions'. The caller holds the turn.
func (e *shardEngine) probe(ctx context.Context) error {
	slot := e.request.Sessions
	var boundary []float32
	if width := e.native.info.boundaryIn; width > 0 {
		boundary = e.scratch.boundary(int(width))
		clear(boundary)
	}
	generation := e.begin(nil)
	stop := context.AfterFunc(ctx, func() { e.cancelAll(generation) })
	if ctx.Err() != nil { // that function may come late
		e.cancelAll(generation)
	}
	outcome := [1]uint32{}
	err := e.native.step([]stepDesc{describe(slot, 0, 1, engine.WantLogitsLast)}, []engine.TokenID{0}, boundary, outcome[:])
	stop()
	e.end()
	switch {
	case engine.CodeOf(err) == engine.Cancelled:
		return interrupted(ctx)
	case engine.CodeOf(err) == engine.EngineOutOfMemory:
		return engine.Errorf(engine.EngineFault, "the probe found no memory: %w", err)
	case err != nil:
		return e.lose(err)
	case outcome[0] != 0:
		return engine.Errorf(engine.NumericFault, "the probe step gave NaN or Inf; the weights or the build are broken")
	}
	if err := e.native.truncate(slot, 0); err != nil {
		return e.lose(err)
	}
	return nil
}

// unload frees the native engine. The caller holds the turn, and no batch runs.
func (e *shardEngine) unload() {
	if e.native != nil {
		e.native.free()
		e.native = nil
	}
}

// Close ends the engine.
func (e *shardEngine) Close() error {
	e.mu.Lock()
	e.state = stateClosed
	e.running.cancelEverything(e)
	e.mu.Unlock()
	e.turn <- struct{}{} // at rest
	defer e.leave()
	e.text.detach(isClosed())
	e.mu.Lock()
	e.forget()
	e.mu.Unlock()
	e.unload()
	return nil
}
