package enginetest

import (
	"fmt"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// truncateCases: a cache goes back exactly or not at all.
func (s suite) truncateCases() []testCase {
	return []testCase{
		{"at_or_above_the_length_does_nothing", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 16)
			sh.one(t, sh.step(session, 0, sh.tokens(1, 4), engine.WantNone))
			for _, length := range []engine.Pos{4, 5, 1 << 31} {
				state, err := sh.Truncate(t.Context(), session, length)
				if err != nil || state.Length != 4 {
					t.Errorf("Truncate to %d of 4: %v, %+v", length, err, state)
				}
			}
			sh.one(t, sh.step(session, 4, sh.tokens(2, 1), engine.WantNone))
		}},
		{"unknown_session", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			_, err := sh.Truncate(t.Context(), sessionID(1), 0)
			wantCode(t, err, engine.SessionUnknown)
		}},
		{"0_is_always_reachable", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			want := sh.trace(t, 1)
			if state, err := sh.Truncate(t.Context(), sessionID(1), 0); err != nil || state.Length != 0 {
				t.Fatalf("Truncate to 0: %v, %+v", err, state)
			}
			c, at := chain{sh}, engine.Pos(0)
			for i := range plan {
				sameBits(t, fmt.Sprintf("step %d after going back to 0", i), c.next(t, sessionID(1), &at, i), want[i])
			}
		}},
		{"every_step_boundary_within_reach_is_exact", s.backToBoundaries},
		{"every_length_is_as_reach_says", s.backToEvery},
		{"a_full_context_goes_back_and_on", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			session := sh.open(t, 1, 12)
			sh.fill(t, session, 12, 4)
			state, err := sh.Truncate(t.Context(), session, 0)
			if err != nil || state.Length != 0 {
				t.Fatalf("Truncate to 0: %v, %+v", err, state)
			}
			sh.fill(t, session, 12, 5)
		}},
	}
}

// backToBoundaries goes back to the start of every step and runs the same steps again: the same bits.
func (s suite) backToBoundaries(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	want := sh.trace(t, 1)
	session, c := sessionID(1), chain{sh}
	for back := len(plan) - 1; back >= 0; back-- {
		at := planStart(back)
		state := sh.state(t, session)
		after, err := sh.Truncate(t.Context(), session, at)
		if !holds(state.Reach, at) {
			wantCode(t, err, engine.CacheMismatch)
			if now := sh.state(t, session); now.Length != state.Length {
				t.Fatalf("a refused Truncate left %d of %d tokens", now.Length, state.Length)
			}
			continue
		}
		if err != nil || after.Length != at {
			t.Fatalf("Truncate to %d within %v: %v, %+v", at, state.Reach, err, after)
		}
		checkState(t, after)
		for i := back; i < len(plan); i++ {
			sameBits(t, fmt.Sprintf("step %d after going back to %d", i, at), c.next(t, session, &at, i), want[i])
		}
	}
}

// backToEvery tries every length from a fresh session and compares with one that never went further.
func (s suite) backToEvery(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	length := planStart(len(plan))
	tokens := sh.tokens(5, int(length))
	probe := sh.tokens(6, 1)
	for back := range length {
		long := sh.open(t, 1, 32)
		sh.one(t, sh.step(long, 0, tokens, engine.WantNone))
		state := sh.state(t, long)
		_, err := sh.Truncate(t.Context(), long, back)
		switch {
		case !holds(state.Reach, back):
			wantCode(t, err, engine.CacheMismatch)
		case err != nil:
			t.Errorf("Truncate to %d within %v: %v", back, state.Reach, err)
		case back > 0:
			short := sh.open(t, 2, 32)
			sh.one(t, sh.step(short, 0, tokens[:back], engine.WantNone))
			got := sh.one(t, sh.step(long, back, probe, engine.WantLogitsLast))
			want := sh.one(t, sh.step(short, back, probe, engine.WantLogitsLast))
			s.near(t, fmt.Sprintf("logits after going back to %d", back), floats(got.Logits), floats(want.Logits))
		}
		for _, session := range []byte{1, 2} {
			if err := sh.Release(t.Context(), sessionID(session)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func planStart(step int) engine.Pos {
	var at engine.Pos
	for _, n := range plan[:step] {
		at += engine.Pos(n)
	}
	return at
}

// state is what a session's cache is: a Truncate beyond its end changes nothing.
func (sh *shard) state(t *testing.T, session engine.SessionID) engine.CacheState {
	t.Helper()
	state, err := sh.Truncate(t.Context(), session, 1<<31)
	if err != nil {
		t.Fatal(err)
	}
	checkState(t, state)
	if !holds(state.Reach, 0) {
		t.Fatalf("the reach %v does not hold 0", state.Reach)
	}
	return state
}
