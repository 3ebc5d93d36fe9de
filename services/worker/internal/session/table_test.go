package session_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// bench is one hop with a next one, whose neighbours are the test itself.
type bench struct {
	t    *testing.T
	n    *node
	out  []session.Effect
	now  time.Time
	open *workerpb.Open
}

// in brings a fresh core into a state by the shortest way.
func in(t *testing.T, state tables.SessionState) *bench {
	t.Helper()
	w := newWorld(t, fake.Default(), 2)
	b := &bench{t: t, n: w.hops[0], now: start, open: w.openMessage(5)}
	if state == tables.SessionNone {
		return b
	}
	b.take(b.n.core.Open(b.now, b.open, session.Room{Window: 1 << 20, Outgoing: 1 << 20}))
	if state == tables.SessionOpening {
		return b
	}
	b.outcome()
	b.take(b.n.core.Downstream(b.now, b.openedBelow()))
	b.now = b.now.Add(time.Second)
	b.take(b.n.core.Upstream(b.now, prefill(1, 0, 0, 10, 11)))
	b.outcome()
	switch state {
	case tables.SessionUnwinding:
		b.take(b.n.core.Upstream(b.now, cancel(1, 1, true)))
	case tables.SessionClosing:
		b.take(b.n.core.Upstream(b.now, closing()))
	case tables.SessionLingering:
		b.take(b.n.core.UpstreamEnded(b.now))
	case tables.SessionClosed:
		b.take(b.n.core.DrainDeadline(b.now))
	}
	if got := b.n.core.State(); got != state {
		t.Fatalf("the way to %v leads to %v", state, got)
	}
	b.out = nil
	return b
}

func (b *bench) take(effects []session.Effect) { b.out = append(b.out, effects...) }

// outcome lets the engine do what it was asked last.
func (b *bench) outcome() {
	for _, e := range b.out {
		if s, ok := e.(session.Submit); ok {
			b.n.work = append(b.n.work, s.Work)
		}
	}
	b.out = nil
	job := b.n.work[len(b.n.work)-1]
	o := session.Outcome{Kind: job.Kind}
	switch job.Kind {
	case session.WorkOpen:
		o.Err = b.n.engine.Open(b.t.Context(), job.Session, job.Context)
	case session.WorkStep:
		r, err := b.n.engine.Step(b.t.Context(), []engine.Step{job.Step})
		if err != nil {
			b.t.Fatal(err)
		}
		o.Result = r[0]
	}
	b.take(b.n.core.Outcome(b.now, o))
}

func (b *bench) openedBelow() *workerpb.SessionResponse {
	o := &workerpb.Opened{
		Revision: 1, Window: &workerpb.Credit{Steps: proto.Uint32(8), Bytes: proto.Uint64(1 << 20)}, MaxStepTokens: 64, FrameBytes: 65536,
		Cache: &workerpb.CacheState{Length: proto.Uint32(0), ChainHash: b.hash(0), Reach: []*workerpb.LengthSpan{{From: proto.Uint32(0), To: proto.Uint32(0)}}},
		Hops:  []*workerpb.HopReport{{Hop: &workerpb.HopRef{Index: proto.Uint32(0), WorkerId: "w1"}}}, Linger: b.open.GetLinger(),
	}
	return &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: o}}
}

func (b *bench) hash(n int) []byte {
	c := newChain(b.n.hop.Fingerprint)
	for _, id := range []uint32{10, 11}[:n] {
		c.Append(id)
	}
	h := c.Last()
	return h[:]
}

func (b *bench) failedBelow(id uint64) *workerpb.SessionResponse {
	return &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepFailed{StepFailed: &workerpb.StepFailed{
		StepId: id, Error: fault.New(workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT, "x").Proto(),
	}}}
}

// inputs are the ways in which an event of the table comes about. Those that a core raises itself have no input of their
// own; they are played in the scenarios.
var inputs = map[tables.SessionEvent]func(*bench){
	tables.SessionEventOpenNew:           func(b *bench) { b.take(b.n.core.Open(b.now, b.open, session.Room{Window: 1 << 20, Outgoing: 1 << 20})) },
	tables.SessionEventOpenNewer:         func(b *bench) { b.reopen(9, b.open.GetSessionKey()) },
	tables.SessionEventOpenStale:         func(b *bench) { b.reopen(5, b.open.GetSessionKey()) },
	tables.SessionEventOpenWrongKey:      func(b *bench) { b.reopen(9, make([]byte, 32)) },
	tables.SessionEventOpenTimeout:       func(b *bench) { b.take(b.n.core.Tick(start.Add(15 * time.Second))) },
	tables.SessionEventOpenedDownstream:  func(b *bench) { b.take(b.n.core.Downstream(b.now, b.openedBelow())) },
	tables.SessionEventRefusedDownstream: func(b *bench) { b.take(b.n.core.Unreachable(b.now, said())) },
	tables.SessionEventRefusedHere: func(b *bench) {
		b.take(b.n.core.Unreachable(b.now, fault.New(workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED, "x")))
	},
	tables.SessionEventStep:                           func(b *bench) { b.take(b.n.core.Upstream(b.now, prefill(2, 1, 2, 12))) },
	tables.SessionEventInput:                          func(b *bench) { b.take(b.n.core.Upstream(b.now, credit())) },
	tables.SessionEventProgress:                       func(b *bench) { b.take(b.n.core.Downstream(b.now, creditBelow())) },
	tables.SessionEventRingToken:                      func(b *bench) { b.take(b.n.core.Ring(b.now, &workerpb.RingToken{StepId: 1})) },
	tables.SessionEventCancelStepUnanswered:           func(b *bench) { b.take(b.n.core.Upstream(b.now, cancel(1, 1, true))) },
	tables.SessionEventCancelStepAnswered:             func(b *bench) { b.take(b.n.core.Upstream(b.now, cancel(7, 7, true))) },
	tables.SessionEventStepFailedDownstreamUnanswered: func(b *bench) { b.take(b.n.core.Downstream(b.now, b.failedBelow(1))) },
	tables.SessionEventStepFailedDownstreamAnswered:   func(b *bench) { b.take(b.n.core.Downstream(b.now, b.failedBelow(77))) },
	tables.SessionEventClose:                          func(b *bench) { b.take(b.n.core.Upstream(b.now, closing())) },
	tables.SessionEventCloseTimeout:                   func(b *bench) { b.take(b.n.core.Tick(b.now.Add(2 * time.Second))) },
	tables.SessionEventClosedDownstream:               func(b *bench) { b.take(b.n.core.Downstream(b.now, closedBelow())) },
	tables.SessionEventUpstreamBroken:                 func(b *bench) { b.take(b.n.core.UpstreamEnded(b.now)) },
	tables.SessionEventDownstreamBroken:               func(b *bench) { b.take(b.n.core.DownstreamEnded(b.now, nil)) },
	tables.SessionEventLingerExpired:                  func(b *bench) { b.take(b.n.core.Tick(b.now.Add(30 * time.Second))) },
	tables.SessionEventCancelSession:                  func(b *bench) { b.take(b.n.core.End(b.now, tables.SessionEventCancelSession)) },
	tables.SessionEventReleaseSession:                 func(b *bench) { b.take(b.n.core.End(b.now, tables.SessionEventReleaseSession)) },
	tables.SessionEventEvicted:                        func(b *bench) { b.take(b.n.core.Evict(b.now)) },
	tables.SessionEventDrainDeadline:                  func(b *bench) { b.take(b.n.core.DrainDeadline(b.now)) },
	tables.SessionEventEngineLost:                     func(b *bench) { b.take(b.n.core.EngineLost(b.now, said())) },
	tables.SessionEventViolation:                      func(b *bench) { b.take(b.n.core.Violate(b.now, said())) },
}

func (b *bench) reopen(attempt uint64, key []byte) {
	o := proto.Clone(b.open).(*workerpb.Open)
	o.Attempt, o.SessionKey = attempt, key
	b.take(b.n.core.Open(b.now, o, session.Room{Window: 1 << 20, Outgoing: 1 << 20}))
}

func said() *fault.Error {
	ref := &workerpb.HopRef{Index: proto.Uint32(0), WorkerId: "w1"}
	return fault.New(workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT, "x").At(ref, ref)
}

func credit() *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: &workerpb.ReceiveCredit{Tokens: proto.Uint32(1)}}}
}

func creditBelow() *workerpb.SessionResponse {
	return &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{Credit: &workerpb.Credit{Steps: proto.Uint32(1)}}}
}

func closedBelow() *workerpb.SessionResponse {
	return &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: &workerpb.Closed{
		Reason: workerpb.CloseReason_CLOSE_REASON_ERROR, Error: said().Proto(),
	}}}
}

// unasked are pairs that a core cannot be brought to by its inputs: the link or the stream that would bring the event is
// gone in that state, or the event is another one there. The table has a row for each all the same.
func unasked(state tables.SessionState, event tables.SessionEvent) bool {
	none, closed := state == tables.SessionNone, state == tables.SessionClosed
	opened := state == tables.SessionActive || state == tables.SessionUnwinding
	switch event {
	case tables.SessionEventOpenNew:
		return !none // a known id is never new
	case tables.SessionEventOpenNewer, tables.SessionEventOpenStale, tables.SessionEventOpenWrongKey:
		return none // an unknown id is always new
	case tables.SessionEventOpenTimeout:
		return state != tables.SessionOpening
	case tables.SessionEventCloseTimeout:
		return state != tables.SessionClosing
	case tables.SessionEventLingerExpired:
		return state != tables.SessionLingering
	case tables.SessionEventRefusedDownstream, tables.SessionEventRefusedHere, tables.SessionEventDownstreamBroken:
		return none || closed || state == tables.SessionLingering || state == tables.SessionOpening // no link, or not dialled yet
	case tables.SessionEventStepFailedDownstreamUnanswered, tables.SessionEventStepFailedDownstreamAnswered:
		return !opened
	case tables.SessionEventCancelStepUnanswered:
		return !opened // without steps it is the other one
	}
	return false
}

// Every pair of state and event does in the core what its row says: state, error, and the count of what is impossible.
func TestTheCoreDoesWhatTheTableSays(t *testing.T) {
	asked := 0
	for _, state := range tables.SessionStates() {
		for _, event := range tables.SessionEvents() {
			input := inputs[event]
			if input == nil || unasked(state, event) {
				continue
			}
			asked++
			t.Run(fmt.Sprintf("%v/%v", state, event), func(t *testing.T) {
				b := in(t, state)
				input(b)
				b.check(tables.SessionTransition(state, event))
			})
		}
	}
	if asked < 120 {
		t.Errorf("only %d pairs were tried", asked)
	}
}

// check compares what happened with a row.
func (b *bench) check(row tables.SessionRow) {
	b.t.Helper()
	var refused *fault.Error
	ended, impossible := false, 0
	for _, e := range b.out {
		switch e := e.(type) {
		case session.Refuse:
			refused = e.Err
		case session.EndUp:
			ended = true
		case session.Impossible:
			impossible++
		}
	}
	got, want := b.n.core.State(), row.Next
	switch row.Outcome {
	case tables.OutcomeImpossible:
		if impossible != 1 || b.n.core.Impossibles() != 1 || got != row.State {
			b.t.Errorf("state %v, counted %d; want %v and 1", got, impossible, row.State)
		}
		return
	case tables.OutcomeRefused:
		if has(row, tables.SessionEffectViolate) {
			want = tables.SessionTransition(row.State, tables.SessionEventViolation).Next
			if !ended {
				b.t.Error("the stream does not end")
			}
		} else if refused == nil || refused.Code != row.Error && row.Event != tables.SessionEventViolation { // that one brings its own

			b.t.Errorf("refused with %v, want %v", refused, row.Error)
		}
	default:
		ends := has(row, tables.SessionEffectEndWithError) || got == tables.SessionClosed && has(row, tables.SessionEffectCloseDownstream)
		if ends != ended && !has(row, tables.SessionEffectSendClosed) && !has(row, tables.SessionEffectSupersedeOlder) {
			b.t.Errorf("the stream ended: %v", ended)
		}
	}
	if impossible != 0 {
		b.t.Errorf("%d impossible transitions", impossible)
	}
	if got != want && !passes(row, got) {
		b.t.Errorf("the core is %v, the table says %v", got, want)
	}
}

func has(row tables.SessionRow, effect tables.SessionEffect) bool {
	for _, e := range row.Effects {
		if e == effect {
			return true
		}
	}
	return false
}

// passes says whether a core may go on from the row's state by itself at once: nothing to linger with, nothing to wait for
// below, or nothing left to unwind.
func passes(row tables.SessionRow, got tables.SessionState) bool {
	switch {
	case has(row, tables.SessionEffectLinger), has(row, tables.SessionEffectViolate), has(row, tables.SessionEffectCloseDownstream):
		return got == tables.SessionClosed
	case row.Next == tables.SessionOpening && row.Event == tables.SessionEventOpenedDownstream:
		return got == tables.SessionActive
	}
	return false
}

// Every effect and every event of the tables is known to the code: a row that names a new one would panic.
func TestEveryStepPairHasARow(t *testing.T) {
	for _, state := range tables.StepStates() {
		for _, event := range tables.StepEvents() {
			row := tables.StepTransition(state, event)
			if row.Outcome == 0 || state.Final() && row.Outcome == tables.OutcomeNext && row.Next != state {
				t.Errorf("%v, %v: %+v", state, event, row)
			}
		}
	}
}
