package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (s suite) cancelCases() []testCase {
	return []testCase{
		{"a_session_without_a_running_step", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			sh.Cancel(session)
			sh.Cancel(sessionID(99))
			sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantNone)) // a later step is not cancelled
		}},
		{"whatever_the_moment_the_result_is_true", s.cancelAtAnyMoment},
		{"ended_context_cancels_every_step", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			a, b := sh.open(t, 1, 16), sh.open(t, 2, 16)
			sh.one(t, sh.step(a, 0, sh.tokens(1, 3), engine.WantNone))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			steps := []engine.Step{sh.step(a, 3, sh.tokens(2, 2), engine.WantNone), sh.step(b, 0, sh.tokens(3, 2), engine.WantNone)}
			results, err := sh.Step(ctx, steps)
			if err != nil || len(results) != 2 {
				t.Fatalf("Step with an ended context: %v, %d results", err, len(results))
			}
			for i, want := range []engine.Pos{3, 0} {
				wantCode(t, results[i].Err, engine.Cancelled)
				if results[i].Cache.Length != want {
					t.Errorf("step %d left a cache of %d tokens, want %d", i, results[i].Cache.Length, want)
				}
			}
			for _, result := range sh.batch(t, steps...) {
				if result.Err != nil {
					t.Errorf("the same batch again: %v", result.Err)
				}
			}
		}},
		{"one_of_a_batch", s.needs(Slowness, s.cancelOneOfBatch)},
		{"all_of_a_batch", s.needs(Slowness, func(t *testing.T) {
			sh := s.loadFrom(t, s.Slow, engine.LayerRange{})
			session := sh.open(t, 1, 48)
			done := sh.start(t.Context(), t, sh.step(session, 0, sh.tokens(1, 24), engine.WantNone))
			sh.Cancel(session)
			sh.cancelled(t, done)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 2), engine.WantNone))
		})},
		{"context_ends_on_the_way", s.needs(Slowness, func(t *testing.T) {
			sh := s.loadFrom(t, s.Slow, engine.LayerRange{})
			session := sh.open(t, 1, 48)
			ctx, cancel := context.WithCancel(t.Context())
			done := sh.start(ctx, t, sh.step(session, 0, sh.tokens(1, 24), engine.WantNone))
			cancel()
			sh.cancelled(t, done)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 2), engine.WantNone))
		})},
		{"deadline_passes_on_the_way", s.needs(Slowness, func(t *testing.T) {
			sh := s.loadFrom(t, s.Slow, engine.LayerRange{})
			session := sh.open(t, 1, 48)
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			results, err := sh.Step(ctx, []engine.Step{sh.step(session, 0, sh.tokens(1, 24), engine.WantNone)})
			if time.Since(began) < 20*time.Millisecond {
				t.Error("Step returned before its deadline, or Slow is not slow")
			}
			if err != nil || len(results) != 1 {
				t.Fatalf("a batch whose deadline passed returned %v, %d results", err, len(results))
			}
			wantCode(t, results[0].Err, engine.Cancelled)
			if results[0].Cache.Length != 0 {
				t.Errorf("the step left %d tokens", results[0].Cache.Length)
			}
			sh.one(t, sh.step(session, 0, sh.tokens(1, 2), engine.WantNone))
		})},
		{"twice", s.needs(Slowness, func(t *testing.T) {
			sh := s.loadFrom(t, s.Slow, engine.LayerRange{})
			session := sh.open(t, 1, 48)
			done := sh.start(t.Context(), t, sh.step(session, 0, sh.tokens(1, 24), engine.WantNone))
			sh.Cancel(session)
			sh.Cancel(session)
			sh.cancelled(t, done)
		})},
	}
}

// cancelled checks that a batch of one was cancelled and left an empty cache.
func (sh *shard) cancelled(t *testing.T, done <-chan outcome) {
	t.Helper()
	o := sh.finish(t, done)
	if o.err != nil || len(o.results) != 1 {
		t.Fatalf("a cancelled batch returned %v, %d results", o.err, len(o.results))
	}
	wantCode(t, o.results[0].Err, engine.Cancelled)
	if o.results[0].Cache.Length != 0 {
		t.Errorf("the cancelled step left %d tokens", o.results[0].Cache.Length)
	}
}

func (s suite) cancelOneOfBatch(t *testing.T) {
	sh := s.loadFrom(t, s.Slow, engine.LayerRange{})
	a, b := sh.open(t, 1, 48), sh.open(t, 2, 48)
	done := sh.start(t.Context(), t,
		sh.step(a, 0, sh.tokens(1, 12), engine.WantLogitsLast),
		sh.step(b, 0, sh.tokens(2, 12), engine.WantLogitsLast))
	sh.Cancel(a)
	o := sh.finish(t, done)
	if o.err != nil || len(o.results) != 2 {
		t.Fatalf("the batch returned %v, %d results", o.err, len(o.results))
	}
	wantCode(t, o.results[0].Err, engine.Cancelled)
	if o.results[0].Cache.Length != 0 || o.results[1].Err != nil {
		t.Fatalf("the cancelled step left %d tokens; the other gave %v", o.results[0].Cache.Length, o.results[1].Err)
	}
	s.near(t, "logits beside a cancelled step", floats(o.results[1].Logits), sh.loneLogits(t, s, sh.tokens(2, 12)))
	sh.one(t, sh.step(a, 0, sh.tokens(1, 2), engine.WantNone))
}

// cancelAtAnyMoment cancels while a batch may run. Whether the cancel comes in time is not promised; that the result is true
// is: after CANCELLED the same step gives what it would have given, after success the cache holds it.
func (s suite) cancelAtAnyMoment(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	n := int(min(s.Request.BatchTokens, s.Request.ContextLimit-2))
	tokens, probe := sh.tokens(1, n), sh.tokens(2, 1)
	want := func() engine.Rows {
		session := sh.open(t, 9, s.Request.ContextLimit)
		sh.one(t, sh.step(session, 0, tokens, engine.WantNone))
		rows := sh.one(t, sh.step(session, engine.Pos(n), probe, engine.WantLogitsLast)).Logits
		if err := sh.Release(t.Context(), session); err != nil {
			t.Fatal(err)
		}
		return rows
	}()
	for range 20 {
		session := sh.open(t, 1, s.Request.ContextLimit)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					sh.Cancel(session)
				}
			}
		}()
		result := sh.batch(t, sh.step(session, 0, tokens, engine.WantNone))[0]
		close(stop)
		await(t, "the goroutine that cancels", stopped)
		if result.Err != nil {
			wantCode(t, result.Err, engine.Cancelled)
			if result.Cache.Length != 0 {
				t.Fatalf("a cancelled step left %d tokens", result.Cache.Length)
			}
			sh.one(t, sh.step(session, 0, tokens, engine.WantNone))
		}
		got := sh.one(t, sh.step(session, engine.Pos(n), probe, engine.WantLogitsLast))
		sameBits(t, "logits after a cancel", got.Logits, want)
		if err := sh.Release(t.Context(), session); err != nil {
			t.Fatal(err)
		}
	}
}
