package enginetest

import (
	"cmp"
	"runtime"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// lastingCases: what stays when much has come and gone.
func (s suite) lastingCases() []testCase {
	return []testCase{
		{"many_sessions_leave_nothing", s.churn},
		{"a_session_that_was_released_begins_anew", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			want := sh.trace(t, 1)
			if err := sh.Release(t.Context(), sessionID(1)); err != nil {
				t.Fatal(err)
			}
			session := sh.open(t, 1, 24)
			sh.refused(t, sh.step(session, planStart(len(plan)), sh.tokens(1, 1), engine.WantNone), engine.CacheMismatch, 0)
			c, at := chain{sh}, engine.Pos(0)
			for i := range plan {
				sameBits(t, "logits of a session that was opened again", c.next(t, session, &at, i), want[i])
			}
		}},
		{"a_new_engine_after_a_lost_one", s.needs(Losing, func(t *testing.T) {
			want := s.load(t, engine.LayerRange{}).trace(t, 1)
			old := s.loadFrom(t, s.Lost, engine.LayerRange{})
			session := old.open(t, 1, 24)
			_, err := old.Step(t.Context(), []engine.Step{old.step(session, 0, old.tokens(1, 2), engine.WantNone)})
			wantCode(t, err, engine.EngineFault)
			// The new one holds nothing of the old one's, whether that is closed yet or not.
			sh := s.load(t, engine.LayerRange{})
			sh.refused(t, sh.step(session, 0, sh.tokens(1, 1), engine.WantNone), engine.SessionUnknown, 0)
			if m := sh.Metrics(); m.SessionsOpen != 0 || m.CacheReserved != 0 {
				t.Errorf("a new engine counts %d sessions and %d reserved tokens", m.SessionsOpen, m.CacheReserved)
			}
			for i, got := range sh.trace(t, 1) {
				sameBits(t, "logits of a new engine", got, want[i])
			}
			if err := old.Close(); err != nil {
				t.Fatalf("Close of a lost engine: %v", err)
			}
			sh.trace(t, 2)
		})},
	}
}

// churn lets sessions come and go, some after a good step, some after a bad one, some after none, and adds up what they did.
func (s suite) churn(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	before, goroutines := sh.Metrics(), runtime.NumGoroutine()
	want := before
	for i := range cmp.Or(s.Churn, 10_000) {
		session := sh.open(t, byte(i), 16)
		switch i % 4 {
		case 0, 1:
			sh.one(t, sh.step(session, 0, sh.tokens(uint32(i), 2), engine.WantSample))
			want.Rows, want.Sampled = want.Rows+2, want.Sampled+1
			if i%4 == 1 {
				if _, err := sh.Truncate(t.Context(), session, 0); err != nil {
					t.Fatalf("session %d: Truncate: %v", i, err)
				}
			}
		case 2:
			sh.refused(t, sh.step(session, 1, sh.tokens(1, 1), engine.WantNone), engine.CacheMismatch, 0)
			want.Failed++
		}
		if err := sh.Release(t.Context(), session); err != nil {
			t.Fatalf("session %d: Release: %v", i, err)
		}
	}
	got := sh.Metrics()
	if got.Batches <= before.Batches || got.Compute < before.Compute {
		t.Errorf("batches went from %d to %d, compute from %v to %v", before.Batches, got.Batches, before.Compute, got.Compute)
	}
	want.Batches, want.Compute = got.Batches, got.Compute
	if got != want {
		t.Errorf("metrics are %+v, want %+v", got, want)
	}
	// An engine may keep a few for itself; one for each session it may not.
	if now := runtime.NumGoroutine(); now > goroutines+16 {
		t.Errorf("%d goroutines became %d", goroutines, now)
	}
	for n := range byte(s.Request.Sessions) { // all the room is there
		sh.open(t, n, s.Request.ContextLimit)
	}
}
