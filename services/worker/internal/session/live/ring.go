package live

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// Ring is the stream of a tail's duplicate tokens, seen from the head's session. It belongs to one attempt and ends with it.
type Ring struct {
	session *Session
	over    chan struct{} // closed once its attempt is over
	first   uint64        // tokens that it brought before the chain; guarded by session.mu
}

// Ring joins a stream with the attempt that its hello names.
//
// Errors: MALFORMED, UNSUPPORTED_FEATURE (this worker offers no ring), SESSION_UNKNOWN, PERMISSION_DENIED, STALE_ATTEMPT,
// LIFECYCLE_VIOLATION (the attempt has no ring, or one already). None of them changes anything.
func (d *Directory) Ring(h *workerpb.RingHello) (*Ring, *fault.Error) {
	r, err := d.ring(h)
	if err != nil {
		d.failed(err.Code)
	}
	return r, err
}

func (d *Directory) ring(h *workerpb.RingHello) (*Ring, *fault.Error) {
	if err := session.CheckRingHello(h); err != nil {
		return nil, err
	}
	if d.options.Ring == "" {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "worker %s offers no ring", d.options.WorkerID)
	}
	id := engine.SessionID(h.GetSessionId())
	d.mu.Lock()
	s := d.sessions[id]
	d.mu.Unlock()
	if s == nil {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SESSION_UNKNOWN, "session %v", id)
	}
	return s.ring(h)
}

func (s *Session) ring(h *workerpb.RingHello) (*Ring, *fault.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SESSION_UNKNOWN, "session %v", s.id)
	}
	if err := s.core.MayRing(h); err != nil {
		return nil, err
	}
	if s.rung != nil {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION, "attempt %d of session %v has its ring already", h.GetAttempt(), s.id)
	}
	s.rung = &Ring{session: s, over: make(chan struct{})}
	return s.rung, nil
}

// Over is closed once the attempt is over.
func (r *Ring) Over() <-chan struct{} { return r.over }

// Take takes a token. What is wrong with it ends the ring, not the session.
//
// Errors: MALFORMED.
func (r *Ring) Take(t *workerpb.RingToken) *fault.Error {
	s := r.session
	if err := session.CheckRingToken(s.residence.hop, t); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rung == r {
		s.do(func(now time.Time) []session.Effect { return s.core.Ring(now, t) })
	}
	return nil
}

// Leave ends the ring from its own side and returns how many tokens it brought before the chain did.
func (r *Ring) Leave() uint64 {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	if r.session.rung == r {
		r.session.rung = nil
	}
	return r.first
}

// rungFirst counts a token that the ring brought before the chain. The caller holds mu.
func (s *Session) rungFirst() {
	s.rung.first++
	s.directory.options.Observer.RungFirst()
}

// detach gives up the upstream, and with it what belongs to its attempt: the rings. The caller holds mu.
func (s *Session) detach() {
	s.upstream = nil
	if s.rung != nil {
		close(s.rung.over)
		s.rung = nil
	}
	if s.tokens != nil {
		s.tokens.End()
		s.tokens = nil
	}
}
