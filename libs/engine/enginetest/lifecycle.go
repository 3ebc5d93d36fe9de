package enginetest

import (
	"context"
	"reflect"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// calls are the calls that a state may refuse.
func (sh *shard) calls(ctx context.Context) map[string]func() error {
	session := sessionID(1)
	return map[string]func() error{
		"open": func() error { return sh.Open(ctx, session, 8) },
		"step": func() error {
			_, err := sh.Step(ctx, []engine.Step{{Session: session, Tokens: []engine.TokenID{1}}})
			return err
		},
		"truncate": func() error { _, err := sh.Truncate(ctx, session, 0); return err },
		"mark":     func() error { _, err := sh.Mark(ctx, session); return err },
		"unmark":   func() error { _, err := sh.Unmark(ctx, session, 0); return err },
		"copy":     func() error { _, err := sh.Copy(ctx, session, sessionID(2), 0); return err },
		"health":   func() error { _, err := sh.Health(ctx, false); return err },
		"probe":    func() error { _, err := sh.Health(ctx, true); return err },
		"tokenize": func() error { _, err := sh.text.Tokenize(ctx, "a", true, false); return err },
		"detokenize": func() error {
			_, err := sh.text.Detokenize(ctx, []engine.TokenID{1}, false)
			return err
		},
	}
}

func (sh *shard) refusesAll(t *testing.T, code engine.Code) {
	t.Helper()
	for name, call := range sh.calls(t.Context()) {
		t.Run(name, func(t *testing.T) { wantCode(t, call(), code) })
	}
}

// answersAlways makes the calls that are allowed in every state.
func (sh *shard) answersAlways(t *testing.T, loaded bool) {
	t.Helper()
	sh.Cancel(sessionID(1))
	sh.Metrics()
	if got := sh.Capabilities(); (got.Shard != nil) != loaded || got.Name == "" {
		t.Errorf("capabilities %+v; loaded is %v", got, loaded)
	}
}

func (s suite) lifecycleCases() []testCase {
	return []testCase{
		{"new_refuses_all_but_load", func(t *testing.T) {
			sh := fresh(t, s.Factory)
			sh.answersAlways(t, false)
			sh.refusesAll(t, engine.LifecycleViolation)
			if err := sh.Release(t.Context(), sessionID(1)); err != nil {
				t.Errorf("Release in New: %v, want nothing", err)
			}
			if sh.Metrics() != (engine.Metrics{}) {
				t.Errorf("metrics of a new engine are %+v", sh.Metrics())
			}
		}},
		{"loaded_refuses_load", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			sh.answersAlways(t, true)
			_, err := sh.Load(t.Context(), s.request(engine.LayerRange{}), nil)
			wantCode(t, err, engine.LifecycleViolation)
			session := sh.open(t, 1, 8)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantNone))
		}},
		{"closed_refuses_all", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			sh.open(t, 1, 8)
			for range 2 {
				if err := sh.Close(); err != nil {
					t.Fatalf("Close: %v", err)
				}
			}
			sh.answersAlways(t, false)
			sh.refusesAll(t, engine.LifecycleViolation)
			_, err := sh.Load(t.Context(), s.request(engine.LayerRange{}), nil)
			wantCode(t, err, engine.LifecycleViolation)
			if err := sh.Release(t.Context(), sessionID(1)); err != nil {
				t.Errorf("Release in Closed: %v, want nothing", err)
			}
		}},
		{"close_in_new", func(t *testing.T) {
			sh := fresh(t, s.Factory)
			if err := sh.Close(); err != nil {
				t.Fatalf("Close: %v", err)
			}
			sh.refusesAll(t, engine.LifecycleViolation)
		}},
		{"failed_load_leaves_new", func(t *testing.T) {
			sh := fresh(t, s.Factory)
			bad := s.request(engine.LayerRange{})
			bad.Threads = 0
			_, err := sh.Load(t.Context(), bad, nil)
			wantCode(t, err, engine.Malformed)
			sh.answersAlways(t, false)
			sh.loadAgain(t, s)
		}},
		{"cancelled_load_leaves_new", func(t *testing.T) {
			sh := fresh(t, s.Factory)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err := sh.Load(ctx, s.request(engine.LayerRange{}), nil)
			wantCode(t, err, engine.Cancelled)
			sh.answersAlways(t, false)
			sh.loadAgain(t, s)
		}},
		{"load_cancelled_on_the_way_leaves_new", func(t *testing.T) {
			sh := fresh(t, s.Factory)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err := sh.Load(ctx, s.request(engine.LayerRange{}), func(engine.LoadProgress) { cancel() })
			wantCode(t, err, engine.Cancelled)
			sh.answersAlways(t, false)
			sh.loadAgain(t, s)
		}},
		{"capabilities_show_what_load_returned", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			if got := sh.Capabilities().Shard; got == nil || !reflect.DeepEqual(*got, sh.info) {
				t.Errorf("capabilities show %+v, Load returned %+v", got, sh.info)
			}
		}},
		{"engines_of_one_factory_are_apart", func(t *testing.T) {
			a, b := s.load(t, engine.LayerRange{}), s.load(t, engine.LayerRange{})
			session := a.open(t, 1, 8)
			b.open(t, 1, 8)
			a.one(t, a.step(session, 0, a.tokens(1, 4), engine.WantNone))
			b.refused(t, b.step(session, 4, b.tokens(1, 1), engine.WantNone), engine.CacheMismatch, 0)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			b.one(t, b.step(session, 0, b.tokens(1, 4), engine.WantNone))
		}},
	}
}

// loadAgain loads an engine whose load failed before.
func (sh *shard) loadAgain(t *testing.T, s suite) {
	t.Helper()
	info, err := sh.Load(t.Context(), s.request(engine.LayerRange{}), nil)
	if err != nil {
		t.Fatalf("Load after a failed one: %v", err)
	}
	sh.info = info
	session := sh.open(t, 1, 8)
	sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantNone))
}
