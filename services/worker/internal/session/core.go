package session

import (
	"crypto/subtle"
	"fmt"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Core is one session at one hop, over all its attempts.
//
// Every input method takes the time, and returns what is to be done. The slice is valid until the next input. An input is
// handled whole: callers hand in one at a time, and carry out its effects before the next.
type Core struct {
	hop    *Hop
	id     engine.SessionID
	seat   engine.SessionID // its name in the engine
	key    []byte
	memory Memory
	state  tables.SessionState
	now    time.Time // of the input in hand
	out    []Effect

	attempt   uint64
	open      *workerpb.Open   // of this attempt
	place     place            // of this hop in the attempt's route
	opening   opening          // how far the opening is
	opened    *workerpb.Opened // what the upstream was told; nil before
	linked    bool             // a link to the next hop exists
	attached  bool             // a stream to the upstream exists
	roundTrip time.Duration    // to the next hop; 0: not measured

	cache      cache
	belowReach []engine.Span // lengths that the hops below can go back to, as last said
	flow       flow
	steps      queue
	job        *job // what the engine is doing for this session, or nil

	openDeadline, closeDeadline, lingerDeadline, restDeadline time.Time // zero: not set
	active                                                    time.Time // of the last message from the upstream, or reply to it
	linger                                                    time.Duration
	keep                                                      bool // Close asked for the cache to be kept
	usage                                                     usage
	metered                                                   usage // what of it Meter said
	idled                                                     bool  // what ends the session is the idle bound
	impossible                                                uint64
}

// place is where a hop stands in a route.
type place struct {
	first bool // the driver is its upstream
	last  bool // no hop comes after it
	hub   bool // the boundary, or what the tail makes, goes back to the caller
	below int  // hops after it
}

// cause is what an event of the session table is about; which fields are set depends on the event.
type cause struct {
	err      *fault.Error
	open     *workerpb.Open
	room     Room // with open
	request  *workerpb.SessionRequest
	response *workerpb.SessionResponse
	rung     *workerpb.RingToken
	step     *step
	cancel   *workerpb.CancelStep
}

// New is the core of a session that the worker does not hold yet. seat names it in the engine; a kept cache takes the seat with
// it, so that it is no other's again.
func New(hop *Hop, id, seat engine.SessionID, key []byte, memory Memory) *Core {
	return &Core{hop: hop, id: id, seat: seat, key: key, memory: memory, state: tables.SessionInitial, cache: newCache(hop.Fingerprint)}
}

// State is the state of the session table.
func (c *Core) State() tables.SessionState { return c.state }

// Attempt is the current attempt; 0 before the first.
func (c *Core) Attempt() uint64 { return c.attempt }

// Impossibles counts transitions that a table calls impossible.
func (c *Core) Impossibles() uint64 { return c.impossible }

// Cached is the tokens that are evaluated, and those that are reserved.
func (c *Core) Cached() (length, reserved uint32) { return c.cache.length(), c.cache.reserved }

// Owns says whether key is the session's.
func (c *Core) Owns(key []byte) bool { return subtle.ConstantTimeCompare(key, c.key) == 1 }

// Open is a checked Open for this id. room is what the worker can set aside for it.
func (c *Core) Open(now time.Time, open *workerpb.Open, room Room) []Effect {
	c.begin(now)
	event := tables.SessionEventOpenNewer
	switch {
	case c.state == tables.SessionNone:
		event = tables.SessionEventOpenNew
	case !c.Owns(open.GetSessionKey()):
		event = tables.SessionEventOpenWrongKey
	case open.GetAttempt() <= c.attempt:
		event = tables.SessionEventOpenStale
	}
	c.fire(event, cause{open: open, room: room})
	return c.finish()
}

// Upstream is a message of the stream that is attached.
func (c *Core) Upstream(now time.Time, m *workerpb.SessionRequest) []Effect {
	c.begin(now)
	c.active = now
	if err := c.hop.Revisions.Strict(m, c.opened.GetRevision()); err != nil {
		c.strange(m, err)
		return c.finish()
	}
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionRequest_Open:
		c.fire(tables.SessionEventViolation, cause{err: c.unlawful("a second Open on one stream")})
	case *workerpb.SessionRequest_Step:
		c.fire(tables.SessionEventStep, cause{request: m})
	case *workerpb.SessionRequest_Frame, *workerpb.SessionRequest_Iteration, *workerpb.SessionRequest_ReceiveCredit:
		c.fire(tables.SessionEventInput, cause{request: m})
	case *workerpb.SessionRequest_CancelStep:
		c.cancelStep(kind.CancelStep)
	case *workerpb.SessionRequest_Close:
		c.keep = kind.Close.GetKeepPrefix()
		c.fire(tables.SessionEventClose, cause{})
	default:
		c.violation(malformed("kind", "set"))
	}
	return c.finish()
}

// strange is a request that holds something unknown. A step with a good id fails alone; anything else ends the session.
func (c *Core) strange(m *workerpb.SessionRequest, err *fault.Error) {
	if s := m.GetStep(); s.GetStepId() > c.steps.last {
		c.fire(tables.SessionEventStep, cause{request: m, err: stepScope(err)})
		return
	}
	c.violation(err)
}

// UpstreamEnded says that the attached stream is over without Close.
func (c *Core) UpstreamEnded(now time.Time) []Effect {
	c.begin(now)
	c.fire(tables.SessionEventUpstreamBroken, cause{})
	return c.finish()
}

// Downstream is a message of the next hop.
func (c *Core) Downstream(now time.Time, m *workerpb.SessionResponse) []Effect {
	c.begin(now)
	c.answer(m)
	return c.finish()
}

// Ring is a token by the ring of the present attempt.
func (c *Core) Ring(now time.Time, t *workerpb.RingToken) []Effect {
	c.begin(now)
	c.fire(tables.SessionEventRingToken, cause{rung: t})
	return c.finish()
}

// Unreachable is the end of a link that never opened. An err with an origin is the next hop's own; one without is what this
// hop found out: ROUTE_REFUSED by its own policy, else that the next hop cannot be reached.
func (c *Core) Unreachable(now time.Time, err *fault.Error) []Effect {
	c.begin(now)
	switch {
	case err.Origin != nil:
		c.linkEnded(tables.SessionEventRefusedDownstream, fromBelow(err))
	case err.Code == workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED:
		c.linkEnded(tables.SessionEventRefusedHere, c.mine(err))
	default:
		c.linkEnded(tables.SessionEventDownstreamBroken, err.At(c.hop.ref(), c.nextRef()))
	}
	return c.finish()
}

// DownstreamEnded is the end of a link after Opened came over it, without Closed. An err with an origin is the next hop's
// own.
func (c *Core) DownstreamEnded(now time.Time, err *fault.Error) []Effect {
	c.begin(now)
	if err != nil && err.Origin != nil {
		c.linkEnded(tables.SessionEventClosedDownstream, fromBelow(err))
	} else {
		c.linkEnded(tables.SessionEventDownstreamBroken, c.lost(err))
	}
	return c.finish()
}

func (c *Core) linkEnded(event tables.SessionEvent, err *fault.Error) {
	if c.linked {
		c.linked = false
		c.fire(event, cause{err: err})
	}
}

// lost is DOWNSTREAM_LOST of the next hop.
func (c *Core) lost(why *fault.Error) *fault.Error {
	subject := c.nextRef()
	text := "its answer did not come in time"
	if why != nil {
		text = particulars(why)
	}
	return fault.New(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST, "hop %s at %s: %s", subject.GetWorkerId(), c.nextAddress(), text).
		At(c.hop.ref(), subject)
}

// particulars is the message of an error without the table's sentence.
func particulars(err *fault.Error) string {
	sentence := strings.TrimSuffix(tables.ErrorByCode(err.Code).Sentence, ".")
	return strings.TrimPrefix(strings.TrimPrefix(err.Message, sentence), ": ")
}

// End is CancelSession or ReleaseSession; event says which.
func (c *Core) End(now time.Time, event tables.SessionEvent) []Effect {
	return c.event(now, event, nil)
}

// Evict takes the cache of a lingering session.
func (c *Core) Evict(now time.Time) []Effect { return c.event(now, tables.SessionEventEvicted, nil) }

// DrainDeadline says that the worker's drain budget is over.
func (c *Core) DrainDeadline(now time.Time) []Effect {
	return c.event(now, tables.SessionEventDrainDeadline,
		c.mine(fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, "worker %s", c.hop.WorkerID)))
}

// EngineLost says that the engine is gone, with every cache.
func (c *Core) EngineLost(now time.Time, err *fault.Error) []Effect {
	c.cache.lose()
	c.job = nil
	return c.event(now, tables.SessionEventEngineLost, c.mine(c.remembered(err)))
}

// Violate says that a bound of this hop was passed, as that of the queue to the upstream.
func (c *Core) Violate(now time.Time, err *fault.Error) []Effect {
	return c.event(now, tables.SessionEventViolation, c.mine(err))
}

func (c *Core) event(now time.Time, event tables.SessionEvent, err *fault.Error) []Effect {
	c.begin(now)
	c.fire(event, cause{err: err})
	return c.finish()
}

// Draining tells the upstream that this hop drains; left is the time until its sessions are closed.
func (c *Core) Draining(now time.Time, left time.Duration) []Effect {
	c.begin(now)
	if c.opened != nil {
		c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Draining{
			Draining: &workerpb.Draining{Hop: c.hop.ref(), Left: clampBudget(left)},
		}})
	}
	return c.finish()
}

func (c *Core) begin(now time.Time) {
	c.usage.hold(now.Sub(c.now), c.cache.length(), c.now.IsZero())
	c.now, c.out = now, c.out[:0]
}

func (c *Core) finish() []Effect {
	c.pump()
	return c.out
}

func (c *Core) emit(e Effect) { c.out = append(c.out, e) }

func (c *Core) up(m *workerpb.SessionResponse) { c.emit(Up{m}) }

// fire asks the table what an event does, and does it.
func (c *Core) fire(event tables.SessionEvent, why cause) {
	row := tables.SessionTransition(c.state, event)
	c.hop.tally("session", row.State.String(), row.Event.String())
	switch row.Outcome {
	case tables.OutcomeNext:
		c.state = row.Next
	case tables.OutcomeRefused:
		if why.err == nil {
			why.err = c.refusal(row)
		}
	default:
		c.impossible++
		c.emit(Impossible{Table: "session", State: row.State.String(), Event: row.Event.String()})
		return
	}
	for _, effect := range row.Effects {
		c.do(effect, why)
	}
}

// do carries out one effect of the session table.
func (c *Core) do(effect tables.SessionEffect, why cause) {
	switch effect {
	case tables.SessionEffectBeginOpening:
		c.beginOpening(why.open, why.room)
	case tables.SessionEffectGoOnOpening, tables.SessionEffectGoOn, tables.SessionEffectIgnore, tables.SessionEffectAnswerOk:
		// pump goes on by itself; the caller of CancelSession and ReleaseSession is answered whatever comes out
	case tables.SessionEffectSendOpened:
		c.sendOpened()
	case tables.SessionEffectRefuseStream:
		c.emit(Refuse{why.err.At(c.hop.ref(), c.hop.ref())})
	case tables.SessionEffectViolate:
		c.fire(tables.SessionEventViolation, cause{err: why.err})
	case tables.SessionEffectSupersedeOlder:
		c.endUp(workerpb.CloseReason_CLOSE_REASON_SUPERSEDED,
			c.mine(fault.New(workerpb.ErrorCode_ERROR_CODE_SUPERSEDED, "attempt %d of session %v", why.open.GetAttempt(), c.id)))
	case tables.SessionEffectHangUpDownstream:
		c.hangUp()
	case tables.SessionEffectCancelAllHere:
		c.cancelAll()
	case tables.SessionEffectHoldStep:
		c.holdStep(why.request.GetStep(), why.err)
	case tables.SessionEffectTakeInput:
		c.takeInput(why.request)
	case tables.SessionEffectTakeProgress:
		c.takeProgress(why.response)
	case tables.SessionEffectTakeRing:
		c.takeRing(why.rung)
	case tables.SessionEffectSendResult:
		c.sendResult(why.step)
	case tables.SessionEffectUnwind:
		c.unwind(why)
	case tables.SessionEffectEndWithError:
		c.endUp(reasonOf(why.err), why.err)
	case tables.SessionEffectCloseDownstream:
		c.closeDownstream()
	case tables.SessionEffectSendClosed:
		c.endUp(workerpb.CloseReason_CLOSE_REASON_REQUESTED, nil)
	case tables.SessionEffectLinger:
		c.beginLinger()
	case tables.SessionEffectFreeAll:
		c.freeAll()
	default:
		panic(fmt.Sprintf("session: effect %v has no code", effect))
	}
}

// refusal is the error of a refused row.
func (c *Core) refusal(row tables.SessionRow) *fault.Error {
	return c.mine(Refusal(row, "session %v is %v, the event was %v", c.id, row.State, row.Event))
}

// Refusal is the error of a row of the session table that refuses, with the row in its detail.
func Refusal(row tables.SessionRow, format string, args ...any) *fault.Error {
	return fault.New(row.Error, format, args...).With(func(e *fault.Error) {
		if row.Error == workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION {
			e.Detail = &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Lifecycle{Lifecycle: &workerpb.LifecycleDetail{
				Table: "session", State: row.State.String(), Event: row.Event.String(),
			}}}
		}
	})
}

// unlawful is LIFECYCLE_VIOLATION for what the table has no event for.
func (c *Core) unlawful(format string, args ...any) *fault.Error {
	return c.mine(fault.New(workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION, format, args...))
}

// mine is an error that this hop raises about itself, unless it names a subject already.
func (c *Core) mine(err *fault.Error) *fault.Error {
	if err == nil {
		return nil
	}
	return err.At(c.hop.ref(), c.hop.ref())
}
