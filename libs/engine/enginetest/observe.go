package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (s suite) observeCases() []testCase {
	return []testCase{
		{"features_have_a_status_and_a_reason", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			status := make(map[string]engine.FeatureStatus)
			for _, feature := range sh.Capabilities().Features {
				if _, twice := status[feature.Name]; twice {
					t.Errorf("feature %q stands twice", feature.Name)
				}
				status[feature.Name] = feature.Status
				if (feature.Reason == "") != (feature.Status == engine.FeatureOn) {
					t.Errorf("feature %+v: a reason goes with OFF and RESERVED and nothing else", feature)
				}
			}
			for _, name := range []string{engine.FeatureMultiTokenPrediction, engine.FeatureAuxiliaryState} {
				if status[name] != engine.FeatureReserved {
					t.Errorf("feature %q has status %d, want RESERVED", name, status[name])
				}
			}
			for _, name := range []string{engine.FeatureChat, engine.FeatureGrammar, engine.FeatureLogprobs} {
				if status[name] == 0 {
					t.Errorf("feature %q is not reported", name)
				}
			}
		}},
		{"probe_on_every_shard_changes_nothing", func(t *testing.T) {
			n := s.load(t, engine.LayerRange{}).info.NLayer
			for _, sh := range append(s.loadChain(t, n, s.cuts(n)[0]), s.load(t, engine.LayerRange{})) {
				want := sh.trace(t, 1)
				session := sh.open(t, 2, 24)
				c, at := chain{sh}, engine.Pos(0)
				// The sessions are all taken: the probe has a slot of its own.
				for free := byte(3); uint32(free) <= s.Request.Sessions; free++ {
					sh.open(t, free, 8)
				}
				for i := range plan {
					health, err := sh.Health(t.Context(), true)
					if err != nil || health.Took <= 0 {
						t.Fatalf("layers %s: probe %+v, %v", sh.info.Layers, health, err)
					}
					// Session 2 gets the tokens of session 1.
					id := sessionID(1)
					tokens := sh.tokens(uint32(id[15])<<8|uint32(i), plan[i])
					wants := []engine.Want{engine.WantLogitsAll, engine.WantLogitsLast}
					result := c.run(t, sh.step(session, at, tokens, wants[i%2]))
					at += engine.Pos(plan[i])
					got := result.Logits
					if !sh.info.Tail() {
						got = result.Boundary
					}
					sameBits(t, "a session between probes", got, want[i])
				}
			}
		}},
		{"shallow_health_takes_no_time", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			if health, err := sh.Health(t.Context(), false); err != nil || health.Took != 0 {
				t.Errorf("health %+v, %v", health, err)
			}
		}},
		{"never_wait_for_a_running_batch", s.needs(Slowness, func(t *testing.T) {
			sh := s.loadFrom(t, s.Slow, engine.LayerRange{})
			session := sh.open(t, 1, 48)
			done := sh.start(t.Context(), t, sh.step(session, 0, sh.tokens(1, 24), engine.WantNone))
			sh.Capabilities()
			sh.Metrics()
			sh.Cancel(sessionID(99))
			if _, err := sh.Health(t.Context(), false); err != nil {
				t.Errorf("shallow health during a batch: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, err := sh.Health(ctx, true); err != nil {
				wantCode(t, err, engine.DeadlineExceeded)
			}
			select {
			case <-done:
				t.Error("the batch was over before the observations were: they waited for it, or Slow is not slow")
			default:
			}
			sh.Cancel(session)
			sh.finish(t, done)
		})},
		{"metrics_count_and_never_fall", s.metrics},
	}
}

func (s suite) metrics(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	last := sh.Metrics()
	check := func(what string, change func(*engine.Metrics)) {
		t.Helper()
		want := last
		change(&want)
		now := sh.Metrics()
		if now.Compute < last.Compute {
			t.Errorf("%s: compute fell from %v to %v", what, last.Compute, now.Compute)
		}
		// How many native calls a batch takes is the engine's business; that there is one is not.
		if want.Batches > last.Batches && now.Batches <= last.Batches || now.Batches < last.Batches {
			t.Errorf("%s: batches went from %d to %d", what, last.Batches, now.Batches)
		}
		want.Compute, want.Batches = now.Compute, now.Batches
		if now != want {
			t.Errorf("%s: metrics are %+v, want %+v", what, now, want)
		}
		last = now
	}
	session := sh.open(t, 1, 16)
	check("open", func(m *engine.Metrics) { m.SessionsOpen++; m.CacheReserved += 16 })
	sh.one(t, sh.step(session, 0, sh.tokens(1, 5), engine.WantNone))
	check("a step of 5", func(m *engine.Metrics) { m.Batches++; m.Rows += 5 })
	sh.one(t, sh.step(session, 5, sh.tokens(1, 1), engine.WantSample))
	check("a sample", func(m *engine.Metrics) { m.Batches++; m.Rows++; m.Sampled++ })
	sh.refused(t, sh.step(session, 5, sh.tokens(1, 1), engine.WantNone), engine.CacheMismatch, 6)
	check("a failed step", func(m *engine.Metrics) { m.Failed++ })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sh.Step(ctx, []engine.Step{sh.step(session, 6, sh.tokens(1, 1), engine.WantNone)}); err != nil {
		t.Fatal(err)
	}
	check("a cancelled step", func(m *engine.Metrics) { m.Cancelled++ })
	if err := sh.Release(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	check("release", func(m *engine.Metrics) { m.SessionsOpen--; m.CacheReserved -= 16 })
}
