package shard

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tenants are Residents that write down what they are told.
type tenants struct {
	mu       sync.Mutex
	settled  []Loaded
	drains   []time.Duration
	evicted  []workerpb.ErrorCode
	sessions int
	left     chan struct{} // closed when the last one leaves
	moving   func()        // called by Settle, if not nil
}

func newTenants() *tenants { return &tenants{left: make(chan struct{})} }

func (r *tenants) Settle(l Loaded) {
	r.mu.Lock()
	r.settled = append(r.settled, l)
	r.mu.Unlock()
	if r.moving != nil {
		r.moving()
	}
}

func (r *tenants) Drain(left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drains = append(r.drains, left)
}

func (r *tenants) Empty(ctx context.Context) error {
	r.mu.Lock()
	n, left := r.sessions, r.left
	r.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-left:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *tenants) Evict(_ context.Context, why *fault.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sessions > 0 {
		r.evicted = append(r.evicted, why.Code)
	}
	r.leave()
}

// come lets n sessions in.
func (r *tenants) come(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions = n
	r.left = make(chan struct{})
}

// goAway ends all sessions of their own accord.
func (r *tenants) goAway() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leave()
}

func (r *tenants) leave() {
	if r.sessions > 0 {
		r.sessions = 0
		close(r.left)
	}
}

func (r *tenants) Sessions() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sessions
}

// heard is what sessions were ended with, and clears it.
func (r *tenants) heard() []workerpb.ErrorCode {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.evicted
	r.evicted = nil
	return h
}

// source wraps Imaginary: it counts engines that are open, and gate, if not nil, holds Identify until it is closed or the
// load stops.
type source struct {
	Imaginary
	gate chan struct{}

	mu    sync.Mutex
	open  int
	twist byte // goes into the fingerprint, to make it another model
}

func (s *source) Open(ctx context.Context, name string) (Model, error) {
	m, err := s.Imaginary.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return gated{m, s}, nil
}

func (s *source) opened() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

type gated struct {
	Model
	source *source
}

func (g gated) Identify(ctx context.Context, layers engine.LayerRange, progress func(done, total uint64)) ([32]byte, workerpb.Verified, error) {
	progress(0, 8)
	if g.source.gate != nil {
		select {
		case <-g.source.gate:
		case <-ctx.Done():
			return [32]byte{}, 0, cancelled()
		}
	}
	progress(8, 8)
	id, verified, err := g.Model.Identify(ctx, layers, progress)
	g.source.mu.Lock()
	defer g.source.mu.Unlock()
	id[0] ^= g.source.twist
	return id, verified, err
}

func (g gated) NewEngine() (engine.ShardEngine, engine.TextEngine, error) {
	e, text, err := g.Model.NewEngine()
	if err != nil {
		return nil, nil, err
	}
	g.source.mu.Lock()
	defer g.source.mu.Unlock()
	g.source.open++
	return &counted{ShardEngine: e, source: g.source}, text, nil
}

// counted is an engine that is counted while it is open.
type counted struct {
	engine.ShardEngine
	source *source
	once   sync.Once
}

func (c *counted) Close() error {
	err := c.ShardEngine.Close()
	c.once.Do(func() {
		c.source.mu.Lock()
		defer c.source.mu.Unlock()
		c.source.open--
	})
	return err
}

// world is a shard with all around it.
type world struct {
	*Shard
	tenants *tenants
	source  *source
}

const (
	interval = 10 * time.Second
	timeout  = 5 * time.Second
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{tenants: newTenants(), source: &source{}}
	w.Shard = New(Options{
		Residents: w.tenants, ProbeInterval: interval, ProbeTimeout: timeout, Drain: time.Minute,
		Request: engine.LoadRequest{ContextLimit: 64, Sessions: 2, BatchTokens: 16, MicroBatch: 16, Threads: 1, CacheType: "f16"},
	})
	return w
}

// end closes the shard and looks that nothing is left.
func (w *world) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		t.Errorf("closing: %v", err)
	}
	if n := w.source.opened(); n != 0 {
		t.Errorf("%d engines are still open", n)
	}
}

func (w *world) order(model string) Order { return Order{Source: w.source, Model: model} }

// ready loads model.
func (w *world) ready(t *testing.T, model string) {
	t.Helper()
	if err := w.Load(context.Background(), w.order(model), nil); err != nil {
		t.Fatal(err)
	}
}

// until waits for a status that fits.
func (w *world) until(t *testing.T, fits func(Status) bool) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // virtual time
	defer cancel()
	for {
		status, changed := w.Watch()
		if fits(status) {
			return status
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the status never fitted; it is %+v", status)
		}
	}
}

func in(state tables.ShardState) func(Status) bool {
	return func(s Status) bool { return s.State == state }
}

func code(c workerpb.ErrorCode) error { return fault.Code(c) }
