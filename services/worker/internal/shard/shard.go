// Package shard is what a worker holds: which model, which layers, in which state. It runs the lifecycle of
// contracts/tables/shard.v1.yaml, makes and replaces engines, and knows by probes whether the present one works.
//
// Sessions, batches and the wire stay out. Whoever lives on a loaded shard is a Resident, given a Loaded when the shard
// becomes READY and told to leave before the engine goes.
//
// # Who does what
//
// Every change of state is one row of the table, taken under one lock. What takes time (loading, evicting, closing an
// engine) is an errand; errands run one after another on the shard's own goroutine, so that an engine is gone before the
// next is made. Waiting for a drain and probing have goroutines of their own, since an engine may be stuck. Close ends all.
package shard

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// restBound is how long residents and an engine get to come to rest before the shard goes on without them.
const restBound = 10 * time.Second

// Loaded is a shard in service. It does not change; a shard that loads again makes a new one.
type Loaded struct {
	Engine      engine.ShardEngine
	Text        engine.TextEngine
	Info        engine.ShardInfo
	Fingerprint [32]byte
	Verified    workerpb.Verified
	Instance    [16]byte // random, new at every engine start
	Model       string   // as it was named

	lost func(Loaded, error)
}

// Lost tells the shard that the engine answered ENGINE_FAULT. It returns at once; news of an engine that is no longer the
// present one is ignored.
func (l Loaded) Lost(err error) {
	if l.lost != nil {
		l.lost(l, err)
	}
}

// Residents are the sessions on a shard and whatever runs its engine for them. They must not call the shard from within
// these methods, but for Loaded.Lost.
type Residents interface {
	// Settle gives them a fresh engine, before the shard is READY. It does not wait.
	Settle(Loaded)
	// Drain says that no session may open any more and that the open ones have left to end. It may come again with less.
	// It does not wait.
	Drain(left time.Duration)
	// Empty returns nil once there is no session, also none that lingers; the error of ctx if that ends first.
	Empty(ctx context.Context) error
	// Evict ends every session with why and returns once nobody uses the engine, or when ctx ends. Without a shard it
	// does nothing.
	Evict(ctx context.Context, why *fault.Error)
	// Sessions is how many there are, lingering ones included.
	Sessions() int
}

// Observer hears what happens, for metrics. Its methods return at once.
type Observer interface {
	ShardState(tables.ShardState)
	ShardImpossible(tables.ShardState, tables.ShardEvent)
	Transition(table, state, event string)
	ShardProbe(took time.Duration, err error)
	ShardRestart()
}

// Options are what a shard needs to know. All are required but Restart, Log and Observer.
type Options struct {
	Residents     Residents
	Request       engine.LoadRequest // all but Paths and Layers
	Deterministic bool               // whoever calls the engine gives it one session a call
	ProbeInterval time.Duration
	ProbeTimeout  time.Duration
	Drain         time.Duration // where Drain is asked for without a budget
	Restart       Restart       // of lost engines; zero: DefaultRestart
	Log           *slog.Logger
	Observer      Observer
}

// Order names what to load.
type Order struct {
	Source Source
	Model  string            // a name that Source understands
	Layers engine.LayerRange // End 0: to the last layer
	// Fingerprint that the model must have; nil: any.
	Fingerprint *[32]byte
}

// Status is a shard at one moment.
type Status struct {
	State     tables.ShardState
	Ready     bool                // READY, and the last probe passed not long ago
	Instance  [16]byte            // zero before the first engine served
	Loaded    *Loaded             // nil unless READY or DRAINING
	Order     Order               // what is or was last asked for
	Progress  engine.LoadProgress // while LOADING
	Probed    bool                // a probe of this engine has passed
	ProbeAge  time.Duration       // since it passed
	ProbeTook time.Duration
	DrainLeft time.Duration // while DRAINING
	Err       *fault.Error  // why not Ready; nil when Ready
	// Impossible counts events that the table calls impossible.
	Impossible uint64
}

// Shard is the one shard of a worker. All methods may be called from any goroutine.
type Shard struct {
	options Options
	log     *slog.Logger

	life context.Context // ends with Close
	end  context.CancelFunc
	wake chan struct{} // there are errands
	all  sync.WaitGroup

	mu         sync.Mutex
	state      tables.ShardState
	why        *fault.Error // FAILED: what failed; LOADING after a loss: the loss
	instance   [16]byte
	loaded     *Loaded
	order      Order
	load       *load
	patience   time.Duration // of the Drain or Unload that is being fired
	drain      *drain
	probe      *probe
	errands    []func()
	changed    chan struct{} // closed at the next change
	impossible uint64
	served     time.Time // since when the present engine serves, or the last one
	restarts   int       // in a row
}

// New makes an UNLOADED shard; Close ends it.
func New(options Options) *Shard {
	log := options.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if options.Observer == nil {
		options.Observer = deaf{}
	}
	if options.Restart == (Restart{}) {
		options.Restart = DefaultRestart()
	}
	s := &Shard{
		options: options, log: log,
		wake: make(chan struct{}, 1), state: tables.ShardInitial, changed: make(chan struct{}),
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.options.Observer.ShardState(s.state)
	s.all.Add(1)
	go s.runErrands()
	return s
}

// Close stops a load, evicts residents and closes the engine. It waits until all that is done, or ctx ends; the error then
// says that an engine did not come to rest. Idempotent; no other method may be called afterwards but Watch.
func (s *Shard) Close(ctx context.Context) error {
	s.end()
	done := make(chan struct{})
	go func() {
		s.all.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fault.FromContext(ctx, "the engine to come to rest")
	}
}

// Load loads and waits: nil once READY. The end of ctx cancels the load. progress, if not nil, gets the status as it
// changes; it coalesces.
//
// Errors: LOAD_IN_PROGRESS, DRAINING, SHARD_MISMATCH (no such layers, another fingerprint), CANCELLED, and those of the
// Source and of engine.ShardEngine.Load.
func (s *Shard) Load(ctx context.Context, order Order, progress func(Status)) error {
	s.mu.Lock()
	l := newLoad(s.life, order)
	if err := s.fire(tables.ShardEventLoad, func() { s.load, s.order = l, order }); err != nil {
		s.mu.Unlock()
		l.stop()
		return err
	}
	s.mu.Unlock()
	for {
		status, changed := s.Watch()
		if progress != nil {
			progress(status)
		}
		select {
		case <-l.done:
			return l.outcome()
		case <-changed:
		case <-ctx.Done():
			s.cancel(l)
			<-l.done
			return l.outcome()
		}
	}
}

// CancelLoad stops a load that runs. Without one it does nothing.
func (s *Shard) CancelLoad() { s.cancel(nil) }

// cancel stops the load l, or any if nil.
func (s *Shard) cancel(l *load) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l != nil && s.load != l {
		return
	}
	_ = s.fire(tables.ShardEventCancelLoad, nil) // the table refuses it in no state
}

// Drain refuses new sessions and gives the open ones budget to end; negative is the configured budget. It returns at once
// with the status. Idempotent: the shorter budget wins.
//
// Errors: SHARD_NOT_READY (nothing serves).
func (s *Shard) Drain(budget time.Duration) (Status, error) {
	if budget < 0 {
		budget = s.options.Drain
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.fire(tables.ShardEventDrain, func() { s.patience = budget })
	return s.status(), err
}

// Unload ends every session now, frees the shard and waits until it is UNLOADED. Idempotent.
func (s *Shard) Unload(ctx context.Context) error {
	s.mu.Lock()
	err := s.fire(tables.ShardEventUnload, func() { s.patience = 0 })
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Unloaded(ctx)
}

// Unloaded waits until the shard is UNLOADED and its engine is gone.
func (s *Shard) Unloaded(ctx context.Context) error {
	for {
		s.mu.Lock()
		done, changed := s.state == tables.ShardUnloaded && len(s.errands) == 0, s.changed
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fault.FromContext(ctx, "the shard to be unloaded")
		}
	}
}

// lost is Loaded.Lost.
func (s *Shard) lost(l Loaded, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded == nil || s.loaded.Instance != l.Instance {
		return
	}
	s.log.Error("the engine was lost", "cause", err, "instance", hexed(l.Instance))
	_ = s.fire(tables.ShardEventEngineLost, func() { s.why = fault.FromEngine(asEngineFault(err)) })
}

// State is the present state.
func (s *Shard) State() tables.ShardState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Instance is that of the present engine, or of the last one; zero before the first served.
func (s *Shard) Instance() [16]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.instance
}

// Info is the loaded shard and the model's fingerprint; false unless READY or DRAINING.
func (s *Shard) Info() (engine.ShardInfo, [32]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded == nil {
		return engine.ShardInfo{}, [32]byte{}, false
	}
	return s.loaded.Info, s.loaded.Fingerprint, true
}

// Status is Watch without the channel.
func (s *Shard) Status() Status {
	status, _ := s.Watch()
	return status
}

// Watch returns the status and a channel that is closed when it is no longer true. Whoever looks again then sees the newest
// status only. It never waits for the engine.
func (s *Shard) Watch() (Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status(), s.changed
}

// deaf is no observer.
type deaf struct{}

func (deaf) ShardState(tables.ShardState)                         {}
func (deaf) ShardImpossible(tables.ShardState, tables.ShardEvent) {}
func (deaf) Transition(string, string, string)                    {}
func (deaf) ShardProbe(time.Duration, error)                      {}
func (deaf) ShardRestart()                                        {}
