package live

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// clocked is suspects whose clock the test sets.
func clocked() (*suspects, *time.Time) {
	now := time.Unix(1000, 0)
	s := newSuspects()
	s.now = func() time.Time { return now }
	return s, &now
}

func TestTwoFatalFaultsCondemn(t *testing.T) {
	key := []byte("key")
	for name, strike := range map[string]func(*suspects, who) bool{
		"two losses":       func(s *suspects, w who) bool { s.lost(w); s.lost(w); return true },
		"a loss, then OOM": func(s *suspects, w who) bool { s.lost(w); return s.struck(w, engine.EngineOutOfMemory) },
		"OOM, then OOM": func(s *suspects, w who) bool {
			return !s.struck(w, engine.EngineOutOfMemory) && s.struck(w, engine.EngineOutOfMemory)
		},
		"OOM, then a loss":   func(s *suspects, w who) bool { s.struck(w, engine.EngineOutOfMemory); s.lost(w); return true },
		"after passing once": func(s *suspects, w who) bool { s.lost(w); s.passed(w); s.lost(w); return true },
	} {
		s, _ := clocked()
		w := whoIs(engine.SessionID{1}, key)
		if !strike(s, w) || !(memory{s, w}).Condemned() {
			t.Errorf("%s: not condemned", name)
		}
		if f := (memory{s, w}).refusal(); f == nil || !errors.Is(f, engine.EngineFault) && !errors.Is(f, engine.EngineOutOfMemory) {
			t.Errorf("%s: refused with %v", name, f)
		}
		for _, other := range []who{whoIs(engine.SessionID{2}, key), whoIs(engine.SessionID{1}, []byte("other"))} {
			if (memory{s, other}).Condemned() || (memory{s, other}).refusal() != nil {
				t.Errorf("%s: another session is condemned too", name)
			}
		}
	}
}

func TestOneFaultIsNoneTooMany(t *testing.T) {
	s, now := clocked()
	w := whoIs(engine.SessionID{1}, nil)
	s.lost(w)
	s.struck(w, engine.NumericFault)
	if (memory{s, w}).Condemned() {
		t.Error("a NUMERIC_FAULT counts as the loss of an engine")
	}
	*now = now.Add(suspectedFor + time.Second)
	s.lost(w)
	if (memory{s, w}).Condemned() {
		t.Error("a fault of long ago counts")
	}
	if s.struck(w, engine.NumericFault) {
		t.Error("a NUMERIC_FAULT of long ago counts")
	}
	if !s.struck(w, engine.NumericFault) {
		t.Error("a second NUMERIC_FAULT on the same numerics is not final")
	}
}

func TestAloneUntilOnePassed(t *testing.T) {
	s, _ := clocked()
	w := whoIs(engine.SessionID{1}, nil)
	if s.alone(w) {
		t.Error("alone without a fault")
	}
	s.struck(w, engine.EngineOutOfMemory)
	if s.alone(w) {
		t.Error("alone after a fault that lost no engine")
	}
	s.lost(w)
	if !s.alone(w) {
		t.Error("not alone after the engine was lost")
	}
	s.passed(w)
	if s.alone(w) {
		t.Error("still alone after a batch that passed")
	}
}

// What is remembered is bounded; the session whose last fault is longest ago is forgotten first.
func TestSuspectsAreBounded(t *testing.T) {
	s, now := clocked()
	of := func(n int) who { return whoIs(engine.SessionID{}, binary.BigEndian.AppendUint32(nil, uint32(n))) }
	for n := range mostSuspects {
		*now = now.Add(time.Millisecond)
		s.lost(of(n))
	}
	*now = now.Add(time.Millisecond)
	s.lost(of(0))
	for n := range 10 {
		s.lost(of(mostSuspects + n))
	}
	if len(s.known) != mostSuspects || !(memory{s, of(0)}).Condemned() || s.alone(of(1)) || !s.alone(of(100)) {
		t.Errorf("%d are known", len(s.known))
	}
}

func TestARefusalIsFinal(t *testing.T) {
	s, _ := clocked()
	w := whoIs(engine.SessionID{1}, nil)
	s.lost(w)
	s.struck(w, engine.EngineOutOfMemory)
	if f := (memory{s, w}).refusal(); f.Code != workerpb.ErrorCode_ERROR_CODE_ENGINE_OUT_OF_MEMORY || f.Recovery != workerpb.Recovery_RECOVERY_NEVER || f.RetryAfter != 0 {
		t.Errorf("refused with %v, %v", f, f.Recovery)
	}
}
