package conformance

import (
	"bytes"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// peerCases have the target dial a next hop that does what the case tells it.
func peerCases() []Case {
	const (
		late        = workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED
		lost        = workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST
		unreachable = workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE
		internal    = workerpb.ErrorCode_ERROR_CODE_INTERNAL
	)
	cases := []Case{
		{ID: "peer.open-passed-on", Clauses: []string{"OPN-13", "OPN-14", "VER-4"}, Says: "The Open that a hop passes on has the same id, key and attempt, the shorter route, its own boundary, what it holds, and a smaller budget.", Run: openPassedOn},
		{ID: "peer.itself", Clauses: []string{"DIA-4"}, Says: "The next hop is shown nothing of what the driver showed of itself, and over TLS something of the hop's own.", Run: itself},
		{ID: "peer.opened-only-then", Clauses: []string{"OPN-13"}, Says: "No Opened comes before the next hop opened.", Run: func(t *T) {
			l, b, _ := t.dialled()
			l.silent("before the next hop opened")
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: b.opened()}})
			if l.next().GetOpened() == nil {
				t.Errorf("Opened did not come")
			}
		}},
		{ID: "peer.weakest", Clauses: []string{"OPN-15", "VER-6"}, Says: "Opened reports the weakest of both hops.", Run: func(t *T) {
			d, _ := t.withPeer(func(o *workerpb.Opened) {
				o.MaxStepTokens, o.ChunkTokens, o.Linger = 3, 2, durationpb.New(time.Second)
				o.Ability.Truncate = workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE
			}, func(o *workerpb.Open) { o.Linger = durationpb.New(5 * time.Second) })
			if o := d.opened; o.GetMaxStepTokens() != 3 || o.GetChunkTokens() != 2 || o.GetFrameBytes() != peerFrame || o.GetLinger().AsDuration() != time.Second ||
				o.GetAbility().GetTruncate() != workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE || !slices.Equal(o.GetFeatures(), []string{"session"}) {
				t.Errorf("Opened is %v", o)
			}
		}},
		{ID: "peer.open-refused", Clauses: []string{"ERR-3", "OPN-19"}, Says: "What the next hop refuses with comes up with its code, message, scope, recovery and hops one further on.", Run: func(t *T) {
			l, b, _ := t.dialled()
			said := peerError(workerpb.ErrorCode_ERROR_CODE_DRAINING, workerpb.ErrorScope_ERROR_SCOPE_SESSION, workerpb.Recovery_RECOVERY_REPLAY)
			b.refuse(said)
			for m := l.next(); m != nil; m = l.next() {
				t.Fatalf("%v came", m)
			}
			relayed(t, said, statusError(t, l.end))
		}},
		{ID: "peer.open-never-answered", Clauses: []string{"OPN-17", "TIM-2"}, Says: "A next hop that never answers Open is named by DEADLINE_EXCEEDED within the budget and its slack.", Run: func(t *T) {
			began := time.Now()
			l, _, _ := t.dialled(func(o *workerpb.Open) { o.Budget = durationpb.New(400 * time.Millisecond) })
			e := t.want(l.refusal(), late)
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("it took %v", took)
			}
			named(t, e, 1)
		}},
		{ID: "peer.unreachable", Clauses: []string{"DIA-3", "ERR-5", "OPN-19"}, Says: "A next hop where nobody listens is DOWNSTREAM_UNREACHABLE within the budget.", Run: func(t *T) {
			began := time.Now()
			o := t.peerOpen()
			o.Route[0].Address = vacant(t)
			e := t.refuseAt(t.head(), unreachable, o)
			if took := time.Since(began); took > o.GetBudget().AsDuration()+time.Second {
				t.Errorf("it took %v", took)
			}
			named(t, e, 1)
		}},
		{ID: "peer.lost", Clauses: []string{"LOS-1", "ERR-6"}, Says: "A next hop that goes away during a step ends the attempt with DOWNSTREAM_LOST within 2 s, and is named.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			d.give(d.step(somePrefill(t)))
			b.step()
			began := time.Now()
			b.end(errPeerDone)
			named(t, d.ends(lost), 1)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
		}},
		{ID: "peer.lost-health", Clauses: []string{"HLT-2"}, Says: "A hop stays ready when its next hop goes away, cannot be reached, or never was there.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			b.end(errPeerDone)
			d.ends(lost)
			o := t.peerOpen()
			o.Route[0].Address = vacant(t)
			t.refuseAt(t.head(), unreachable, o)
			if h := t.health(t.head()); !h.GetReady() || h.GetError() != nil {
				t.Errorf("the health is %v", h)
			}
		}},
		{ID: "peer.health-hops", Clauses: []string{"HLT-6", "HLT-2"}, Says: "Health says of a next hop that it answers, that it went away, and that another never was there, each with its age.", Run: peerSeen},
		{ID: "peer.lost-idle", Clauses: []string{"LOS-1"}, Says: "So does one that goes away while nothing runs.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			b.end(errPeerDone)
			named(t, d.ends(lost), 1)
		}},
		{ID: "peer.lost-then-found", Clauses: []string{"LOS-2", "OPN-14"}, Says: "After the loss a greater attempt finds what the first hop held and offers it to the next one.", Run: func(t *T) {
			d, b := t.withPeer(nil, func(o *workerpb.Open) { o.Linger = durationpb.New(5 * time.Second) })
			id := d.put(d.step(prefill(t.ids(5, 1)...)))
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.result(id)
			b.end(errPeerDone)
			d.ends(lost)
			_, again, _ := t.dialled(func(o *workerpb.Open) {
				o.SessionId, o.SessionKey, o.Attempt, o.Linger = d.open.GetSessionId(), d.open.GetSessionKey(), 2, d.open.GetLinger()
			})
			if held := again.open.GetHeld(); held.GetLength() != 5 || !bytes.Equal(held.GetChainHash(), chainHash(d.open.GetExpect().GetFingerprint(), d.tokens)) {
				t.Errorf("the next attempt offers %v, the first hop held 5 tokens", held)
			}
		}},
		{ID: "peer.no-answer", Clauses: []string{"FEN-6", "TIM-2"}, Says: "A next hop that does not answer a step in its budget and 200 ms is DOWNSTREAM_LOST.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			began := time.Now()
			d.give(d.step(somePrefill(t), func(s *workerpb.Step) { s.Budget = durationpb.New(300 * time.Millisecond) }))
			b.step()
			named(t, d.ends(lost), 1)
			if took := time.Since(began); took < 300*time.Millisecond || took > 3*time.Second {
				t.Errorf("it took %v", took)
			}
		}},
		{ID: "peer.step-passed-on", Clauses: []string{"STP-13", "TIM-1", "STP-9"}, Says: "A step is passed on with its tokens, its boundary as agreed and a smaller budget, and its result comes only after the next hop's.", Run: stepPassedOn},
		{ID: "peer.step-failed", Clauses: []string{"ERR-3", "STP-10", "FEN-2"}, Says: "A step that the next hop fails is undone here and reported with the next hop's error, hops one further on.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			id := d.give(d.step(somePrefill(t)))
			s := b.step()
			said := peerError(workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER)
			b.fail(s.GetStepId(), said)
			r := d.doneUnjudged(id)
			if r.failed == nil {
				t.Fatalf("the step succeeded")
			}
			relayed(t, said, r.failed.GetError())
			d.holds(r.failed.GetCache(), nil)
			next := d.put(d.step(somePrefill(t)))
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.result(next)
		}},
		{ID: "peer.not-undone-before-answer", Clauses: []string{"FEN-1", "FEN-2", "STP-8"}, Says: "A cancelled step that was forwarded gets no reply before the next hop's; the next hop's result stands.", Run: resultStands},
		{ID: "peer.cancel-passed-on", Clauses: []string{"FEN-2", "CAN-1", "GEN-7", "FLO-1"}, Says: "CancelStep is passed on with undo, and the step fails with CANCELLED once the next hop has answered; its credit comes back once.", Run: func(t *T) { cancelPassedOn(t, true) }},
		{ID: "peer.keeping-cancel-passed-on", Clauses: []string{"CAN-1", "FEN-2", "FEN-3"}, Says: "CancelStep with undo false cancels a step that is no run just so.", Run: func(t *T) { cancelPassedOn(t, false) }},
		{ID: "peer.last-token-not-marked", Clauses: []string{"GEN-1"}, Says: "Behind the last token that max_tokens allows no iteration goes down, even if the next hop does not mark it.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			id := d.give(d.step(generate(2, t.ids(2, 1))))
			s := b.step()
			b.token(s.GetStepId(), 0, t.ids(1, 3)[0])
			if it := b.next().GetIteration(); it == nil || it.GetIndex() != 0 {
				t.Fatalf("the next hop got %v", it)
			}
			b.token(s.GetStepId(), 1, t.ids(1, 4)[0])
			for len(d.of(id).tokens) < 2 && d.take() {
			}
			b.silent("behind the last token")
		}},
		{ID: "peer.credit", Clauses: []string{"FLO-3"}, Says: "Without credit of the next hop no step is sent to it.", Run: func(t *T) {
			d, b := t.withPeer(func(o *workerpb.Opened) { o.Window.Steps = proto.Uint32(1) })
			first := d.put(d.step(prefill(t.ids(2, 1)...)))
			second := d.put(d.step(prefill(t.ids(2, 2)...)))
			s := b.next().GetStep()
			if s == nil {
				t.Fatalf("no step came")
			}
			b.silent("with the window of one step taken")
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{Credit: &workerpb.Credit{Steps: proto.Uint32(1), Bytes: proto.Uint64(s.GetBoundary().GetSize())}}})
			b.result(s, workerpb.Finish_FINISH_DONE)
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.done(first)
			d.result(second)
		}},
		{ID: "peer.credit-bytes", Clauses: []string{"FLO-3"}, Says: "Without room for a step's whole boundary at the next hop it is not sent.", Run: func(t *T) {
			row := uint64(t.head().Is.GetShard().GetBoundaryOut().GetWidth()) * 4
			d, b := t.withPeer(func(o *workerpb.Opened) { o.Window.Bytes = proto.Uint64(3*row - 1) })
			id := d.put(d.step(prefill(t.ids(3, 1)...)))
			b.silent("with a byte too little room")
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{Credit: &workerpb.Credit{Bytes: proto.Uint64(1)}}})
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.result(id)
		}},
		{ID: "peer.run", Clauses: []string{"GEN-1", "GEN-2", "STP-14"}, Says: "A run goes round: token, iteration, token; the last token is not sent on.", Run: peerRun},
		{ID: "peer.token-out-of-order", Clauses: []string{"GEN-2", "LOS-1"}, Says: "A token that is not the next one ends the attempt with INTERNAL of the next hop.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			d.give(d.step(generate(4, t.ids(2, 1))))
			b.token(b.step().GetStepId(), 1, 5)
			named(t, d.ends(internal), 1)
		}},
		{ID: "peer.result-unasked", Clauses: []string{"STP-8"}, Says: "A result of a step that waits for none ends the attempt with INTERNAL of the next hop.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			b.sendResult(17, workerpb.Finish_FINISH_DONE, 0)
			named(t, d.ends(internal), 1)
		}},
		{ID: "peer.result-other-tokens", Clauses: []string{"FEN-7", "CAC-1"}, Says: "A result whose hash is of other tokens ends the attempt with INTERNAL of the next hop.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			d.give(d.step(prefill(t.ids(3, 1)...)))
			s := b.step()
			b.tokens = t.ids(3, 2)
			b.sendResult(s.GetStepId(), workerpb.Finish_FINISH_DONE, 0)
			named(t, d.ends(internal), 1)
		}},
		{ID: "peer.lenient", Clauses: []string{"VER-9"}, Says: "Unknown kinds and fields in what the next hop says are passed over.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			odd := &workerpb.SessionResponse{}
			stranger(odd)
			b.send(odd)
			credit := &workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{Credit: &workerpb.Credit{Steps: proto.Uint32(0)}}}
			stranger(credit.GetCredit())
			b.send(credit)
			id := d.put(d.step(somePrefill(t)))
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.result(id)
		}},
		{ID: "peer.draining", Clauses: []string{"SHD-4", "ERR-3"}, Says: "Draining of a later hop comes up with its place in the route.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Draining{Draining: &workerpb.Draining{
				Hop: &workerpb.HopRef{Index: proto.Uint32(0), WorkerId: "conformance-peer"}, Left: durationpb.New(time.Minute),
			}}})
			m := d.next()
			if hop := m.GetDraining().GetHop(); hop.GetIndex() != 1 || hop.GetWorkerId() != "conformance-peer" {
				t.Errorf("%v came", m)
			}
		}},
		{ID: "peer.close-passed-on", Clauses: []string{"CAN-4", "ERR-6"}, Says: "Close is passed on, and Closed comes after the next hop's.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			d.send(closing())
			if m := b.next(); m.GetClose() == nil {
				t.Fatalf("the next hop got %v, Close was due", m)
			}
			d.silent("before the next hop is closed")
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: &workerpb.Closed{Reason: workerpb.CloseReason_CLOSE_REASON_REQUESTED}}})
			b.end(errPeerOK)
			if c := d.over(); c.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED {
				t.Errorf("Closed is %v", c)
			}
		}},
		{ID: "peer.frames", Clauses: []string{"FLO-5"}, Says: "A boundary larger than the next hop's frame is sent in full frames.", Run: func(t *T) {
			width := int(t.head().Is.GetShard().GetBoundaryOut().GetWidth()) * 4
			rows := min(peerFrame/width+1, 64)
			if rows*width <= peerFrame {
				return // the target's boundary of a greatest step fits in a frame
			}
			d, b := t.withPeer(nil)
			id := d.put(d.step(prefill(t.ids(rows, 1)...)))
			s := b.step()
			if len(s.GetBoundary().GetData()) != rows*width {
				t.Errorf("%d bytes came", len(s.GetBoundary().GetData()))
			}
			b.result(s, workerpb.Finish_FINISH_DONE)
			d.result(id)
		}},
	}
	cases = append(append(cases, peerCacheCases()...), append(revisionPeerCases(), pairCases()...)...)
	for i := range cases { // they need a target that dials
		also := cases[i].Skip
		cases[i].Skip = either(hops(2), func(t *Target) string {
			if t.Peer == nil {
				return "the target has no next hop of ours to dial (--peer)"
			}
			if also != nil {
				return also(t)
			}
			return ""
		})
	}
	return append(cases, upstreamCases()...)
}
