package shard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// progressInterval bounds how often progress within one phase wakes watchers.
const progressInterval = 100 * time.Millisecond

// Source finds models by name.
type Source interface {
	// Open validates the model's header. Errors: BAD_MODEL_FILE, UNSUPPORTED_ARCHITECTURE, CANCELLED.
	Open(ctx context.Context, name string) (Model, error)
}

// Model is one model that can be loaded.
type Model interface {
	// Paths are the model's files in order, as engine.LoadRequest wants them.
	Paths() []string
	// Layers is how many layers the whole model has; 0: only the engine knows.
	Layers() uint32
	// Held is which of them are here: all, but in a shard's file.
	Held() engine.LayerRange
	// Identify returns the fingerprint once the tensors of layers, at least, are proved to be what it says. progress gets
	// bytes. Errors: BAD_MODEL_FILE, CANCELLED.
	Identify(ctx context.Context, layers engine.LayerRange, progress func(done, total uint64)) ([32]byte, workerpb.Verified, error)
	// NewEngine makes a fresh engine for the model.
	NewEngine() (engine.ShardEngine, engine.TextEngine, error)
}

// load is one run of an Order.
type load struct {
	order   Order
	restart bool          // after a loss: ends with EngineRestarted
	after   time.Duration // wait before it
	ctx     context.Context
	stop    context.CancelFunc

	progress engine.LoadProgress // guarded by Shard.mu
	shown    time.Time           // guarded by Shard.mu; when watchers last heard of it

	once sync.Once
	done chan struct{} // closed at the end
	err  error         // set before done is closed
}

func newLoad(life context.Context, order Order) *load {
	l := &load{order: order, done: make(chan struct{})}
	l.ctx, l.stop = context.WithCancel(life)
	l.progress.Phase = engine.LoadValidating
	return l
}

// finish sets the outcome once.
func (l *load) finish(err error) {
	l.once.Do(func() {
		l.err = err
		l.stop()
		close(l.done)
	})
}

// outcome is valid after done.
func (l *load) outcome() error { return l.err }

// runLoad is the errand of one load: open, identify, load, probe, settle.
func (s *Shard) runLoad(l *load) {
	var loaded Loaded
	var took time.Duration
	var err error
	for tries := 0; ; tries++ {
		if err = l.wait(); err == nil {
			apart(func() { loaded, took, err = s.bring(l) })
		}
		if !l.restart || !passing(err) || tries == s.options.Restart.Tries {
			break
		}
		l.after = s.options.Restart.delay(tries + 1)
		s.log.Warn("the lost engine could not be replaced yet", "cause", err, "next_in", l.after)
	}
	if err == nil {
		s.options.Residents.Settle(loaded)
	}
	s.mu.Lock()
	if s.load != l || s.life.Err() != nil { // cancelled meanwhile: nothing of it may stay
		s.mu.Unlock()
		if err == nil {
			s.evictor(cancelled())()
			s.closeEngine(loaded.Engine)
		}
		l.finish(cancelled())
		return
	}
	defer s.mu.Unlock()
	if err != nil {
		l.finish(s.loadFailed(l, err))
		return
	}
	event := tables.ShardEventLoaded
	if l.restart {
		event = tables.ShardEventEngineRestarted
	}
	err = s.fire(event, func() {
		s.loaded = &loaded
		s.probe = &probe{passed: time.Now(), took: took}
	})
	l.finish(err)
}

// loadFailed fires what err means and returns it, for whoever ordered the load; others learn it by Named. The caller holds mu.
func (s *Shard) loadFailed(l *load, err error) error {
	f := fault.Of(err)
	event := tables.ShardEventLoadFailed
	if errors.Is(err, engine.EngineFault) {
		event = tables.ShardEventEngineLost
	}
	if l.restart { // whoever asked for any other load is told
		s.log.Error("the lost engine could not be replaced", "cause", f.Error())
	}
	_ = s.fire(event, func() { s.why, s.load = Named(f, l.order.Model), nil })
	return f
}

// bring makes an engine that holds the ordered shard and has passed a probe, which took so long. On an error nothing stays.
func (s *Shard) bring(l *load) (Loaded, time.Duration, error) {
	loaded, err := s.read(l)
	if err != nil {
		return Loaded{}, 0, err
	}
	s.progress(l, engine.LoadProgress{Phase: engine.LoadProbing})
	ctx, cancel := context.WithTimeout(l.ctx, max(s.options.ProbeTimeout, firstProbe))
	defer cancel()
	health, err := loaded.Engine.Health(ctx, true)
	s.options.Observer.ShardProbe(health.Took, err)
	if err != nil {
		s.closeEngine(loaded.Engine)
		return Loaded{}, 0, err
	}
	s.progress(l, engine.LoadProgress{Phase: engine.LoadReady})
	rand.Read(loaded.Instance[:])
	loaded.lost = s.lost
	return loaded, health.Took, nil
}

// read opens, makes the engine, identifies and loads.
func (s *Shard) read(l *load) (Loaded, error) {
	if l.ctx.Err() != nil {
		return Loaded{}, cancelled()
	}
	model, err := l.order.Source.Open(l.ctx, l.order.Model)
	if err != nil {
		return Loaded{}, err
	}
	layers, err := resolve(l.order.Layers, model.Held(), model.Layers())
	if err != nil {
		return Loaded{}, err
	}
	loaded := Loaded{Model: l.order.Model}
	if loaded.Engine, loaded.Text, err = model.NewEngine(); err != nil {
		return Loaded{}, err
	}
	if err = s.fill(l, model, layers, &loaded); err != nil {
		s.closeEngine(loaded.Engine)
		return Loaded{}, err
	}
	return loaded, nil
}

// fill identifies the model and gives it to the engine.
func (s *Shard) fill(l *load, model Model, layers engine.LayerRange, loaded *Loaded) (err error) {
	verifying := func(done, total uint64) {
		s.progress(l, engine.LoadProgress{Phase: engine.LoadVerifying, Done: done, Total: total})
	}
	loaded.Fingerprint, loaded.Verified, err = model.Identify(l.ctx, layers, verifying)
	if err != nil {
		return err
	}
	if want := l.order.Fingerprint; want != nil && *want != loaded.Fingerprint {
		return engine.Errorf(engine.ShardMismatch, "%s has the fingerprint %x and %x was asked for; give the right file", l.order.Model, loaded.Fingerprint[:8], want[:8])
	}
	request := s.options.Request
	request.Paths, request.Layers = model.Paths(), layers
	loaded.Info, err = loaded.Engine.Load(l.ctx, request, func(p engine.LoadProgress) {
		if p.Phase == engine.LoadReading {
			s.progress(l, p)
		}
	})
	loaded.Info.Numerics.Deterministic = loaded.Info.Numerics.Deterministic || s.options.Deterministic
	return err
}

// resolve gives an open end its number, takes what is held where nothing is asked for, and refuses layers that the model
// has not or that are not here.
func resolve(layers, held engine.LayerRange, n uint32) (engine.LayerRange, error) {
	if n == 0 {
		return layers, nil
	}
	if layers == (engine.LayerRange{}) {
		return held, nil
	}
	asked := layers
	if layers.End == 0 {
		layers.End = n
	}
	if layers.First >= layers.End || layers.End > n {
		return engine.LayerRange{}, engine.Errorf(engine.ShardMismatch, "layers %s were asked for and the model has %d; give FIRST:END within 0:%d", spell(asked), n, n)
	}
	if layers.First < held.First || layers.End > held.End {
		return engine.LayerRange{}, engine.Errorf(engine.ShardMismatch, "layers %s were asked for and the file is a shard that holds %s; give layers within, or the whole model",
			spell(asked), spell(held))
	}
	return layers, nil
}

// spell writes layers as an operator does.
func spell(l engine.LayerRange) string {
	if l.End == 0 {
		return fmt.Sprintf("%d:", l.First)
	}
	return fmt.Sprintf("%d:%d", l.First, l.End)
}

// progress notes how far l is; watchers hear of every phase and now and then within one.
func (s *Shard) progress(l *load, p engine.LoadProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, whole := p.Phase != l.progress.Phase, p.Total > 0 && p.Done == p.Total
	l.progress = p
	if s.load != l || !next && !whole && time.Since(l.shown) < progressInterval {
		return
	}
	l.shown = time.Now()
	s.announce()
}
