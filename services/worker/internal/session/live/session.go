package live

import (
	"runtime/debug"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/batch"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// Session is one session that the worker holds.
type Session struct {
	directory *Directory
	residence *residence
	id        engine.SessionID
	memory    memory
	seat      engine.SessionID // its name in the engine
	domain    domain           // of the present attempt
	began     time.Time

	mu        sync.Mutex
	core      *session.Core
	upstream  *Upstream   // of the present attempt; nil: none
	offering  *Upstream   // whose message is in hand
	link      *chain.Link // to the next hop; nil: none
	address   string      // of the next hop
	rung      *Ring       // from the tail, where this hop is the head; nil: none
	tokens    *chain.Ring // to the head, where this hop is the tail; nil: none
	window    uint64      // bytes taken for the present attempt
	offered   uint64      // bytes taken for the Open in hand
	lingering time.Time   // since when; zero: not
	active    time.Time
	timer     *time.Timer
	buffered  uint64    // as the gauge knows it
	counted   func()    // gives the session back to its principal's quota
	opening   func()    // gives its opening back; nil: it is none
	armed     time.Time // when the timer fires; zero: it does not
	over      bool
}

func newSession(d *Directory, r *residence, id engine.SessionID, key []byte, counted func()) *Session {
	now := time.Now()
	m, seat := memory{d.suspects, whoIs(id, key)}, r.prefixes.seat()
	s := &Session{
		directory: d, residence: r, id: id, seat: seat, memory: m, began: now, active: now, counted: counted, core: session.New(r.hop, id, seat, key, m),
	}
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.timer.Stop()
	return s
}

// do hands one input to the core and carries out what it says. The caller holds mu. A panic ends this session alone.
func (s *Session) do(input func(now time.Time) []session.Effect) {
	defer func() {
		if p := recover(); p != nil {
			s.broken(p)
		}
	}()
	effects := input(time.Now())
	for {
		failed := s.apply(effects)
		if len(failed) == 0 {
			break
		}
		for _, o := range failed { // at most one: a session has one call at a time
			effects = s.core.Outcome(time.Now(), o)
		}
	}
	s.note()
	s.arm()
}

// broken gives up a session whose core panicked.
func (s *Session) broken(p any) {
	s.directory.options.Log.Error("a session panicked", "session", s.id.String(), "panic", p, "stack", string(debug.Stack()))
	for _, u := range []*Upstream{s.upstream, s.offering} {
		if u != nil {
			s.directory.Refuse(u, fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "session %v", s.id))
		}
	}
	s.detach()
	s.residence.scheduler.Cancel(s.seat)
	_ = s.residence.scheduler.Submit(&batch.Job{Kind: batch.Release, Session: s.seat}) // refused when nothing is left to release
	s.directory.freeWindow(s.window)
	s.finish()
}

// endOpening gives the opening back to the quota of who opens.
func (s *Session) endOpening() {
	if s.opening != nil {
		s.opening()
		s.opening = nil
	}
}

// note keeps what others look at.
func (s *Session) note() {
	s.count(s.core.Buffered())
	if s.core.State() != tables.SessionOpening {
		s.endOpening()
	}
	lingers := s.core.State() == tables.SessionLingering
	if lingers && s.lingering.IsZero() {
		s.lingering = time.Now()
	} else if !lingers {
		s.lingering = time.Time{}
	}
}

// count tells the gauge what is buffered.
func (s *Session) count(bytes uint64) {
	s.directory.options.Buffered.Add(int64(bytes) - int64(s.buffered))
	s.buffered = bytes
}

// arm sets the timer, if it would fire too late.
func (s *Session) arm() {
	at := s.core.Alarm()
	if s.over || at.IsZero() || !s.armed.IsZero() && !at.Before(s.armed) {
		return
	}
	s.armed = at
	s.timer.Reset(time.Until(at))
}

// tick is the timer's. An alarm that was put off in the meantime is set anew.
func (s *Session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = time.Time{}
	if s.over {
		return
	}
	now := time.Now()
	if at := s.core.Alarm(); !at.IsZero() && !now.Before(at) {
		s.do(s.core.Tick)
		return
	}
	s.arm()
}

// open offers an Open to the core; it is false when the session was gone already.
func (s *Session) open(u *Upstream, open *workerpb.Open) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	opening, err := s.directory.options.Quotas.Opening(u.caller.Account)
	if err != nil {
		if s.core.State() == tables.SessionNone {
			s.finish()
		}
		s.directory.Refuse(u, err)
		return true
	}
	s.offering, s.active = u, time.Now()
	s.offered = s.directory.window(s.residence.hop.FirstWindow())
	room := session.Room{Window: s.offered, Outgoing: s.directory.outgoing(u), Chunk: uint32(s.residence.scheduler.Chunk())}
	s.do(func(now time.Time) []session.Effect { return s.core.Open(now, open, room) })
	s.directory.freeWindow(s.offered) // unless Attach took it over
	if s.upstream == u && s.core.State() == tables.SessionOpening {
		s.endOpening() // of an older attempt
		s.opening = opening
	} else {
		opening()
	}
	s.offering, s.offered = nil, 0
	return true
}

func (s *Session) received(u *Upstream, m *workerpb.SessionRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upstream != u {
		return // ended, or superseded
	}
	s.offering, s.active = u, time.Now()
	s.do(func(now time.Time) []session.Effect { return s.core.Upstream(now, m) })
	s.offering = nil
}

func (s *Session) upstreamEnded(u *Upstream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upstream == u {
		s.detach()
		s.do(s.core.UpstreamEnded)
	}
}

// violate ends the attempt of a stream with an error of this worker.
func (s *Session) violate(u *Upstream, err *fault.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upstream == u && !s.over {
		s.do(func(now time.Time) []session.Effect { return s.core.Violate(now, err) })
	}
}

// drain tells the upstream; a session that lingers ends at once, for no attempt can come any more.
func (s *Session) drain(left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unborn() {
		return
	}
	if s.core.State() == tables.SessionLingering {
		s.do(s.core.Evict)
		return
	}
	s.do(func(now time.Time) []session.Effect { return s.core.Draining(now, left) })
}

// end ends the session with an error of the whole shard.
func (s *Session) end(why *fault.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unborn() {
		return
	}
	if why.Code == workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT {
		s.do(func(now time.Time) []session.Effect { return s.core.EngineLost(now, why) })
		return
	}
	s.do(s.core.DrainDeadline)
}

// gone ends the session for a caller who must have its key; attempt, if not nil, bounds the attempts that it means.
func (s *Session) gone(key []byte, attempt *uint64, event tables.SessionEvent) *fault.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unborn() {
		return nil
	}
	if !s.core.Owns(key) {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, "session %v has another key", s.id)
	}
	if attempt == nil || s.core.Attempt() <= *attempt {
		s.do(func(now time.Time) []session.Effect { return s.core.End(now, event) })
	}
	return nil
}

// unborn says whether there is nothing to tell: the session is over, or its Open has not reached it yet and finds another.
func (s *Session) unborn() bool {
	if !s.over && s.core.State() == tables.SessionNone {
		s.finish()
	}
	return s.over
}

// lingers is since when the session lingers; zero when it does not.
func (s *Session) lingers() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lingering
}

func (s *Session) evict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.core.State() != tables.SessionLingering {
		return false
	}
	s.do(s.core.Evict)
	return true
}

// outcome is the end of a call of the engine.
func (s *Session) outcome(o session.Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.do(func(now time.Time) []session.Effect { return s.core.Outcome(now, o) })
	}
}

// RoundTrip is part of chain.Handler, as are Received, Sent and Ended.
func (s *Session) RoundTrip(l *chain.Link, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.core.RoundTrip(d)
	}
}

// Received is a message of the next hop.
func (s *Session) Received(l *chain.Link, m *workerpb.SessionResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l {
		s.hear(m)
		s.do(func(now time.Time) []session.Effect { return s.core.Downstream(now, m) })
	}
}

// Sent is a message that went to the next hop.
func (s *Session) Sent(l *chain.Link, m *workerpb.SessionRequest) {
	n := session.PayloadDown(m)
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == l && !s.over {
		s.do(func(now time.Time) []session.Effect { return s.core.SentDown(now, n) })
	}
}

// sentUp says that payload went out to the upstream.
func (s *Session) sentUp(u *Upstream, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upstream == u && !s.over {
		s.do(func(now time.Time) []session.Effect { return s.core.SentUp(now, bytes) })
	}
}

// Ended is the end of the link.
func (s *Session) Ended(l *chain.Link, opened bool, err *fault.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return
	}
	s.link = nil
	if opened {
		s.do(func(now time.Time) []session.Effect { return s.core.DownstreamEnded(now, err) })
		return
	}
	if err == nil {
		err = fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "the hop at %s ended the stream without an answer", s.address)
	}
	s.do(func(now time.Time) []session.Effect { return s.core.Unreachable(now, err) })
}

// submit hands work to the scheduler. Work that cannot be begun has its outcome at once.
func (s *Session) submit(w session.Work) (o session.Outcome, atOnce bool) {
	var err error
	if w.Kind == session.WorkAdopt {
		if !s.residence.prefixes.adopt(s.domain, w, s.outcome) {
			return session.Outcome{Kind: w.Kind}, true
		}
	} else {
		err = s.residence.scheduler.Submit(s.job(w))
	}
	return session.Outcome{Kind: w.Kind, Err: err}, err != nil && w.Kind != session.WorkRelease
}

// job turns the core's work into the scheduler's.
func (s *Session) job(w session.Work) *batch.Job {
	suspects, who := s.directory.suspects, s.memory.who
	j := &batch.Job{
		Session: w.Session, Context: w.Context, Step: w.Step, Hops: w.Hops, Length: w.Length, Unmark: w.Unmark, Mark: w.Mark,
		Alone: suspects.alone(who),
	}
	switch w.Kind {
	case session.WorkOpen:
		j.Kind = batch.Open
		j.Retry = func() bool { return s.residence.prefixes.evict() || s.directory.evictOldest(s) }
	case session.WorkStep:
		j.Kind = batch.Step
	case session.WorkTruncate:
		j.Kind = batch.Truncate
	case session.WorkRelease:
		j.Kind = batch.Release
		return j
	}
	j.Lost = func() { suspects.lost(who) }
	j.Done = func(o batch.Outcome) {
		if j.Alone && j.Kind == batch.Step && o.Err == nil && o.Result.Err == nil {
			suspects.passed(who)
		}
		s.outcome(session.Outcome{Kind: w.Kind, Err: o.Err, Cache: o.Cache, Result: o.Result, Marked: o.Marked})
	}
	return j
}
