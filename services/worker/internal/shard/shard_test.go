package shard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func TestLoadGoesThroughItsPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		var phases []engine.LoadPhase
		order := w.order("fake:layers=6")
		order.Layers = engine.LayerRange{First: 2}
		err := w.Load(context.Background(), order, func(s Status) {
			if s.State == tables.ShardLoading {
				phases = append(phases, s.Progress.Phase)
			}
			if s.Ready != (s.State == tables.ShardReady) || s.Ready != (s.Err == nil) {
				t.Errorf("ready is %t in %s with %v", s.Ready, s.State, s.Err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted(phases) || len(phases) == 0 {
			t.Errorf("phases %v are not in order", phases)
		}
		status := w.Status()
		info, fingerprint, ok := w.Info()
		if !status.Ready || !ok || info.Layers != (engine.LayerRange{First: 2, End: 6}) || fingerprint == [32]byte{} {
			t.Errorf("status %+v, info %+v %t", status, info, ok)
		}
		if len(w.tenants.settled) != 1 || w.tenants.settled[0].Instance != w.Instance() || w.Instance() == [16]byte{} {
			t.Errorf("settled %v with instance %x", w.tenants.settled, w.Instance())
		}
		if err := w.Load(context.Background(), order, nil); !errors.Is(err, code(workerpb.ErrorCode_ERROR_CODE_LOAD_IN_PROGRESS)) {
			t.Errorf("a second load: %v", err)
		}
	})
}

func TestWhatCannotBeLoaded(t *testing.T) {
	other := [32]byte{9}
	for _, tt := range []struct {
		name, model string
		layers      engine.LayerRange
		fingerprint *[32]byte
		want        error
		words       string
	}{
		{"no model", "fake:layers=none", engine.LayerRange{}, nil, engine.BadModelFile, "layers=none"},
		{"no such layers", "fake:layers=4", engine.LayerRange{First: 2, End: 9}, nil, engine.ShardMismatch, "layers 2:9 were asked for and the model has 4"},
		{"none left", "fake:layers=4", engine.LayerRange{First: 4}, nil, engine.ShardMismatch, "layers 4: were asked for"},
		{"another model", "fake", engine.LayerRange{}, &other, engine.ShardMismatch, "fingerprint"},
		{"engine says no", "fake:script=load fail UNSUPPORTED_ARCHITECTURE", engine.LayerRange{}, nil, engine.UnsupportedArchitecture, ""},
		{"no memory", "fake:script=load fail ENGINE_OUT_OF_MEMORY", engine.LayerRange{}, nil, engine.EngineOutOfMemory, ""},
		{"engine lost", "fake:script=load 1 lost", engine.LayerRange{}, nil, engine.EngineFault, ""},
		{"probe NaN", "fake:script=probe nan", engine.LayerRange{}, nil, engine.NumericFault, ""},
		{"probe stuck", "fake:script=probe stuck", engine.LayerRange{}, nil, engine.DeadlineExceeded, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end(t)
				order := w.order(tt.model)
				order.Layers, order.Fingerprint = tt.layers, tt.fingerprint
				err := w.Load(context.Background(), order, nil)
				if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.words) {
					t.Errorf("error is %v, want %v with %q", err, tt.want, tt.words)
				}
				synctest.Wait()
				if s := w.Status(); s.State != tables.ShardFailed || !errors.Is(s.Err, tt.want) {
					t.Errorf("the shard is %s with %v", s.State, s.Err)
				}
				if n := w.source.opened(); n != 0 {
					t.Errorf("%d engines stayed", n)
				}
				w.ready(t, "fake")
			})
		})
	}
}

func TestCancelledLoadLeavesNothing(t *testing.T) {
	for _, model := range []string{"fake", "fake:script=load stuck", "fake:script=probe stuck"} {
		for how, cancel := range map[string]func(*world, context.CancelFunc){
			"CancelLoad": func(w *world, _ context.CancelFunc) { w.CancelLoad() },
			"context":    func(_ *world, end context.CancelFunc) { end() },
			"Unload":     func(w *world, _ context.CancelFunc) { _ = w.Unload(context.Background()) },
		} {
			t.Run(model+"/"+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					defer w.end(t)
					if model == "fake" {
						w.source.gate = make(chan struct{})
					}
					ctx, end := context.WithCancel(context.Background())
					defer end()
					outcome := make(chan error, 1)
					go func() { outcome <- w.Load(ctx, w.order(model), nil) }()
					synctest.Wait()
					cancel(w, end)
					if err := <-outcome; !errors.Is(err, engine.Cancelled) {
						t.Errorf("the load ended with %v", err)
					}
					synctest.Wait()
					if w.State() != tables.ShardUnloaded || w.source.opened() != 0 {
						t.Errorf("the shard is %s with %d engines", w.State(), w.source.opened())
					}
					w.source.gate = nil
					w.ready(t, "fake:seed=2")
				})
			})
		}
	}
}

// The load is cancelled when everything is done but the state: what has settled must leave, and the engine must go.
func TestCancelAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.tenants.moving = func() { w.CancelLoad() }
		if err := w.Load(context.Background(), w.order("fake"), nil); !errors.Is(err, engine.Cancelled) {
			t.Errorf("the load ended with %v", err)
		}
		if s := w.Status(); s.State != tables.ShardUnloaded || s.Loaded != nil || s.Impossible != 0 || w.source.opened() != 0 {
			t.Errorf("%s with %d engines and %d impossible events", s.State, w.source.opened(), s.Impossible)
		}
		w.tenants.moving = nil
		w.ready(t, "fake")
	})
}

func TestLostEngineIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake:script=probe 2 lost") // the second probe is the first in service
		before := w.Instance()
		w.tenants.come(2)
		replaced := func(old [16]byte) func(Status) bool {
			return func(s Status) bool { return s.State == tables.ShardReady && s.Instance != old }
		}
		w.until(t, replaced(before))
		if w.Instance() == before || len(w.tenants.settled) != 2 || w.source.opened() != 1 {
			t.Errorf("instance changed: %t, settled %d, open %d", w.Instance() != before, len(w.tenants.settled), w.source.opened())
		}
		if got := w.tenants.heard(); !slices.Equal(got, []workerpb.ErrorCode{workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT}) {
			t.Errorf("sessions heard %v", got)
		}
		w.tenants.settled[0].Lost(engine.EngineFault) // late news of the old engine
		if s := w.Status(); !s.Ready {
			t.Errorf("late news made it %s: %v", s.State, s.Err)
		}
		second := w.Instance()
		w.tenants.settled[1].Lost(errors.New("a batch failed"))
		w.until(t, replaced(second))
	})
}

func TestRestartThatFails(t *testing.T) {
	for name, tt := range map[string]struct {
		model string
		twist byte
		want  error
	}{
		"load fails":    {"fake:script=load 2+ fail ENGINE_OUT_OF_MEMORY", 0, engine.EngineOutOfMemory},
		"lost again":    {"fake:script=load 2+ lost", 0, engine.EngineFault},
		"other content": {"fake", 1, engine.ShardMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.end(t)
				w.ready(t, tt.model)
				w.source.mu.Lock()
				w.source.twist = tt.twist
				w.source.mu.Unlock()
				w.tenants.settled[0].Lost(engine.EngineFault)
				s := w.until(t, in(tables.ShardFailed))
				if !errors.Is(s.Err, tt.want) || s.Ready {
					t.Errorf("failed with %v, want %v", s.Err, tt.want)
				}
			})
		})
	}
}

func TestDrainEndsWithTheLastSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake")
		w.tenants.come(1)
		begin := time.Now()
		status, err := w.Drain(-1)
		if err != nil || status.State != tables.ShardDraining || status.DrainLeft != time.Minute || status.Ready {
			t.Fatalf("status %+v, %v", status, err)
		}
		time.AfterFunc(7*time.Second, w.tenants.goAway)
		if err := w.Unloaded(context.Background()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 7*time.Second {
			t.Errorf("drained after %s", took)
		}
		if got := w.tenants.heard(); len(got) != 0 {
			t.Errorf("sessions that ended themselves were evicted with %v", got)
		}
		if n := w.source.opened(); n != 0 {
			t.Errorf("%d engines are open when the shard says it is unloaded", n)
		}
	})
}

func TestShorterDrainWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake")
		w.tenants.come(1)
		begin := time.Now()
		for _, budget := range []time.Duration{30 * time.Second, 10 * time.Second, 20 * time.Second} {
			if _, err := w.Drain(budget); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Unloaded(context.Background()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 10*time.Second {
			t.Errorf("drained after %s, want 10s", took)
		}
		if got := w.tenants.heard(); !slices.Equal(got, []workerpb.ErrorCode{workerpb.ErrorCode_ERROR_CODE_DRAINING}) {
			t.Errorf("the session heard %v", got)
		}
		if got := w.tenants.drains; !slices.Equal(got, []time.Duration{30 * time.Second, 10 * time.Second, 10 * time.Second}) {
			t.Errorf("sessions were told %v", got)
		}
	})
}

func TestUnloadIsAtOnceAndIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake")
		w.tenants.come(1)
		begin := time.Now()
		for range 2 {
			if err := w.Unload(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if w.State() != tables.ShardUnloaded || time.Since(begin) != 0 {
			t.Errorf("%s after %s", w.State(), time.Since(begin))
		}
		if got := w.tenants.heard(); !slices.Equal(got, []workerpb.ErrorCode{workerpb.ErrorCode_ERROR_CODE_DRAINING}) {
			t.Errorf("the session heard %v", got)
		}
	})
}

func TestLossWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake")
		w.tenants.come(1)
		if _, err := w.Drain(-1); err != nil {
			t.Fatal(err)
		}
		w.tenants.settled[0].Lost(engine.EngineFault)
		if err := w.Unloaded(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // past the drain's deadline
		if s := w.Status(); s.State != tables.ShardUnloaded || s.Impossible != 0 {
			t.Errorf("%s with %d impossible events", s.State, s.Impossible)
		}
	})
}

// A frozen engine must not freeze the answer, and one missed probe must not change it.
func TestReadinessOfAFrozenEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake:script=probe 2 stuck; probe 4+ stuck")
		begin := time.Now()
		s := w.until(t, func(s Status) bool { return !s.Ready })
		// Passed at 0, missed at 10, passed at 20, missed at 30 and 40: stale 25 s after the last pass.
		if took := time.Since(begin); took != 2*interval+staleAfter(w.options) {
			t.Errorf("not ready after %s", took)
		}
		if !errors.Is(s.Err, code(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY)) || s.State != tables.ShardReady {
			t.Errorf("%s with %v", s.State, s.Err)
		}
	})
}

func TestProbeThatFailsAndPassesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake:script=probe 3 nan")
		begin := time.Now()
		w.until(t, func(s Status) bool { return !s.Ready })
		if took := time.Since(begin); took != 2*interval {
			t.Errorf("not ready after %s", took)
		}
		w.until(t, func(s Status) bool { return s.Ready })
		if took := time.Since(begin); took != 3*interval {
			t.Errorf("ready again after %s", took)
		}
	})
}

// stubborn is an engine whose Close waits for the test.
type stubborn struct {
	engine.ShardEngine
	rest chan struct{}
}

func (s stubborn) Close() error {
	<-s.rest
	return s.ShardEngine.Close()
}

func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.ready(t, "fake")
		rest := make(chan struct{})
		w.mu.Lock()
		w.loaded.Engine = stubborn{w.loaded.Engine, rest}
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if err := w.Close(ctx); !errors.Is(err, code(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED)) {
			t.Errorf("close said %v", err)
		}
		close(rest)
		w.end(t)
	})
}

func TestCloseEvictsBeforeTheEngineGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.ready(t, "fake")
		w.tenants.come(1)
		w.end(t)
		if got := w.tenants.heard(); !slices.Equal(got, []workerpb.ErrorCode{workerpb.ErrorCode_ERROR_CODE_DRAINING}) {
			t.Errorf("the session heard %v", got)
		}
	})
}

func TestCloseStopsALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		outcome := make(chan error, 1)
		go func() { outcome <- w.Load(context.Background(), w.order("fake:script=load stuck"), nil) }()
		synctest.Wait()
		w.end(t)
		if err := <-outcome; !errors.Is(err, engine.Cancelled) {
			t.Errorf("the load ended with %v", err)
		}
	})
}
