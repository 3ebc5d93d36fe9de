package live

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// Bounds of what is remembered of sessions that engines failed with, and how many faults are too many.
const (
	mostSuspects  = 1024
	suspectedFor  = 15 * time.Minute // since the last fault
	tooManyFaults = 2
)

// who is a session over its attempts: a hash of id and key.
type who [sha256.Size]byte

func whoIs(id engine.SessionID, key []byte) who {
	return sha256.Sum256(append(id[:], key...))
}

// suspects is what a directory remembers of sessions that engines failed with. It outlives shards and engines. Of too many
// the one whose last fault is longest ago is forgotten.
type suspects struct {
	now func() time.Time

	mu    sync.Mutex
	known map[who]*record
}

// record is one session's.
type record struct {
	last    time.Time
	fatal   int         // losses of the engine with a step of it in hand, and out-of-memory faults
	code    engine.Code // of the last of them
	numeric bool        // it had a NUMERIC_FAULT
	alone   bool        // it was in the batch in which an engine was lost, and has not passed one alone since
}

func newSuspects() *suspects { return &suspects{now: time.Now, known: map[who]*record{}} }

// of returns what is remembered; nil: nothing. The caller holds mu.
func (s *suspects) of(w who) *record {
	r := s.known[w]
	if r != nil && s.now().Sub(r.last) > suspectedFor {
		delete(s.known, w)
		return nil
	}
	return r
}

// note returns the record of a session that has just met a fault. The caller holds mu.
func (s *suspects) note(w who) *record {
	r := s.of(w)
	if r == nil {
		if len(s.known) >= mostSuspects {
			s.forgetOldest()
		}
		r = &record{}
		s.known[w] = r
	}
	r.last = s.now()
	return r
}

func (s *suspects) forgetOldest() {
	var oldest who
	var at time.Time
	for w, r := range s.known {
		if at.IsZero() || r.last.Before(at) {
			oldest, at = w, r.last
		}
	}
	delete(s.known, oldest)
}

// lost notes that an engine was lost in a call for the session.
func (s *suspects) lost(w who) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.note(w)
	r.fatal, r.code, r.alone = r.fatal+1, engine.EngineFault, true
}

// struck notes a fault that ends no engine, and says whether it was once too often.
func (s *suspects) struck(w who, code engine.Code) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.note(w)
	if code == engine.NumericFault {
		again := r.numeric // the numerics of one worker are equal
		r.numeric = true
		return again
	}
	r.fatal, r.code = r.fatal+1, code
	return r.fatal >= tooManyFaults
}

// passed notes that the engine has lived through a batch of the session alone.
func (s *suspects) passed(w who) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.of(w); r != nil {
		r.alone = false
	}
}

// alone says whether the session must be alone in a batch.
func (s *suspects) alone(w who) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.of(w)
	return r != nil && r.alone
}

// condemned is the code of the fault that a session had once too often; empty: none.
func (s *suspects) condemned(w who) engine.Code {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.of(w); r != nil && r.fatal >= tooManyFaults {
		return r.code
	}
	return ""
}

// memory is session.Memory for one session.
type memory struct {
	suspects *suspects
	who      who
}

func (m memory) Struck(code engine.Code) bool { return m.suspects.struck(m.who, code) }
func (m memory) Condemned() bool              { return m.suspects.condemned(m.who) != "" }

// refusal is why a session may not open any more; nil: it may.
func (m memory) refusal() *fault.Error {
	code := m.suspects.condemned(m.who)
	if code == "" {
		return nil
	}
	return session.Final(fault.FromEngine(engine.Errorf(code, "this session met such faults %d times here and is not taken again", tooManyFaults)))
}
