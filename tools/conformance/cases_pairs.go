package conformance

import (
	"errors"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// moment is a session at the first hop in a state that its next hop, which is ours, keeps it in.
type moment struct {
	t     *T
	state tables.SessionState
	link  *link
	below *below
	open  *workerpb.Open
	step  uint64 // in hand, if any
}

// held are the states that a next hop can keep the first one in: by no Opened, by no answer to a cancel, by no Closed.
func held(t *T, state tables.SessionState) *moment {
	if state == tables.SessionOpening {
		l, b, o := t.dialled()
		return &moment{t: t, state: state, link: l, below: b, open: o}
	}
	d, b := t.withPeer(nil)
	m := &moment{t: t, state: state, link: d.link, below: b, open: d.open, step: d.give(d.step(prefill(t.ids(2, 3)...)))}
	b.step()
	switch state {
	case tables.SessionUnwinding:
		d.send(cancelStep(m.step, m.step, true))
		if b.next().GetCancelStep() == nil {
			t.Fatalf("the cancel was not passed on")
		}
	case tables.SessionClosing:
		d.send(closing())
		m.closes()
	}
	return m
}

// closes waits until the next hop is told that the session ends: by Close, or by the end of its stream.
func (m *moment) closes() {
	for {
		switch r := m.below.next(); {
		case r == nil || r.GetClose() != nil:
			return
		case r.GetCancelStep() != nil:
		default:
			m.t.Fatalf("%v was passed on, the end was due", r)
		}
	}
}

// again is a further stream with an Open of this session.
func (m *moment) again(change func(*workerpb.Open)) *link {
	o := proto.CloneOf(m.open)
	change(o)
	l := m.t.link(m.t.head())
	l.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	return l
}

// told is the error with which the attempt ends, nil for a good end.
func (m *moment) told() *workerpb.ShardError {
	for r := m.link.next(); r != nil; r = m.link.next() {
		if r.GetOpened() != nil {
			m.t.Fatalf("%v came, the end was due", brief(r))
		}
	}
	if errors.Is(m.link.end, io.EOF) {
		return nil
	}
	return m.t.errorOf(m.link.end)
}

// happening is an event of the session table that somebody outside brings about.
type happening struct {
	event   tables.SessionEvent
	name    string
	clauses []string
	// do brings it about; the link is a further stream, if it takes one.
	do func(*moment) *link
	// code ends an attempt that the row ends with an error.
	code workerpb.ErrorCode
}

func happenings() []happening {
	const (
		internal = workerpb.ErrorCode_ERROR_CODE_INTERNAL
		lost     = workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST
		unlawful = workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION
	)
	sends := func(r *workerpb.SessionRequest) func(*moment) *link {
		return func(m *moment) *link { m.link.send(r); return nil }
	}
	says := func(r func(*moment) *workerpb.SessionResponse) func(*moment) *link {
		return func(m *moment) *link { m.below.send(r(m)); return nil }
	}
	return []happening{
		{tables.SessionEventOpenNewer, "greater-attempt", []string{"OPN-5", "CAN-7"}, func(m *moment) *link {
			return m.again(func(o *workerpb.Open) { o.Attempt++ })
		}, 0},
		{tables.SessionEventOpenStale, "same-attempt", []string{"OPN-4"}, func(m *moment) *link { return m.again(func(*workerpb.Open) {}) }, 0},
		{tables.SessionEventOpenWrongKey, "wrong-key", []string{"OPN-3"}, func(m *moment) *link {
			return m.again(func(o *workerpb.Open) { o.SessionKey, o.Attempt = random(32), o.Attempt+1 })
		}, 0},
		{tables.SessionEventStep, "step", []string{"OPN-2", "CAN-7"}, func(m *moment) *link {
			d := driver{link: m.link, id: m.step, top: m.step}
			d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: d.step(prefill(m.t.ids(1, 9)...))}})
			return nil
		}, 0},
		{tables.SessionEventInput, "receive-credit", []string{"OPN-2"}, sends(receiveCredit(1, 1)), 0},
		{tables.SessionEventCancelStepAnswered, "cancel-of-nothing", []string{"CAN-3"}, sends(cancelStep(7, 8, true)), 0},
		{tables.SessionEventClose, "close", []string{"CAN-4"}, sends(closing()), 0},
		{tables.SessionEventViolation, "second-open", []string{"OPN-2"}, func(m *moment) *link {
			m.link.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: m.open}})
			return nil
		}, unlawful},
		{tables.SessionEventUpstreamBroken, "hang-up", []string{"CAN-6"}, func(m *moment) *link { m.link.hangUp(); return nil }, 0},
		{tables.SessionEventCancelSession, "CancelSession", []string{"CAN-4"}, func(m *moment) *link {
			if _, err := m.t.head().Worker.CancelSession(m.t.ctx, &workerpb.CancelSessionRequest{SessionId: m.open.GetSessionId(), SessionKey: m.open.GetSessionKey()}); err != nil {
				m.t.Errorf("CancelSession: %v", err)
			}
			return nil
		}, 0},
		{tables.SessionEventReleaseSession, "ReleaseSession", []string{"CAN-4"}, func(m *moment) *link {
			if _, err := m.t.head().Worker.ReleaseSession(m.t.ctx, &workerpb.ReleaseSessionRequest{SessionId: m.open.GetSessionId(), SessionKey: m.open.GetSessionKey()}); err != nil {
				m.t.Errorf("ReleaseSession: %v", err)
			}
			return nil
		}, 0},
		{tables.SessionEventProgress, "credit-below", []string{"ERR-3"}, says(func(*moment) *workerpb.SessionResponse {
			return &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{Credit: &workerpb.Credit{Steps: proto.Uint32(1)}}}
		}), internal},
		{tables.SessionEventClosedDownstream, "closed-below", []string{"ERR-3", "LOS-1"}, says(func(*moment) *workerpb.SessionResponse {
			return &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: &workerpb.Closed{
				Reason: workerpb.CloseReason_CLOSE_REASON_ERROR, Error: peerError(lost, workerpb.ErrorScope_ERROR_SCOPE_SESSION, workerpb.Recovery_RECOVERY_RESYNC),
			}}}
		}), lost},
		{tables.SessionEventDownstreamBroken, "broken-below", []string{"LOS-1"}, func(m *moment) *link { m.below.end(errPeerDone); return nil }, lost},
		{tables.SessionEventStepFailedDownstreamAnswered, "failure-of-nothing-below", []string{"FEN-2"}, says(func(*moment) *workerpb.SessionResponse {
			return &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepFailed{StepFailed: &workerpb.StepFailed{StepId: 99}}}
		}), 0},
	}
}

// pairCases bring each event that comes from outside about in each state that a next hop can hold the first in; what must come
// of it is what the session table's row says.
func pairCases() []Case {
	var cases []Case
	for _, state := range heldStates {
		for _, h := range happenings() {
			row := tables.SessionTransition(state, h.event)
			if row.Outcome == tables.OutcomeImpossible || state == tables.SessionOpening && h.event == tables.SessionEventDownstreamBroken {
				continue // the latter is DOWNSTREAM_UNREACHABLE, and has its own case
			}
			cases = append(cases, Case{
				ID: "pair." + strings.ToLower(state.String()) + "." + h.name, Clauses: h.clauses,
				Says: "While a session is " + state.String() + ", " + h.event.String() + " does what the table's row says.", Run: func(t *T) {
					before := t.impossible()
					m := held(t, state)
					m.follows(row, h)
					if n := t.impossible(); n != before {
						t.Errorf("%d impossible transitions more were counted", n-before)
					}
				},
			})
		}
	}
	return append(cases, orderPairs()...)
}

// orderPairs need more than one message to be met.
func orderPairs() []Case {
	cancelled := peerError(workerpb.ErrorCode_ERROR_CODE_CANCELLED, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER)
	return []Case{
		{ID: "pair.random", Clauses: []string{"OPN-2", "CAN-3", "CAN-4", "FEN-2"}, Says: "Whatever comes in whatever order, an attempt ends when the session table says so, and not before.", Run: randomPairs},
		{ID: "pair.closing.opened-below", Clauses: []string{"CAN-4"}, Says: "An opening that was closed ends as CANCELLED, though the next hop opens meanwhile.", Run: func(t *T) {
			m := held(t, tables.SessionOpening)
			m.link.send(closing())
			m.closes()
			m.below.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: m.below.opened()}})
			m.below.end(errPeerOK)
			t.want(m.told(), workerpb.ErrorCode_ERROR_CODE_CANCELLED)
		}},
		{ID: "pair.closing.refused-below", Clauses: []string{"CAN-4"}, Says: "An opening that was closed ends as CANCELLED, though the next hop refuses meanwhile.", Run: func(t *T) {
			m := held(t, tables.SessionOpening)
			m.link.send(closing())
			m.closes()
			m.below.refuse(peerError(workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY, workerpb.ErrorScope_ERROR_SCOPE_SESSION, workerpb.Recovery_RECOVERY_NEVER))
			t.want(m.told(), workerpb.ErrorCode_ERROR_CODE_CANCELLED)
		}},
		{ID: "pair.closing.no-answer-below", Clauses: []string{"CAN-4"}, Says: "A next hop that does not close keeps the end up for a bounded time.", Run: func(t *T) {
			if e := held(t, tables.SessionClosing).told(); e != nil {
				t.Errorf("it ended with %v", e)
			}
		}},
		{ID: "pair.active.failure-of-nothing-below", Clauses: []string{"FEN-2"}, Says: "A failure of a step that was answered, or never was, changes nothing.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			b.fail(99, cancelled)
			id := d.put(d.step(prefill(t.ids(2, 3)...)))
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.result(id)
		}},
		{ID: "pair.unwinding.cancel-again", Clauses: []string{"FEN-3", "STP-8"}, Says: "A step that is cancelled twice, and once without undo, fails once.", Run: func(t *T) {
			m := held(t, tables.SessionUnwinding)
			m.link.send(cancelStep(m.step, m.step, true))
			m.link.send(cancelStep(m.step, m.step, false))
			m.stands()
			m.link.silent("after the step failed")
		}},
		{ID: "pair.step.stopped-while-held", Clauses: []string{"FEN-3", "FLO-3"}, Says: "A stop of a step that waits for credit fails it as CANCELLED; the one before it is not touched.", Run: func(t *T) {
			d, b := t.withPeer(func(o *workerpb.Opened) { o.Window.Steps = proto.Uint32(1) })
			first := d.put(d.step(prefill(t.ids(2, 3)...)))
			s := b.step()
			second := d.give(d.step(prefill(t.ids(1, 5)...)))
			d.send(cancelStep(second, second, false))
			b.result(s, workerpb.Finish_FINISH_DONE)
			if r := d.done(first); r.failed != nil {
				t.Errorf("the step before it failed: %v", r.failed)
			}
			d.failed(second, workerpb.ErrorCode_ERROR_CODE_CANCELLED)
		}},
		{ID: "pair.step.predecessor-failed-below", Clauses: []string{"FEN-2", "STP-8", "STP-10"}, Says: "Where the next hop fails a step with another one behind it in flight, both are undone and reported, in order.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			first, second := d.put(d.step(prefill(t.ids(2, 3)...))), d.put(d.step(prefill(t.ids(1, 5)...)))
			b.step()
			b.step()
			d.tokens = nil
			b.fail(first, peerError(workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER))
			b.fail(second, peerError(workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER))
			d.failed(first, workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT)
			d.failed(second, workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED)
			for _, id := range []uint64{first, second} {
				d.holds(d.of(id).failed.GetCache(), nil)
			}
		}},
	}
}

// impossible is how many impossible transitions the first worker counted.
func (t *T) impossible() uint64 {
	m, err := t.head().Worker.GetMetrics(t.ctx, &workerpb.GetMetricsRequest{})
	if err != nil {
		t.Fatalf("GetMetrics: %v", err)
	}
	return m.GetImpossibleTransitions()
}

// follows brings an event about and checks what its row says.
func (m *moment) follows(row tables.SessionRow, h happening) {
	t := m.t
	streams := make(chan *below, 4)
	t.Peer.expect(streams)
	further := h.do(m)
	has := func(e tables.SessionEffect) bool { return slices.Contains(row.Effects, e) }
	switch {
	case has(tables.SessionEffectRefuseStream):
		t.want(further.refusal(), row.Error)
		m.stands()
	case has(tables.SessionEffectViolate):
		want := h.code
		if want == 0 {
			want = row.Error
		}
		t.want(m.told(), want)
	case has(tables.SessionEffectSupersedeOlder):
		t.want(m.told(), workerpb.ErrorCode_ERROR_CODE_SUPERSEDED)
		select {
		case b := <-streams:
			b.t = t
			if o := b.next().GetOpen(); o.GetAttempt() != m.open.GetAttempt()+1 {
				t.Errorf("the next hop was offered attempt %d", o.GetAttempt())
			}
			b.end(errPeerDone)
		case <-t.ctx.Done():
			t.Errorf("the newer attempt was not passed on")
		}
		t.errorOf(ended(further))
	case h.event == tables.SessionEventUpstreamBroken:
		if row.State != tables.SessionClosing {
			m.closes()
		}
	case has(tables.SessionEffectEndWithError):
		t.want(m.told(), h.code)
	case row.Next == tables.SessionClosing && row.State != tables.SessionClosing:
		m.closes()
		m.below.end(errPeerOK)
		m.told()
	case row.Next == tables.SessionClosed:
		m.told()
	default:
		m.stands()
	}
}

// ended is the end of a stream.
func ended(l *link) error {
	for r := l.next(); r != nil; r = l.next() {
	}
	return l.end
}

// stands says that nothing came of it: the session is where it was, and goes on from there.
func (m *moment) stands() {
	m.link.silent("in state " + m.state.String())
	switch m.state {
	case tables.SessionOpening:
		m.below.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: m.below.opened()}})
		if r := m.link.next(); r.GetOpened() == nil {
			m.t.Errorf("%v came, Opened was due", r)
		}
	case tables.SessionUnwinding:
		m.below.fail(m.step, peerError(workerpb.ErrorCode_ERROR_CODE_CANCELLED, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER))
		for r := m.link.next(); r.GetStepFailed().GetStepId() != m.step; r = m.link.next() {
			if r.GetCredit() == nil {
				m.t.Fatalf("%v came, the failure of step %d was due", r, m.step)
			}
		}
	case tables.SessionClosing:
		m.below.end(errPeerOK)
		if e := m.told(); e != nil {
			m.t.Errorf("it ended with %v", e)
		}
	}
}
