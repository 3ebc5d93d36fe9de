package live

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// totals counts since the directory was made; guarded by Directory.mu.
type totals struct {
	opened     uint64
	impossible uint64
	errors     map[workerpb.ErrorCode]uint64
	usage      workerpb.Usage
}

// First takes the first message of a stream, which must be an Open that can be served; else the stream ends with why not,
// and it is false.
func (d *Directory) First(u *Upstream, m *workerpb.SessionRequest) bool {
	err := d.first(u, m)
	if err != nil {
		d.Refuse(u, err)
	}
	return err == nil
}

// Refuse ends a stream that has no session.
func (d *Directory) Refuse(u *Upstream, err *fault.Error) {
	me := d.self()
	err = err.At(me, me)
	d.failed(err.Code)
	u.finish(err)
}

// self names this worker.
func (d *Directory) self() *workerpb.HopRef {
	var zero uint32
	ref := &workerpb.HopRef{Index: &zero, WorkerId: d.options.WorkerID}
	if r := d.residence(); r != nil {
		ref.Instance = r.hop.Instance[:]
	}
	return ref
}

func (d *Directory) residence() *residence {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shard
}

func (d *Directory) first(u *Upstream, m *workerpb.SessionRequest) *fault.Error {
	spoken := d.options.Revisions
	if err := spoken.Refuse(m.GetOpen()); err != nil {
		return err
	}
	if err := spoken.Strict(m, m.GetOpen().GetRevisions().GetMin()); err != nil {
		return err
	}
	if m.GetKind() == nil {
		return session.Malformed("kind", "set")
	}
	open := m.GetOpen()
	if open == nil {
		row := d.absent(eventOf(m))
		return session.Refusal(row, "the first message of a stream is open, not a %v", row.Event)
	}
	r := d.residence()
	if r == nil {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "worker %s", d.options.WorkerID)
	}
	if err := session.CheckOpen(r.hop, open); err != nil {
		return err
	}
	id := engine.SessionID(open.GetSessionId())
	if err := (memory{d.suspects, whoIs(id, open.GetSessionKey())}).refusal(); err != nil {
		return err
	}
	u.domain = domainOf(u.caller, open.GetCacheDomain())
	for {
		s, err := d.find(r, id, open.GetSessionKey(), u.caller.Account)
		if err != nil {
			return err
		}
		if s.open(u, open) {
			return nil
		}
	}
}

// absent is what an event does to a session that there is none of.
func (d *Directory) absent(event tables.SessionEvent) tables.SessionRow {
	row := tables.SessionTransition(tables.SessionInitial, event)
	d.options.Observer.Transition("session", row.State.String(), row.Event.String())
	return row
}

// eventOf is what a message that is no Open is in the session table.
func eventOf(m *workerpb.SessionRequest) tables.SessionEvent {
	switch m.GetKind().(type) {
	case *workerpb.SessionRequest_Step:
		return tables.SessionEventStep
	case *workerpb.SessionRequest_CancelStep:
		return tables.SessionEventCancelStepUnanswered
	case *workerpb.SessionRequest_Close:
		return tables.SessionEventClose
	}
	return tables.SessionEventInput
}

// find returns the session of an id, made if there is none; then account pays for it.
func (d *Directory) find(r *residence, id engine.SessionID, key []byte, account string) (*Session, *fault.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shard != r {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "worker %s", d.options.WorkerID)
	}
	if !d.drained.IsZero() {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, "worker %s takes no new sessions", d.options.WorkerID)
	}
	s := d.sessions[id]
	if s == nil {
		counted, err := d.options.Quotas.Session(account)
		if err != nil {
			return nil, err
		}
		s = newSession(d, r, id, key, counted)
		d.sessions[id] = s
	}
	return s, nil
}

// forget drops a session that is gone.
func (d *Directory) forget(s *Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[s.id] == s {
		delete(d.sessions, s.id)
		close(d.changed)
		d.changed = make(chan struct{})
	}
}

// Gone ends a session for CancelSession and ReleaseSession. Unknown ids and newer attempts are no error.
//
// Errors: PERMISSION_DENIED (wrong key).
func (d *Directory) Gone(id engine.SessionID, key []byte, attempt *uint64, event tables.SessionEvent) *fault.Error {
	d.mu.Lock()
	s := d.sessions[id]
	d.mu.Unlock()
	if s == nil {
		d.absent(event) // the table answers OK
		return nil
	}
	return s.gone(key, attempt, event)
}

// evictOldest gives up the cache that has lingered longest; it is false when none lingers.
func (d *Directory) evictOldest(but *Session) bool {
	var oldest *Session
	var since time.Time
	for _, s := range d.all() {
		if at := s.lingers(); s != but && !at.IsZero() && (oldest == nil || at.Before(since)) {
			oldest, since = s, at
		}
	}
	return oldest != nil && oldest.evict()
}

// outgoing takes room for what a stream sends, and the link behind it; the part of it for payload, or 0 when there is none.
func (d *Directory) outgoing(u *Upstream) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !u.holds {
		if d.streams >= streamsPerSession*uint64(max(d.options.Sessions, 1)) {
			return 0
		}
		u.holds = true
		d.streams++
	}
	return d.options.Payload()
}

func (d *Directory) freeOutgoing(u *Upstream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u.holds {
		u.holds = false
		d.streams--
	}
}

// widen takes bytes by which a window grows. It leaves the second half of the bound to first windows.
func (d *Directory) widen(bytes uint64) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	half := d.options.WindowBytes / 2
	bytes = min(bytes, half-min(half, d.windows))
	d.windows += bytes
	return bytes
}

// window takes bytes for a first window from the worker's bound; fewer than asked for when little is left.
func (d *Directory) window(bytes uint64) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	bytes = min(bytes, d.options.WindowBytes-d.windows)
	d.windows += bytes
	return bytes
}

func (d *Directory) freeWindow(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.windows -= bytes
}

func (d *Directory) failed(code workerpb.ErrorCode) {
	d.options.Observer.Error(fault.Name(code))
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.totals.errors == nil {
		d.totals.errors = map[workerpb.ErrorCode]uint64{}
	}
	d.totals.errors[code]++
}
