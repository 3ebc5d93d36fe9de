package shard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func TestRestartsComeEverLater(t *testing.T) {
	r := Restart{First: time.Second, Most: 5 * time.Second}
	for n, want := range []time.Duration{0, 1, 2, 4, 5, 5} {
		if got := r.delay(n); got != want*time.Second {
			t.Errorf("behind %d restarts the wait is %s, want %ds", n, got, want)
		}
	}
	if got := DefaultRestart().delay(1 << 30); got != DefaultRestart().Most {
		t.Errorf("the longest wait is %s", got)
	}
}

// An engine that is lost again and again is replaced ever later; one that served for long is replaced at once.
func TestLossesInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake")
		lose := func() time.Duration {
			began, before := time.Now(), w.Instance()
			s := w.Status()
			s.Loaded.Lost(engine.EngineFault)
			w.until(t, func(s Status) bool { return s.Ready && s.Instance != before })
			return time.Since(began)
		}
		restart := DefaultRestart()
		for n := range 4 {
			if took := lose(); took != restart.delay(n) {
				t.Errorf("loss %d: ready again after %s, want %s", n+1, took, restart.delay(n))
			}
		}
		time.Sleep(restart.Calm) // virtual
		if took := lose(); took != 0 {
			t.Errorf("a loss after a calm time: ready again after %s", took)
		}
	})
}

// What passes is tried again, ever later and so often; then the shard is FAILED.
func TestATryThatPasses(t *testing.T) {
	for _, tt := range []struct {
		model string
		state tables.ShardState
		after func(Restart) time.Duration
	}{
		{"fake:script=load 2 fail ENGINE_OUT_OF_MEMORY; load 3 lost", tables.ShardReady, func(r Restart) time.Duration { return r.delay(1) + r.delay(2) }},
		{"fake:script=load 2+ lost", tables.ShardFailed, func(r Restart) (sum time.Duration) {
			for n := range r.Tries {
				sum += r.delay(n + 1)
			}
			return sum
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.end(t)
			w.ready(t, tt.model)
			began, before := time.Now(), w.Instance()
			w.tenants.settled[0].Lost(engine.EngineFault)
			s := w.until(t, func(s Status) bool { return s.State == tables.ShardFailed || s.Ready && s.Instance != before })
			if took := time.Since(began); s.State != tt.state || took != tt.after(DefaultRestart()) {
				t.Errorf("%s: %s after %s", tt.model, s.State, took)
			}
		})
	}
}

// A wait for a restart ends with the load that waits.
func TestAWaitIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end(t)
		w.ready(t, "fake:script=load 2+ lost")
		w.tenants.settled[0].Lost(engine.EngineFault)
		synctest.Wait()
		began := time.Now()
		if err := w.Unload(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("unloaded after %s, %v", time.Since(began), err)
		}
	})
}
