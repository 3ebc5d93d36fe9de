package enginetest

import (
	"reflect"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// copyCases: a copy is what its source was, and neither touches the other.
func (s suite) copyCases() []testCase {
	return []testCase{
		{"refusals_change_nothing", s.copyRefusals},
		{"gives_the_same_bits_and_leaves_the_source", s.copyWhole},
		{"every_length_is_as_the_ability_says", s.copyEvery},
		{"marks_come_along", s.copyMarks},
		{"outlives_its_source", s.copyOutlives},
	}
}

func (s suite) copyRefusals(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	ctx := t.Context()
	_, err := sh.Copy(ctx, sessionID(1), sessionID(2), 0)
	wantCode(t, err, engine.SessionUnknown)
	from := sh.open(t, 1, 32)
	_, err = sh.Copy(ctx, from, sessionID(2), 0)
	wantCode(t, err, engine.SessionUnknown)
	to := sh.open(t, 2, 8)
	sh.one(t, sh.step(from, 0, sh.tokens(1, 12), engine.WantNone))
	before := sh.state(t, from)
	_, err = sh.Copy(ctx, from, to, 13)
	wantCode(t, err, engine.CacheMismatch)
	_, err = sh.Copy(ctx, from, to, 12)
	wantCode(t, err, engine.ContextOverflow)
	_, err = sh.Copy(ctx, from, from, 12)
	wantCode(t, err, engine.CacheMismatch)
	if now := sh.state(t, to); now.Length != 0 {
		t.Errorf("a refused copy left %d tokens", now.Length)
	}
	sh.one(t, sh.step(to, 0, sh.tokens(2, 3), engine.WantNone))
	held := sh.state(t, to)
	_, err = sh.Copy(ctx, from, to, 0)
	wantCode(t, err, engine.CacheMismatch)
	if now := sh.state(t, to); !reflect.DeepEqual(now, held) {
		t.Errorf("a refused copy made %+v of %+v", now, held)
	}
	if now := sh.state(t, from); !reflect.DeepEqual(now, before) {
		t.Errorf("refused copies made %+v of their source, which was %+v", now, before)
	}
}

// copyWhole goes on in the copy and in the source with other tokens: both give what they would have given alone.
func (s suite) copyWhole(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	first, a, b := sh.tokens(1, 11), sh.tokens(2, 1), sh.tokens(3, 1)
	alone := func(next []engine.TokenID) engine.Rows {
		session := sh.open(t, 9, 32)
		sh.one(t, sh.step(session, 0, first, engine.WantNone))
		result := sh.one(t, sh.step(session, 11, next, engine.WantLogitsLast))
		if err := sh.Release(t.Context(), session); err != nil {
			t.Fatal(err)
		}
		return result.Logits
	}
	wantA, wantB := alone(a), alone(b)
	from := sh.open(t, 1, 32)
	sh.one(t, sh.step(from, 0, first, engine.WantNone))
	before := sh.state(t, from)
	to := sh.open(t, 2, 32)
	state, err := sh.Copy(t.Context(), from, to, 11)
	if err != nil || state.Length != 11 {
		t.Fatalf("Copy: %v, %+v", err, state)
	}
	checkState(t, state)
	if now := sh.state(t, from); !reflect.DeepEqual(now, before) {
		t.Errorf("a copy made %+v of its source, which was %+v", now, before)
	}
	sameBits(t, "logits of the copy", sh.one(t, sh.step(to, 11, a, engine.WantLogitsLast)).Logits, wantA)
	sameBits(t, "logits of the source", sh.one(t, sh.step(from, 11, b, engine.WantLogitsLast)).Logits, wantB)
	if state, err := sh.Truncate(t.Context(), from, 0); err != nil || state.Length != 0 {
		t.Fatalf("Truncate of the source: %v, %+v", err, state)
	}
	if now := sh.state(t, to); now.Length != 12 {
		t.Errorf("the copy has %d tokens after its source went back, want 12", now.Length)
	}
}

// copyEvery tries every length of a source with a mark in the middle.
func (s suite) copyEvery(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	tokens, probe := sh.tokens(1, 29), sh.tokens(2, 1)
	from := sh.open(t, 1, 32)
	sh.one(t, sh.step(from, 0, tokens[:9], engine.WantNone))
	if sh.info.Cache.Marks > 0 {
		sh.mark(t, from)
	}
	sh.one(t, sh.step(from, 9, tokens[9:], engine.WantNone))
	reach := sh.state(t, from).Reach
	for length := range engine.Pos(30) {
		to := sh.open(t, 2, 32)
		state, err := sh.Copy(t.Context(), from, to, length)
		switch {
		case sh.info.Cache.Copy != engine.CopyPrefix && length < 29 && !holds(reach, length):
			wantCode(t, err, engine.CacheMismatch)
		case err != nil || state.Length != length:
			t.Errorf("Copy at %d within %v: %v, %+v", length, reach, err, state)
		case length > 0:
			got := sh.one(t, sh.step(to, length, probe, engine.WantLogitsLast))
			short := sh.open(t, 3, 32)
			sh.one(t, sh.step(short, 0, tokens[:length], engine.WantNone))
			want := sh.one(t, sh.step(short, length, probe, engine.WantLogitsLast))
			s.near(t, "logits of a copy", floats(got.Logits), floats(want.Logits))
			if err := sh.Release(t.Context(), short); err != nil {
				t.Fatal(err)
			}
		}
		if err := sh.Release(t.Context(), to); err != nil {
			t.Fatal(err)
		}
	}
}

func (s suite) copyMarks(t *testing.T) {
	sh := s.marking(t)
	tokens := sh.tokens(1, 29)
	from, to := sh.open(t, 1, 48), sh.open(t, 2, 48)
	sh.one(t, sh.step(from, 0, tokens[:9], engine.WantNone))
	sh.mark(t, from)
	want := sh.one(t, sh.step(from, 9, tokens[9:], engine.WantLogitsLast))
	state, err := sh.Copy(t.Context(), from, to, 29)
	if err != nil || !holds(state.Reach, 9) {
		t.Fatalf("Copy: %v, %+v, want the mark at 9", err, state)
	}
	if _, err := sh.Unmark(t.Context(), from, 9); err != nil { // a mark of the source alone
		t.Fatal(err)
	}
	if state, err := sh.Truncate(t.Context(), to, 9); err != nil || state.Length != 9 {
		t.Fatalf("Truncate of the copy to its mark: %v, %+v", err, state)
	}
	sameBits(t, "logits after returning to a mark in a copy", sh.one(t, sh.step(to, 9, tokens[9:], engine.WantLogitsLast)).Logits, want.Logits)
}

func (s suite) copyOutlives(t *testing.T) {
	sh := s.load(t, engine.LayerRange{})
	tokens := sh.tokens(1, 12)
	from, to := sh.open(t, 1, 32), sh.open(t, 2, 32)
	sh.one(t, sh.step(from, 0, tokens[:11], engine.WantNone))
	if _, err := sh.Copy(t.Context(), from, to, 11); err != nil {
		t.Fatal(err)
	}
	want := sh.one(t, sh.step(from, 11, tokens[11:], engine.WantLogitsLast))
	if err := sh.Release(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	other := sh.open(t, 3, 32)
	sh.one(t, sh.step(other, 0, sh.tokens(5, 20), engine.WantNone))
	sameBits(t, "logits of a copy whose source is gone", sh.one(t, sh.step(to, 11, tokens[11:], engine.WantLogitsLast)).Logits, want.Logits)
}
