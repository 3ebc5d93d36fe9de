package conformance

import (
	"net"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// refuse ends the stream with an error before Opened.
func (b *below) refuse(e *workerpb.ShardError) {
	s, err := status.New(codes.Aborted, e.GetMessage()).WithDetails(e)
	if err != nil {
		b.t.Fatalf("make the refusal: %v", err)
	}
	b.end(s.Err())
}

// token sends a sampled token up.
func (b *below) token(step uint64, index, id uint32) {
	b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Token{
		Token: &workerpb.Token{StepId: step, Index: proto.Uint32(index), Id: proto.Uint32(id), Bytes: []byte("x")},
	}})
}

// statusError is the ShardError of a status, as the peer said it: its message is not the table's.
func statusError(t *T, err error) *workerpb.ShardError {
	s, _ := status.FromError(err)
	for _, detail := range s.Details() {
		if e, ok := detail.(*workerpb.ShardError); ok {
			return e
		}
	}
	t.Fatalf("the status carries no ShardError: %v", err)
	return nil
}

// relayed checks that an error came up as it was said, with its hops one further on.
func relayed(t *T, said, got *workerpb.ShardError) {
	want := proto.CloneOf(said)
	want.Origin.Index, want.Subject.Index = proto.Uint32(1), proto.Uint32(1)
	if !proto.Equal(got, want) {
		t.Errorf("the next hop said %v, this came up: %v", said, got)
	}
}

// named checks which hop an error blames.
func named(t *T, e *workerpb.ShardError, index uint32) {
	if e.GetSubject() == nil || e.GetSubject().GetIndex() != index {
		t.Errorf("%s blames the hop %v, hop %d is due", name(e.GetCode()), e.GetSubject(), index)
	}
}

// vacant is an address on the peer's host where nobody listens.
func vacant(t *T) string {
	host, _, err := net.SplitHostPort(t.Peer.Address)
	if err != nil {
		t.Fatalf("the peer's address: %v", err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatalf("free the port: %v", err)
	}
	return address
}

// doneUnjudged waits for a step's reply without judging the message of its error, which is the peer's.
func (d *driver) doneUnjudged(id uint64) *reply {
	faults := d.t.faults
	r := d.done(id)
	d.t.faults = faults
	return r
}

func openPassedOn(t *T) {
	_, b, o := t.dialled()
	got := b.open
	shard := t.head().Is.GetShard()
	switch {
	case !slices.Equal(got.GetSessionId(), o.GetSessionId()) || !slices.Equal(got.GetSessionKey(), o.GetSessionKey()) || got.GetAttempt() != o.GetAttempt():
		t.Errorf("id, key or attempt changed: %v", got)
	case len(got.GetRoute()) != 0 || got.GetEgress() != workerpb.Egress_EGRESS_FORWARD || got.GetContextTokens() != o.GetContextTokens():
		t.Errorf("route %v, egress %v, context %d", got.GetRoute(), got.GetEgress(), got.GetContextTokens())
	case !proto.Equal(got.GetExpect().GetLayers(), o.GetRoute()[0].GetLayers()) || !slices.Equal(got.GetExpect().GetFingerprint(), o.GetExpect().GetFingerprint()):
		t.Errorf("expect %v", got.GetExpect())
	case !proto.Equal(got.GetExpect().GetBoundaryIn(), shard.GetBoundaryOut()):
		t.Errorf("boundary_in %v, this hop sends %v", got.GetExpect().GetBoundaryIn(), shard.GetBoundaryOut())
	case got.GetHeld() == nil || got.GetHeld().Length == nil || got.GetHeld().GetLength() != 0 || len(got.GetHeld().GetChainHash()) != 16:
		t.Errorf("held %v", got.GetHeld())
	case got.GetBudget().AsDuration() <= 0 || got.GetBudget().AsDuration() >= o.GetBudget().AsDuration():
		t.Errorf("the budget is %v of %v", got.GetBudget().AsDuration(), o.GetBudget().AsDuration())
	case got.GetRevisions().GetMin() < 1 || got.GetRevisions().GetMax() > t.head().Is.GetRevisions().GetMax():
		t.Errorf("the revisions are %v", got.GetRevisions())
	}
}

func stepPassedOn(t *T) {
	d, b := t.withPeer(nil)
	tokens := t.ids(3, 1)
	sent := d.step(prefill(tokens...))
	id := d.put(sent)
	s := b.step()
	out := t.head().Is.GetShard().GetBoundaryOut()
	x := s.GetBoundary()
	switch {
	case s.GetStepId() != id || s.After == nil || s.GetAfter() != 0 || !slices.Equal(s.GetPrefill().GetTokens(), tokens):
		t.Errorf("the step was passed on as %v", s)
	case x.GetRows() != 3 || x.GetWidth() != out.GetWidth() || x.GetEncoding() != out.GetEncoding() || x.GetSize() != uint64(12*out.GetWidth()) || len(x.GetData()) != int(x.GetSize()):
		t.Errorf("the boundary is %d × %d, %v, %d bytes of %d", x.GetRows(), x.GetWidth(), x.GetEncoding(), len(x.GetData()), x.GetSize())
	case s.GetBudget().AsDuration() <= 0 || s.GetBudget().AsDuration() >= sent.GetBudget().AsDuration():
		t.Errorf("the budget is %v of %v", s.GetBudget().AsDuration(), sent.GetBudget().AsDuration())
	}
	d.silent("before the next hop has done the step")
	b.result(s, workerpb.Finish_FINISH_DONE)
	if r := d.result(id); len(r.GetTiming()) != 2 || r.GetTiming()[1].GetHop() != 1 {
		t.Errorf("the timing is %v", r.GetTiming())
	}
}

func resultStands(t *T) {
	d, b := t.withPeer(nil)
	id := d.put(d.step(somePrefill(t)))
	s := b.step()
	d.send(cancelStep(id, id, true))
	d.silent("before the next hop answered the cancelled step")
	b.result(s, workerpb.Finish_FINISH_DONE)
	d.result(id)
	if m := b.next(); m.GetCancelStep() == nil {
		t.Fatalf("the next hop got %v, CancelStep was due", m)
	}
	next := d.put(d.step(somePrefill(t)))
	b.result(b.step(), workerpb.Finish_FINISH_DONE)
	d.result(next)
}

func cancelPassedOn(t *T, undo bool) {
	d, b := t.withPeer(nil)
	id := d.give(d.step(somePrefill(t)))
	s := b.step()
	d.send(cancelStep(id, id, undo))
	c := b.next().GetCancelStep()
	if c == nil || c.GetStepId() != id || c.GetThrough() < id || !c.GetUndo() {
		t.Fatalf("the next hop got %v", c)
	}
	b.fail(s.GetStepId(), peerError(workerpb.ErrorCode_ERROR_CODE_CANCELLED, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER))
	r := d.doneUnjudged(id)
	if r.failed.GetError().GetCode() != workerpb.ErrorCode_ERROR_CODE_CANCELLED {
		t.Fatalf("the step got %v", r)
	}
	d.holds(r.failed.GetCache(), nil)
	next := d.put(d.step(somePrefill(t)))
	b.result(b.step(), workerpb.Finish_FINISH_DONE)
	d.result(next)
	if window := int64(d.opened.GetWindow().GetSteps()); d.steps != window {
		t.Errorf("%d steps of credit are left of %d", d.steps, window)
	}
}

func peerRun(t *T) {
	d, b := t.withPeer(nil)
	tokens := t.ids(2, 1)
	id := d.put(d.step(generate(3, tokens)))
	s := b.step()
	if !slices.Equal(s.GetGenerate().GetTokens(), tokens) || s.GetBoundary().GetRows() != 2 {
		t.Fatalf("the run was passed on as %v", s)
	}
	drawn := t.ids(3, 7)
	b.tokens = append(b.tokens, tokens...)
	for i := range uint32(2) {
		b.token(id, i, drawn[i])
		m := b.next()
		it := m.GetIteration()
		if it == nil || it.GetStepId() != id || it.Index == nil || it.GetIndex() != i || it.GetToken() != drawn[i] || it.GetBoundary().GetRows() != 1 {
			t.Fatalf("after token %d the next hop got %v", i, m)
		}
		b.tokens = append(b.tokens, drawn[i])
	}
	b.token(id, 2, drawn[2])
	b.sendResult(id, workerpb.Finish_FINISH_LENGTH, 3)
	r := d.done(id)
	if r.failed != nil || !slices.Equal(sampled(r), drawn) || r.result.GetFinish() != workerpb.Finish_FINISH_LENGTH {
		t.Fatalf("the driver got %v", r)
	}
	d.tokens = append(d.tokens, drawn[:2]...)
	d.holds(r.result.GetCache(), d.tokens)
	b.silent("after the run")
}
