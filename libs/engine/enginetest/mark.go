package enginetest

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// markCases: a checkpoint is a length that can be returned to, to the bit, until it is dropped.
func (s suite) markCases() []testCase {
	return []testCase{
		{"ability_is_legal", func(t *testing.T) {
			can := s.load(t, engine.LayerRange{}).info.Cache
			switch {
			case can.Truncate < engine.TruncateAny || can.Truncate > engine.TruncateNone, can.Copy < engine.CopyPrefix || can.Copy > engine.CopyWhole:
				t.Errorf("the ability %+v is none", can)
			case can.Truncate != engine.TruncateAny && can.Marks == 0:
				t.Error("a cache that does not go back to any length holds no mark")
			case can.Truncate != engine.TruncateAny && can.Copy == engine.CopyPrefix:
				t.Error("any length can be copied and not every one be gone back to")
			}
		}},
		{"unknown_session", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			_, err := sh.Mark(t.Context(), sessionID(1))
			wantCode(t, err, engine.SessionUnknown)
			_, err = sh.Unmark(t.Context(), sessionID(1), 3)
			wantCode(t, err, engine.SessionUnknown)
		}},
		{"0_needs_none_and_a_length_has_one", s.marksOnce},
		{"up_to_the_bound", s.marksBound},
		{"going_back_drops_those_behind", s.marksBehind},
		{"returns_to_each_with_the_same_bits", s.marksReturn},
		{"what_is_out_of_reach_is_refused_before_anything_changes", s.marksRefuse},
	}
}

// marking loads a shard whose caches hold marks, or skips.
func (s suite) marking(t *testing.T) *shard {
	t.Helper()
	sh := s.load(t, engine.LayerRange{})
	if sh.info.Cache.Marks == 0 {
		t.Skipf("without %s: the caches hold none, they go back to any length", HoldingMarks)
	}
	return sh
}

// mark takes one that must be taken.
func (sh *shard) mark(t *testing.T, session engine.SessionID) engine.CacheState {
	t.Helper()
	state, err := sh.Mark(t.Context(), session)
	if err != nil {
		t.Fatalf("Mark: %v", err)
	}
	checkState(t, state)
	if !holds(state.Reach, state.Length) {
		t.Fatalf("the reach %v does not hold the mark at %d", state.Reach, state.Length)
	}
	return state
}

func (s suite) marksOnce(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	session := sh.open(t, 1, 16)
	for range sh.info.Cache.Marks + 1 {
		sh.mark(t, session)
	}
	if sh.info.Cache.Marks == 0 {
		return
	}
	sh.one(t, sh.step(session, 0, sh.tokens(1, 3), engine.WantNone))
	for range sh.info.Cache.Marks + 1 {
		sh.mark(t, session)
	}
	if _, err := sh.Unmark(t.Context(), session, 2); err != nil {
		t.Errorf("Unmark where there is none: %v", err)
	}
	if state := sh.state(t, session); !holds(state.Reach, 3) {
		t.Errorf("Unmark at 2 dropped the mark at 3: %v", state.Reach)
	}
}

// marksBound fills the bound, finds the next one refused, and room again behind an Unmark.
func (s suite) marksBound(t *testing.T) {
	sh := s.marking(t)
	limit := sh.info.Cache.Marks
	if limit > 16 {
		t.Skipf("without %s: %d are more than this case fills", HoldingMarks, limit)
	}
	session := sh.open(t, 1, 32)
	tokens := sh.tokens(3, int(limit)+1)
	for i := range limit {
		sh.one(t, sh.step(session, engine.Pos(i), tokens[i:i+1], engine.WantNone))
		sh.mark(t, session)
	}
	sh.one(t, sh.step(session, engine.Pos(limit), tokens[limit:], engine.WantNone))
	before := sh.state(t, session)
	_, err := sh.Mark(t.Context(), session)
	wantCode(t, err, engine.NoCapacity)
	if now := sh.state(t, session); !reflect.DeepEqual(now, before) {
		t.Errorf("a mark that was refused made %+v of %+v", now, before)
	}
	if _, err := sh.Unmark(t.Context(), session, 1); err != nil {
		t.Fatalf("Unmark: %v", err)
	}
	sh.mark(t, session)
	if sh.info.Cache.Truncate == engine.TruncateNone {
		if state := sh.state(t, session); holds(state.Reach, 1) {
			t.Errorf("the reach %v still holds the mark that was dropped at 1", state.Reach)
		}
		_, err = sh.Truncate(t.Context(), session, 1)
		wantCode(t, err, engine.CacheMismatch)
	}
}

// marksBehind goes back over a mark: it is gone, and its room is free.
func (s suite) marksBehind(t *testing.T) {
	sh := s.marking(t)
	session := sh.open(t, 1, 48)
	for round := range sh.info.Cache.Marks + 1 {
		sh.one(t, sh.step(session, 0, sh.tokens(round, 3), engine.WantNone))
		sh.mark(t, session)
		sh.one(t, sh.step(session, 3, sh.tokens(round+9, 2), engine.WantNone))
		if state, err := sh.Truncate(t.Context(), session, 0); err != nil || state.Length != 0 {
			t.Fatalf("Truncate to 0: %v, %+v", err, state)
		}
	}
	sh.one(t, sh.step(session, 0, sh.tokens(7, 5), engine.WantNone))
	if sh.info.Cache.Truncate == engine.TruncateNone {
		if state := sh.state(t, session); holds(state.Reach, 3) {
			t.Errorf("the reach %v holds a mark of tokens that are gone", state.Reach)
		}
	}
}

// marksReturn marks the start of every step of the plan in turn, runs it to the end and returns: the same bits, twice.
func (s suite) marksReturn(t *testing.T) {
	sh := s.marking(t)
	want := sh.trace(t, 1)
	for back := 1; back < len(plan); back++ {
		if err := sh.Release(t.Context(), sessionID(1)); err != nil {
			t.Fatal(err)
		}
		session, c, at := sh.open(t, 1, 48), chain{sh}, engine.Pos(0)
		for i := range plan {
			if i == back {
				sh.mark(t, session)
			}
			sameBits(t, fmt.Sprintf("step %d of a session that is marked at step %d", i, back), c.next(t, session, &at, i), want[i])
		}
		sh.one(t, sh.step(session, at, sh.tokens(8, 20), engine.WantNone)) // so that a window moves on
		for range 2 {
			at = planStart(back)
			if state, err := sh.Truncate(t.Context(), session, at); err != nil || state.Length != at {
				t.Fatalf("Truncate to the mark at %d: %v, %+v", at, err, state)
			}
			for i := back; i < len(plan); i++ {
				sameBits(t, fmt.Sprintf("step %d after returning to the mark at step %d", i, back), c.next(t, session, &at, i), want[i])
			}
		}
	}
}

// marksRefuse asks for every length out of reach, with a mark in the middle, and then goes on as if nobody had asked.
func (s suite) marksRefuse(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	asked, plain := sh.open(t, 1, 48), sh.open(t, 2, 48)
	for _, session := range []engine.SessionID{asked, plain} {
		sh.one(t, sh.step(session, 0, sh.tokens(1, 9), engine.WantNone))
		if sh.info.Cache.Marks > 0 {
			sh.mark(t, session)
		}
		sh.one(t, sh.step(session, 9, sh.tokens(2, 20), engine.WantNone))
	}
	before := sh.state(t, asked)
	for length := range before.Length {
		if holds(before.Reach, length) {
			continue
		}
		_, err := sh.Truncate(t.Context(), asked, length)
		wantCode(t, err, engine.CacheMismatch)
		if now := sh.state(t, asked); !reflect.DeepEqual(now, before) {
			t.Fatalf("a refused Truncate to %d made %+v of %+v", length, now, before)
		}
	}
	got := sh.one(t, sh.step(asked, 29, sh.tokens(3, 1), engine.WantLogitsLast))
	want := sh.one(t, sh.step(plain, 29, sh.tokens(3, 1), engine.WantLogitsLast))
	sameBits(t, "logits after Truncates that were refused", got.Logits, want.Logits)
}
