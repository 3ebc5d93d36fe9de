package remote

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/worker"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Options say which worker and how patient to be with it. The durations may be zero: then they are those of the contract.
type Options struct {
	Address    string        // HOST:PORT
	Dial       dial.Options  // how to connect
	OpenBudget time.Duration // for the opening of a session
	StepBudget time.Duration // for a step; a caller in a hurry ends its ctx
	RestBudget time.Duration // for what ends a load, a session or a step; whoever takes longer is given up
	CallBudget time.Duration // for calls without a ctx: GetCapability at first, GetMetrics
}

func (o Options) complete() Options {
	o.OpenBudget = cmp.Or(o.OpenBudget, 5*time.Second)
	o.StepBudget = cmp.Or(o.StepBudget, 2*time.Minute)
	o.RestBudget = cmp.Or(o.RestBudget, 10*time.Second)
	o.CallBudget = cmp.Or(o.CallBudget, 2*time.Second)
	return o
}

var (
	_ engine.ShardEngine = (*Engine)(nil)
	_ engine.Mortal      = (*Engine)(nil)
)

// state is where an engine is in its life.
type state int

const (
	fresh state = iota
	loaded
	lost
	closed
)

// Engine is one worker as an engine. It follows the rules of engine.ShardEngine about goroutines.
type Engine struct {
	options Options
	client  *worker.Client
	life    context.Context // ends with Close
	end     context.CancelFunc
	group   sync.WaitGroup // streams and the watch
	over    chan struct{}  // closed when the engine is lost or closed
	gone    chan struct{}  // closed when Close has done all

	mu          sync.Mutex
	state       state
	why         *engine.Error // lost: what happened
	owned       bool          // Load loaded the shard, and Close unloads it
	able        engine.Capabilities
	limits      *workerpb.Limits
	fingerprint [32]byte
	instance    []byte
	template    bool
	sessions    map[engine.SessionID]*link
	attempt     uint64
	metrics     engine.Metrics // what this side counts
	seen        engine.Metrics // batches and rows as the worker told last
}

// New connects to a worker and makes an engine in state New, and the TextEngine that belongs to it.
//
// Errors: what the worker says, or ENGINE_FAULT when nobody answers within CallBudget.
func New(o Options) (*Engine, engine.TextEngine, error) {
	o = o.complete()
	client, err := worker.Open(o.Address, o.Dial)
	if err != nil {
		return nil, nil, refused(err)
	}
	e := &Engine{
		options: o, client: client, over: make(chan struct{}), gone: make(chan struct{}), sessions: make(map[engine.SessionID]*link),
	}
	e.life, e.end = context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(e.life, o.CallBudget)
	defer cancel()
	c, err := client.Capability(ctx)
	if err != nil {
		e.end()
		_ = client.Close()
		return nil, nil, refused(err)
	}
	e.learn(c)
	return e, text{e}, nil
}

// Factory makes engines on one worker, one after another: a worker holds one shard.
func Factory(o Options) engine.Factory {
	return func() (engine.ShardEngine, engine.TextEngine, error) {
		e, text, err := New(o)
		if err != nil {
			return nil, nil, err
		}
		return e, text, nil
	}
}

// in says why a call that is allowed in one state is not allowed now, or nil. The caller holds mu.
func (e *Engine) in(want state) error {
	switch {
	case e.state == want:
		return nil
	case e.state == lost:
		return e.why
	case e.state == closed:
		return engine.Errorf(engine.LifecycleViolation, "the engine on worker %s is closed; make another one", e.client.Address())
	case e.state == fresh:
		return engine.Errorf(engine.LifecycleViolation, "the engine on worker %s has no shard; call Load or Attach", e.client.Address())
	}
	return engine.Errorf(engine.LifecycleViolation, "the engine on worker %s has its shard; make another engine for another one", e.client.Address())
}

func (e *Engine) allowed(want state) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.in(want)
}

// lose ends all that needs the worker's engine. Only the first reason counts.
func (e *Engine) lose(why error) {
	e.mu.Lock()
	if e.state != loaded {
		e.mu.Unlock()
		return
	}
	e.state = lost
	e.why = engine.Errorf(engine.EngineFault, "the engine of worker %s is lost, and with it every session here; make a new one: %w", e.client.Address(), why)
	links := e.forget()
	e.able.Shard = nil
	close(e.over)
	e.mu.Unlock()
	for _, l := range links {
		l.cancel()
	}
}

// forget takes every session away. The caller holds mu.
func (e *Engine) forget() []*link {
	var links []*link
	for _, l := range e.sessions {
		links = append(links, l)
	}
	clear(e.sessions)
	e.metrics.SessionsOpen, e.metrics.CacheReserved = 0, 0
	return links
}

// lossOf is why the engine is lost, or nil.
func (e *Engine) lossOf() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.state != lost {
		return nil
	}
	return e.why
}

// Lost is closed when the engine is lost or was closed.
func (e *Engine) Lost() <-chan struct{} { return e.over }

// Capabilities says what the worker is, as it said when this engine was made or got its shard.
func (e *Engine) Capabilities() engine.Capabilities {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.able
	c.Pin, c.Patches = slices.Clone(c.Pin), slices.Clone(c.Patches)
	c.Features, c.Devices = slices.Clone(c.Features), slices.Clone(c.Devices)
	if c.Shard != nil {
		shard := copyOf(*c.Shard)
		c.Shard = &shard
	}
	return c
}

// Health tells the worker's last probe; without deep, that the engine is there as far as this side knows.
func (e *Engine) Health(ctx context.Context, deep bool) (engine.Health, error) {
	if err := e.allowed(loaded); err != nil || !deep {
		return engine.Health{}, err
	}
	h, err := e.client.Health(ctx)
	switch {
	case err != nil:
		return engine.Health{}, refused(err)
	case !h.GetReady():
		return engine.Health{}, unready(e.client.Address(), h)
	}
	return engine.Health{Took: h.GetProbeTook().AsDuration()}, nil
}

// Metrics asks the worker for calls and rows, which are those of all its sessions since it got its shard; where it does not
// answer, they are what it said last.
func (e *Engine) Metrics() engine.Metrics {
	if e.allowed(loaded) == nil {
		ctx, cancel := context.WithTimeout(e.life, e.options.CallBudget)
		defer cancel()
		if m, err := e.client.Metrics(ctx); err == nil {
			e.mu.Lock()
			e.seen.Batches, e.seen.Rows = max(e.seen.Batches, m.GetBatches()), max(e.seen.Rows, m.GetBatchRows())
			e.mu.Unlock()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.metrics
	m.Batches, m.Rows = e.seen.Batches, e.seen.Rows
	return m
}

// Close ends every session, unloads the shard if Load loaded it, and hangs up.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.state == closed {
		e.mu.Unlock()
		<-e.gone
		return nil
	}
	before := e.state
	e.state = closed
	links := e.forget()
	e.able.Shard = nil
	owned := e.owned
	if before != lost {
		close(e.over)
	}
	e.mu.Unlock()
	defer close(e.gone)

	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.life), e.options.RestBudget)
	defer cancel()
	for _, l := range links {
		l.close(ctx)
	}
	var err error
	if owned {
		err = e.unload(ctx, nil)
	}
	if before == lost {
		err = nil // what is lost may not answer
	}
	e.end()
	e.group.Wait()
	if hung := e.client.Close(); err == nil {
		err = hung
	}
	if err != nil {
		return translate(e.client.Fault(fmt.Errorf("closing the engine on worker %s: %w", e.client.Address(), err)))
	}
	return nil
}
