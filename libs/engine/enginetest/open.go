package enginetest

import (
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (s suite) openCases() []testCase {
	limit := s.Request.ContextLimit
	return []testCase{
		{"as_many_as_asked_for_and_no_more", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			for n := range byte(s.Request.Sessions) {
				sh.open(t, n, limit)
			}
			wantCode(t, sh.Open(t.Context(), sessionID(200), 1), engine.NoCapacity)
			if err := sh.Release(t.Context(), sessionID(0)); err != nil {
				t.Fatal(err)
			}
			sh.open(t, 200, limit)
		}},
		{"more_than_the_limit", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			wantCode(t, sh.Open(t.Context(), sessionID(1), limit+1), engine.ContextOverflow)
			sh.open(t, 1, limit)
		}},
		{"no_tokens_at_all", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			wantCode(t, sh.Open(t.Context(), sessionID(1), 0), engine.Malformed)
		}},
		{"twice", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 8)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 3), engine.WantNone))
			wantCode(t, sh.Open(t.Context(), session, 8), engine.LifecycleViolation)
			sh.one(t, sh.step(session, 3, sh.tokens(2, 1), engine.WantNone))
		}},
		{"starts_empty_also_after_another", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 8)
			want := sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantLogitsLast))
			sh.one(t, sh.step(session, 4, sh.tokens(2, 2), engine.WantNone))
			if err := sh.Release(t.Context(), session); err != nil {
				t.Fatal(err)
			}
			session = sh.open(t, 2, 8)
			got := sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantLogitsLast))
			sameBits(t, "the logits of a session in a used slot", got.Logits, want.Logits)
		}},
		{"what_is_reserved_is_there", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			for n := range byte(s.Request.Sessions) {
				session := sh.open(t, n, limit)
				sh.fill(t, session, limit, s.Request.BatchTokens)
			}
		}},
		{"release_of_unknown_and_released", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 8)
			for range 2 {
				if err := sh.Release(t.Context(), session); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
			sh.refused(t, sh.step(session, 0, sh.tokens(1, 1), engine.WantNone), engine.SessionUnknown, 0)
			_, err := sh.Truncate(t.Context(), session, 0)
			wantCode(t, err, engine.SessionUnknown)
		}},
	}
}

// fill evaluates up to length tokens in steps of at most chunk rows, then one more, which must overflow.
func (sh *shard) fill(t *testing.T, session engine.SessionID, length, chunk uint32) {
	t.Helper()
	for at := uint32(0); at < length; {
		n := min(chunk, length-at)
		sh.one(t, sh.step(session, engine.Pos(at), sh.tokens(at, int(n)), engine.WantNone))
		at += n
	}
	sh.refused(t, sh.step(session, engine.Pos(length), sh.tokens(1, 1), engine.WantNone), engine.ContextOverflow, engine.Pos(length))
}
