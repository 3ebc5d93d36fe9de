package enginetest

import (
	"context"
	"math"
	"sync"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (s suite) closeCases() []testCase {
	return []testCase{
		{"twice_and_from_many_goroutines", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantNone))
			var group sync.WaitGroup
			for range 4 {
				group.Go(func() {
					if err := sh.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
			}
			within(t, "Close", group.Wait)
		}},
		{"while_a_batch_runs", s.needs(Slowness, func(t *testing.T) {
			sh := s.loadFrom(t, s.Slow, engine.LayerRange{})
			session := sh.open(t, 1, 48)
			done := sh.start(t.Context(), t, sh.step(session, 0, sh.tokens(1, 24), engine.WantNone))
			within(t, "Close during a batch", func() {
				if err := sh.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			// Close waits until the batch is at rest, so its end is near.
			if o := sh.finish(t, done); o.err == nil {
				wantCode(t, o.results[0].Err, engine.Cancelled)
			} else {
				wantCode(t, o.err, engine.Cancelled, engine.LifecycleViolation)
			}
			_, err := sh.Step(t.Context(), []engine.Step{sh.step(session, 0, sh.tokens(1, 1), engine.WantNone)})
			wantCode(t, err, engine.LifecycleViolation)
		})},
		{"the_observers_may_go_on", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			stop := make(chan struct{})
			end := sync.OnceFunc(func() { close(stop) })
			defer end()
			var group sync.WaitGroup
			for range 2 {
				group.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						sh.Capabilities()
						sh.Metrics()
						sh.Cancel(sessionID(99))
						_, _ = sh.Health(t.Context(), false)
					}
				})
			}
			sh.trace(t, 1)
			if err := sh.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			end()
			within(t, "the observers", group.Wait)
		}},
	}
}

// faultCases: what an engine says when it breaks.
func (s suite) faultCases() []testCase {
	return []testCase{
		{"lost_answers_engine_fault_until_closed", s.needs(Losing, func(t *testing.T) {
			sh := s.loadFrom(t, s.Lost, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			results, err := sh.Step(t.Context(), []engine.Step{sh.step(session, 0, sh.tokens(1, 2), engine.WantNone)})
			wantCode(t, err, engine.EngineFault)
			if results != nil {
				t.Errorf("a lost engine has results %v", results)
			}
			sh.answersAlways(t, false)
			sh.refusesAll(t, engine.EngineFault)
			_, err = sh.Load(t.Context(), s.request(engine.LayerRange{}), nil)
			wantCode(t, err, engine.EngineFault, engine.LifecycleViolation)
			if m := sh.Metrics(); m.SessionsOpen != 0 || m.CacheReserved != 0 {
				t.Errorf("a lost engine counts %d sessions", m.SessionsOpen)
			}
			if err := sh.Close(); err != nil {
				t.Fatalf("Close of a lost engine: %v", err)
			}
			sh.refusesAll(t, engine.LifecycleViolation)
		})},
		{"nan_is_told_and_undone", s.needs(ComputingNaN, func(t *testing.T) {
			sh := s.loadFrom(t, s.NaN, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			sh.refused(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantLogitsLast), engine.NumericFault, 0)
			got := sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantLogitsLast))
			s.near(t, "logits after a numeric fault", floats(got.Logits), sh.loneLogits(t, s, sh.tokens(1, 4)))
		})},
		{"nan_from_upstream_does_not_stay", func(t *testing.T) {
			n := s.load(t, engine.LayerRange{}).info.NLayer
			tail := s.load(t, engine.LayerRange{First: s.cuts(n)[0]})
			session := tail.open(t, 1, 16)
			want := tail.one(t, tail.step(session, 0, tail.tokens(1, 4), engine.WantLogitsAll))
			if _, err := tail.Truncate(context.WithoutCancel(t.Context()), session, 0); err != nil {
				t.Fatal(err)
			}
			step := tail.step(session, 0, tail.tokens(1, 4), engine.WantLogitsAll)
			bits := math.Float32bits(float32(math.NaN()))
			copy(step.Boundary.Data, []byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)})
			tail.refused(t, step, engine.NumericFault, 0)
			got := tail.one(t, tail.step(session, 0, tail.tokens(1, 4), engine.WantLogitsAll))
			sameBits(t, "logits after a NaN from upstream", got.Logits, want.Logits)
		}},
	}
}
