// Package quota bounds what one principal may have under way on a worker, so that nobody takes what others need: calls,
// sessions, openings, and how fast requests and control messages come.
//
// It counts and says no; it waits for nobody. Who a principal is, is the business of the caller (package rpc): anything that
// does not change while it has something under way will do. What a session is stays out.
package quota

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Limits are what one principal may have. All are 1 or more.
type Limits struct {
	Opening  uint32 // sessions that are being opened
	Sessions uint32 // lingering ones included
	Streams  uint32 // calls under way
	Requests Rate   // calls and opens
	Control  Rate   // control messages on Session streams
}

// Rate is how many a second, and how many at once after a rest.
type Rate struct{ PerSecond, Burst uint32 }

// Default is room for a gateway that fills a worker on its own.
func Default() Limits {
	return Limits{Opening: 256, Sessions: 1024, Streams: 2048, Requests: Rate{1000, 2000}, Control: Rate{2000, 4000}}
}

// kind is one thing that is counted.
type kind int

const (
	opening kind = iota
	sessions
	streams
	kinds
)

func (k kind) String() string {
	return [kinds]string{"sessions being opened", "sessions", "calls under way"}[k]
}

// most is how many accounts there may be before those that nobody uses are closed.
const most = 4096

// Quotas are the accounts of all principals. All methods may be called from any goroutine and return at once.
type Quotas struct {
	limits Limits

	mu       sync.Mutex
	accounts map[string]*account
}

// account is what one principal has under way; guarded by Quotas.mu.
type account struct {
	held     [kinds]uint32
	requests *rate.Limiter
	control  *rate.Limiter
}

// New makes accounts with limits for each.
func New(limits Limits) *Quotas { return &Quotas{limits: limits, accounts: map[string]*account{}} }

// Limits are those that it was made with.
func (q *Quotas) Limits() Limits { return q.limits }

// Stream counts a call until done is called.
//
// Errors: QUOTA_EXCEEDED.
func (q *Quotas) Stream(who string) (done func(), err *fault.Error) {
	return q.take(who, streams, q.limits.Streams)
}

// Session counts a session until done is called.
//
// Errors: QUOTA_EXCEEDED.
func (q *Quotas) Session(who string) (done func(), err *fault.Error) {
	return q.take(who, sessions, q.limits.Sessions)
}

// Opening counts the opening of a session until done is called.
//
// Errors: QUOTA_EXCEEDED.
func (q *Quotas) Opening(who string) (done func(), err *fault.Error) {
	return q.take(who, opening, q.limits.Opening)
}

func (q *Quotas) take(who string, k kind, limit uint32) (func(), *fault.Error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(who)
	if a.held[k] >= limit {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_QUOTA_EXCEEDED, "%s has %d %s, as many as it may", named(who), a.held[k], k)
	}
	a.held[k]++
	var once sync.Once
	return func() {
		once.Do(func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			a.held[k]--
		})
	}, nil
}

// Request counts a call or an open.
//
// Errors: QUOTA_EXCEEDED, with the time after which one more may come.
func (q *Quotas) Request(who string) *fault.Error {
	return q.spend(who, func(a *account) *rate.Limiter { return a.requests }, "calls and opens", q.limits.Requests)
}

// Control counts a control message.
//
// Errors: QUOTA_EXCEEDED, with the time after which one more may come.
func (q *Quotas) Control(who string) *fault.Error {
	return q.spend(who, func(a *account) *rate.Limiter { return a.control }, "control messages", q.limits.Control)
}

func (q *Quotas) spend(who string, of func(*account) *rate.Limiter, what string, limit Rate) *fault.Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := of(q.account(who)).Reserve()
	wait := r.Delay()
	if wait == 0 {
		return nil
	}
	r.Cancel()
	return fault.New(workerpb.ErrorCode_ERROR_CODE_QUOTA_EXCEEDED, "%s may send %d %s a second, and %d at once", named(who), limit.PerSecond, what, limit.Burst).
		With(func(e *fault.Error) { e.RetryAfter = max(wait, time.Millisecond) })
}

// account is that of a principal, made if need be. The caller holds mu.
func (q *Quotas) account(who string) *account {
	a := q.accounts[who]
	if a == nil {
		if len(q.accounts) >= most {
			q.closeIdle()
		}
		limiter := func(r Rate) *rate.Limiter { return rate.NewLimiter(rate.Limit(r.PerSecond), int(r.Burst)) }
		a = &account{requests: limiter(q.limits.Requests), control: limiter(q.limits.Control)}
		q.accounts[who] = a
	}
	return a
}

// closeIdle forgets who has nothing under way and has rested. The caller holds mu.
func (q *Quotas) closeIdle() {
	rested := func(l *rate.Limiter) bool { return l.Tokens() >= float64(l.Burst()) }
	for who, a := range q.accounts {
		if a.held == [kinds]uint32{} && rested(a.requests) && rested(a.control) {
			delete(q.accounts, who)
		}
	}
}

func named(who string) string { return fmt.Sprintf("the principal %q", who) }
