package conformance

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// peerCacheCases are about what the first hop and the next one hold together.
func peerCacheCases() []Case {
	const cancelled = workerpb.ErrorCode_ERROR_CODE_CANCELLED
	return []Case{
		{ID: "peer.made-equal", Clauses: []string{"OPN-14", "LOS-2"}, Skip: anyLength, Says: "Where the next hop holds less, the first goes back to it before Opened, and tells what it held before.", Run: func(t *T) {
			d, o := t.lostWithFive()
			l, b, again := t.dialled(o)
			b.tokens = d.tokens[:3]
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: b.opened()}})
			next := &driver{link: l, open: again, opened: l.next().GetOpened(), replies: map[uint64]*reply{}, tokens: b.tokens}
			if next.opened == nil {
				t.Fatalf("Opened did not come: %v", l.end)
			}
			next.holds(next.opened.GetCache(), next.tokens)
			for i, held := range [][]uint32{d.tokens, d.tokens[:3]} {
				next.holds(next.opened.GetHops()[i].GetFound(), held)
			}
			id := next.put(next.step(somePrefill(t)))
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			next.result(id)
		}},
		{ID: "peer.opened-other-tokens", Clauses: []string{"OPN-14", "FEN-7"}, Says: "A next hop that opens with other tokens than the first hop holds is not opened upon.", Run: func(t *T) {
			_, o := t.lostWithFive()
			l, b, _ := t.dialled(o)
			b.tokens = t.ids(3, 77)
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: b.opened()}})
			l.refusal()
		}},
		{ID: "peer.reach-met", Clauses: []string{"CAC-3", "STP-9"}, Says: "The reach of a result holds no length that the next hop cannot return to.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			id := d.put(d.step(prefill(t.ids(6, 1)...)))
			s := b.step()
			b.tokens = append(b.tokens, s.GetPrefill().GetTokens()...)
			state := b.state()
			state.Reach = []*workerpb.LengthSpan{{From: proto.Uint32(0), To: proto.Uint32(0)}, {From: proto.Uint32(3), To: proto.Uint32(4)}, {From: proto.Uint32(6), To: proto.Uint32(6)}}
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepResult{StepResult: &workerpb.StepResult{StepId: id, Cache: state, Finish: workerpb.Finish_FINISH_DONE}}})
			for _, span := range d.result(id).GetCache().GetReach() {
				for length := span.GetFrom(); length <= span.GetTo(); length++ {
					if length == 1 || length == 2 || length == 5 {
						t.Errorf("the reach holds %d, the next hop cannot go back to it", length)
					}
				}
			}
		}},
		{ID: "peer.truncate-waits", Clauses: []string{"FEN-4", "STP-9"}, Skip: anyLength, Says: "A Truncate behind a step that the next hop has not answered waits for the answer.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			first := d.put(d.step(prefill(t.ids(6, 1)...)))
			cut := d.put(d.step(truncate(4)))
			s := b.step()
			b.silent("before the step before the Truncate is answered")
			b.result(s, workerpb.Finish_FINISH_DONE)
			if s = b.step(); s.GetTruncate() == nil || s.GetTruncate().GetLength() != 4 {
				t.Fatalf("the next hop got %v, the Truncate was due", s)
			}
			b.result(s, workerpb.Finish_FINISH_DONE)
			if r := d.done(first); r.failed != nil {
				t.Errorf("the step before the Truncate failed: %v", r.failed.GetError())
			}
			d.result(cut)
		}},
		{ID: "peer.truncate-stands", Clauses: []string{"FEN-4", "CAN-1"}, Skip: anyLength, Says: "A Truncate whose turn has come is not cancelled any more.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			first := d.put(d.step(prefill(t.ids(6, 1)...)))
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.result(first)
			cut := d.put(d.step(truncate(2)))
			s := b.step()
			d.send(cancelStep(cut, cut, true))
			b.silent("after the cancel of a Truncate")
			d.silent("before the next hop answered the Truncate")
			b.result(s, workerpb.Finish_FINISH_DONE)
			d.result(cut)
		}},
		{ID: "peer.room-comes-back", Clauses: []string{"FLO-4", "STP-10"}, Says: "Room for the token of a step that failed without one is there for the next step.", Run: func(t *T) {
			d, b := t.withPeer(nil, func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(1) })
			id := d.give(d.step(someSample(t)))
			b.fail(b.step().GetStepId(), peerError(cancelled, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER))
			if r := d.doneUnjudged(id); r.failed == nil {
				t.Fatalf("the step succeeded")
			}
			id = d.put(d.step(someSample(t)))
			s := b.step()
			b.token(id, 0, 5)
			b.tokens = append(b.tokens, s.GetDecode().GetTokens()...)
			b.sendResult(id, workerpb.Finish_FINISH_DONE, 1)
			if d.result(id); len(d.of(id).tokens) != 1 {
				t.Errorf("%d tokens came", len(d.of(id).tokens))
			}
		}},
	}
}

// lostWithFive leaves five tokens in the first hop, whose next hop went away; it returns what makes an Open the next attempt.
func (t *T) lostWithFive() (*driver, func(*workerpb.Open)) {
	d, b := t.withPeer(nil, func(o *workerpb.Open) { o.Linger = durationpb.New(5 * time.Second) })
	id := d.put(d.step(prefill(t.ids(5, 1)...)))
	b.result(b.step(), workerpb.Finish_FINISH_DONE)
	d.result(id)
	b.end(errPeerDone)
	d.ends(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)
	return d, func(o *workerpb.Open) {
		o.SessionId, o.SessionKey, o.Attempt, o.Linger = d.open.GetSessionId(), d.open.GetSessionKey(), 2, d.open.GetLinger()
	}
}
