package live

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// apply carries out effects, and returns the outcomes of work that the scheduler did not take. The caller holds mu.
func (s *Session) apply(effects []session.Effect) (failed []session.Outcome) {
	slow, widen := false, uint64(0)
	for _, e := range effects {
		switch e := e.(type) {
		case session.Up:
			slow = !s.send(e.Message) || slow
		case session.EndUp:
			s.endUp(e.Err)
		case session.Attach:
			s.attach()
		case session.Refuse:
			s.directory.Refuse(s.offering, e.Err)
		case session.Dial:
			s.address = e.Address
			e.Open.CacheDomain = s.domain.below()
			s.link = s.directory.options.Dialer.Open(e.Address, e.Open, e.Open.GetBudget().AsDuration(), s)
		case session.Down:
			if s.link != nil && !s.link.Send(e.Message, e.Control) {
				slow = true
			}
		case session.DialRing:
			s.tokens = s.directory.options.Dialer.Ring(e.Address, e.Hello)
		case session.RingOut:
			if s.tokens != nil {
				s.tokens.Send(e.Token)
			}
		case session.RungFirst:
			s.rungFirst()
		case session.HangUp:
			s.hangUp()
		case session.Submit:
			if o, failedAtOnce := s.submit(e.Work); failedAtOnce {
				failed = append(failed, o)
			}
		case session.StopWork:
			s.residence.scheduler.Cancel(s.seat)
		case session.Keep:
			s.residence.prefixes.keep(s.domain, e.Kept)
		case session.Widen:
			widen += e.Bytes
		case session.FreeWindow:
			s.directory.freeWindow(s.window)
			s.window = 0
		case session.Metered:
			s.directory.used(e.Usage)
		case session.Gone:
			s.finish()
		case session.Impossible:
			s.impossible(e)
		}
	}
	if more := s.directory.widen(widen); more > 0 {
		s.window += more
		failed = append(failed, s.apply(s.core.Widened(time.Now(), more))...)
	}
	if slow && !s.over {
		failed = append(failed, s.apply(s.core.Violate(time.Now(), fault.New(workerpb.ErrorCode_ERROR_CODE_SLOW_CONSUMER,
			"more than %d messages or %d bytes wait to be sent", outboxLimit, s.directory.options.Stream())))...)
	}
	return failed
}

// send queues a response; it is false when too many wait.
func (s *Session) send(m *workerpb.SessionResponse) bool {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Opened:
		s.directory.opened()
		s.directory.options.Log.Info("session opened", "session", s.id.String(), "attempt", s.core.Attempt(),
			"cached", kind.Opened.GetCache().GetLength(), "hops", len(kind.Opened.GetHops()))
	case *workerpb.SessionResponse_StepFailed:
		s.directory.failed(kind.StepFailed.GetError().GetCode())
	case *workerpb.SessionResponse_Closed:
		s.directory.options.Observer.SessionClosed(kind.Closed.GetReason().String())
	}
	return s.upstream == nil || s.upstream.put(m)
}

// attach makes the stream whose Open is in hand the upstream.
func (s *Session) attach() {
	s.upstream = s.offering
	s.upstream.session = s
	s.upstream.attached.Store(s)
	s.domain = s.upstream.domain
	s.directory.freeWindow(s.window)
	s.window, s.offered = s.offered, 0
}

// endUp ends the stream to the upstream behind what is queued.
func (s *Session) endUp(err *fault.Error) {
	if err != nil {
		s.directory.failed(err.Code)
		s.directory.hearsay.missed(s.core.Route(), err)
		s.directory.options.Log.Warn("session ended", "session", s.id.String(), "attempt", s.core.Attempt(), "cause", err.Error())
	}
	if s.upstream != nil {
		s.upstream.finish(err)
		s.detach()
	}
}

func (s *Session) hangUp() {
	if s.link != nil {
		s.link.HangUp()
		s.link = nil
	}
}

// finish forgets the session.
func (s *Session) finish() {
	s.over = true
	s.count(0)
	s.endOpening()
	s.counted()
	s.hangUp()
	s.timer.Stop()
	s.directory.forget(s)
}

func (s *Session) impossible(e session.Impossible) {
	s.directory.options.Observer.Impossible(e.Table, e.State, e.Event)
	s.directory.options.Log.Error("impossible transition", "session", s.id.String(), "table", e.Table, "state", e.State, "event", e.Event)
	s.directory.mu.Lock()
	defer s.directory.mu.Unlock()
	s.directory.totals.impossible++
}
