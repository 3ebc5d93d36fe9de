package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// ringCases play the tail of a ring into the target's head, and the head of one out of its tail.
func ringCases() []Case {
	const (
		unknown  = workerpb.ErrorCode_ERROR_CODE_SESSION_UNKNOWN
		denied   = workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED
		stale    = workerpb.ErrorCode_ERROR_CODE_STALE_ATTEMPT
		internal = workerpb.ErrorCode_ERROR_CODE_INTERNAL
	)
	toHead := []Case{
		{ID: "ring.offered", Clauses: []string{"RNG-1"}, Says: "The Open that the head passes on names where its ring is reached.", Run: func(t *T) {
			_, b, _ := t.dialled()
			if at := b.open.GetRing().GetAddress(); at == "" || len(at) > 261 {
				t.Errorf("the ring is at %q", at)
			}
		}},
		{ID: "ring.before-the-chain", Clauses: []string{"RNG-5", "RNG-8", "RNG-10"}, Says: "A token by the ring begins the next iteration; the driver is told once the chain brings it, and no iteration comes twice.", Run: ringFirst},
		{ID: "ring.behind-the-chain", Clauses: []string{"RNG-5", "RNG-10"}, Says: "A duplicate behind the chain's token does nothing.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(3, t.ids(2, 1))))
			b.step()
			b.token(id, 0, 5)
			b.iteration(id, 0, 5)
			r.token(id, 0, 5, false)
			b.silent("behind a duplicate")
			if n := r.leave().GetFirstByRing(); n != 0 {
				t.Errorf("%d tokens came first by the ring", n)
			}
			d.send(closing())
		}},
		{ID: "ring.two-ids", Clauses: []string{"RNG-6"}, Says: "A token that the chain brings with another id than the ring did ends the attempt with INTERNAL of the tail.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(3, t.ids(2, 1))))
			b.step()
			r.token(id, 0, 5, false)
			b.iteration(id, 0, 5)
			b.token(id, 0, 6)
			named(t, d.ends(internal), 1)
		}},
		{ID: "ring.two-ids-later", Clauses: []string{"RNG-6"}, Says: "So does a duplicate with another id than the chain brought.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(3, t.ids(2, 1))))
			b.step()
			b.token(id, 0, 5)
			b.iteration(id, 0, 5)
			r.token(id, 0, 6, false)
			named(t, d.ends(internal), 1)
		}},
		{ID: "ring.index-ahead", Clauses: []string{"RNG-6"}, Says: "So does one with an index that nobody can have sampled.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(3, t.ids(2, 1))))
			b.step()
			r.token(id, 1, 6, false)
			named(t, d.ends(internal), 1)
		}},
		{ID: "ring.last", Clauses: []string{"RNG-7"}, Says: "A duplicate that is the last begins no iteration; the run ends with the chain's word.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(3, t.ids(2, 1))))
			s := b.step()
			r.token(id, 0, 5, true)
			b.silent("behind the last token")
			d.silent("before the chain brought it")
			b.token(id, 0, 5)
			b.result(s, workerpb.Finish_FINISH_STOP_TOKEN)
			reply := d.done(id)
			if reply.failed != nil || reply.result.GetFinish() != workerpb.Finish_FINISH_STOP_TOKEN || !slices.Equal(sampled(reply), []uint32{5}) {
				t.Errorf("the run ended with %v after %v", reply.result, sampled(reply))
			}
		}},
		{ID: "ring.greatest-index", Clauses: []string{"RNG-7", "GEN-1"}, Says: "Behind max_tokens no iteration begins, whoever brings the token.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(1, t.ids(2, 1))))
			b.step()
			r.token(id, 0, 5, false)
			b.silent("behind the last token that was asked for")
			d.send(closing())
		}},
		{ID: "ring.cut", Clauses: []string{"RNG-2"}, Says: "A ring that breaks in a run is no event: the run goes on by the chain.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(3, t.ids(2, 1))))
			s := b.step()
			r.token(id, 0, 5, false)
			b.iteration(id, 0, 5)
			r.cut()
			b.token(id, 0, 5)
			b.token(id, 1, 6)
			b.iteration(id, 1, 6)
			b.token(id, 2, 7)
			b.result(s, workerpb.Finish_FINISH_LENGTH, 5, 6)
			if reply := d.done(id); reply.failed != nil || !slices.Equal(sampled(reply), []uint32{5, 6, 7}) {
				t.Errorf("the run ended with %v after %v", reply, sampled(reply))
			}
		}},
		{ID: "ring.none", Clauses: []string{"RNG-2"}, Says: "A ring that the tail never dials delays neither Opened nor a run.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			id := d.give(d.step(generate(2, t.ids(2, 1))))
			s := b.step()
			b.token(id, 0, 5)
			b.iteration(id, 0, 5)
			b.token(id, 1, 6)
			b.result(s, workerpb.Finish_FINISH_LENGTH, 5)
			d.done(id)
		}},
		{ID: "ring.stopped", Clauses: []string{"RNG-5", "GEN-7"}, Says: "A stop between iterations is passed on behind the token in flight, whoever brings it.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.give(d.step(generate(9, t.ids(2, 1))))
			b.step()
			r.token(id, 0, 5, false)
			b.iteration(id, 0, 5)
			d.send(cancelStep(id, id, false))
			b.silent("with an iteration in flight")
			r.token(id, 1, 6, false)
			if m := b.next(); m.GetCancelStep() == nil || m.GetCancelStep().GetUndo() {
				t.Errorf("the next hop got %v, CancelStep without undo was due", m)
			}
			d.send(closing())
		}},
		{ID: "ring.old-step", Clauses: []string{"RNG-9"}, Says: "A duplicate of a step that is over, or of none, is passed over.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := d.put(d.step(generate(1, t.ids(2, 1))))
			s := b.step()
			b.token(id, 0, 5)
			b.result(s, workerpb.Finish_FINISH_LENGTH)
			d.done(id)
			r.token(id, 0, 9, false)
			r.token(id+7, 3, 9, false)
			if _, err := r.stream.CloseAndRecv(); err != nil {
				t.Errorf("the ring ended with %v", err)
			}
			next := d.put(d.step(somePrefill(t)))
			b.result(b.step(), workerpb.Finish_FINISH_DONE)
			d.result(next)
		}},
		{ID: "ring.ends-with-its-attempt", Clauses: []string{"RNG-10"}, Says: "The ring ends when its attempt does.", Run: func(t *T) {
			d, b, r := t.withRing()
			ringWorks(d, b, r)
			d.hangUp()
			if err := r.stream.RecvMsg(&workerpb.RingResponse{}); err != nil {
				t.Errorf("the ring ended with %v", err)
			}
		}},
		helloRefused("unknown", "an unknown session", unknown, func(h *workerpb.RingHello) { h.SessionId = random(16) }),
		helloRefused("wrong-key", "another key", denied, func(h *workerpb.RingHello) { h.SessionKey = random(32) }),
		helloRefused("earlier", "an earlier attempt", stale, func(h *workerpb.RingHello) { h.Attempt-- }),
		helloRefused("later", "a later attempt", stale, func(h *workerpb.RingHello) { h.Attempt++ }),
		helloRefused("no-id", "an id of 15 bytes", malformed, func(h *workerpb.RingHello) { h.SessionId = h.SessionId[:15] }),
		helloRefused("no-key", "no key", malformed, func(h *workerpb.RingHello) { h.SessionKey = nil }),
		helloRefused("no-attempt", "no attempt", malformed, func(h *workerpb.RingHello) { h.Attempt = 0 }),
		helloRefused("unknown-field", "an unknown field", malformed, func(h *workerpb.RingHello) { stranger(h) }),
		{ID: "ring.hello-twice", Clauses: []string{"RNG-3"}, Says: "A second ring beside one that stands is LIFECYCLE_VIOLATION; the first one stands.", Run: func(t *T) {
			d, b, r := t.withRing()
			id := ringWorks(d, b, r)
			other := t.ringTo(b.open.GetRing().GetAddress())
			other.hello(helloOf(d.open))
			other.refused(workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION)
			r.token(id, 1, 6, false)
			b.iteration(id, 1, 6)
		}},
		{ID: "ring.no-hello", Clauses: []string{"RNG-3", "RNG-9"}, Says: "A ring that begins with a token is MALFORMED.", Run: func(t *T) {
			d, b := t.withPeer(nil)
			r := t.ringTo(b.open.GetRing().GetAddress())
			r.token(1, 0, 5, false)
			r.refused(malformed)
			sessionWorks(d, b)
		}},
		tokenRefused("no-step", "no step", func(m *workerpb.RingToken) { m.StepId = 0 }),
		tokenRefused("no-index", "no index", func(m *workerpb.RingToken) { m.Index = nil }),
		tokenRefused("no-id", "no id", func(m *workerpb.RingToken) { m.Id = nil }),
		tokenRefused("id-out-of-range", "an id outside the vocabulary", func(m *workerpb.RingToken) { m.Id = proto.Uint32(1 << 31) }),
		tokenRefused("unknown-field", "an unknown field", func(m *workerpb.RingToken) { stranger(m) }),
	}
	for i := range toHead {
		toHead[i].Skip = either(hops(2), ringAtHead, func(t *Target) string {
			if t.Peer == nil {
				return "the target has no next hop of ours to dial (--peer)"
			}
			return ""
		})
	}
	return append(append(toHead, ringAloneCases()...), ringFromTailCases()...)
}

// ringAtHead is a Case.Skip for heads that offer no ring.
func ringAtHead(t *Target) string {
	for _, f := range t.head().Is.GetFeatures() {
		if f.GetName() == "ring" && f.GetStatus() == workerpb.FeatureStatus_FEATURE_STATUS_ON {
			return ""
		}
	}
	return "the feature ring is not ON at the first hop"
}

// ringAloneCases are about a ring where there is none.
func ringAloneCases() []Case {
	return []Case{
		{ID: "ring.alone", Clauses: []string{"RNG-3"}, Skip: either(ringAtHead, func(t *Target) string {
			if len(t.Hops) > 1 {
				return "the head is not the tail"
			}
			return ""
		}), Says: "A session whose head is its tail has no ring: LIFECYCLE_VIOLATION, and the session goes on.", Run: func(t *T) {
			d := t.openDriver()
			r := t.ringOn(t.head().Conn)
			r.hello(helloOf(d.open))
			r.refused(workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION)
			d.usable()
		}},
		{ID: "ring.hub", Clauses: []string{"RNG-1", "RNG-3"}, Skip: either(needs("hub"), ringAtHead), Says: "A session with egress RETURN has no ring: LIFECYCLE_VIOLATION.", Run: func(t *T) {
			d := t.openDriver(returning)
			r := t.ringOn(t.head().Conn)
			r.hello(helloOf(d.open))
			r.refused(workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION)
		}},
		{ID: "ring.off", Clauses: []string{"RNG-3"}, Skip: func(t *Target) string {
			if ringAtHead(t) == "" {
				return "the feature ring is ON at the first hop"
			}
			return ""
		}, Says: "Where ring is not ON a hello is UNSUPPORTED_FEATURE.", Run: func(t *T) {
			d := t.openDriver()
			r := t.ringOn(t.head().Conn)
			r.hello(helloOf(d.open))
			r.refused(unsupported)
		}},
	}
}

// ringFromTailCases open the target's last worker as the hop before it, and take its ring in.
func ringFromTailCases() []Case {
	cases := []Case{
		{ID: "ring.dialled", Clauses: []string{"RNG-2", "RNG-4"}, Says: "The tail dials the ring with the attempt's id, key and number, and sends each token there too, the last one marked.", Run: ringDialled},
		{ID: "ring.unreachable", Clauses: []string{"RNG-2", "RNG-4"}, Says: "A ring that nobody answers delays neither Opened nor a run.", Run: func(t *T) {
			t.ringless(vacant(t))
		}},
		{ID: "ring.not-allowed", Clauses: []string{"RNG-2", "DIA-2"}, Says: "A ring at a multicast address is not dialled, and that is no error.", Run: func(t *T) {
			t.ringless("224.0.0.1:7711")
		}},
		{ID: "ring.refused", Clauses: []string{"RNG-2"}, Says: "A ring that the head refuses is no error.", Run: func(t *T) {
			t.Peer.expectRings(nil)
			t.ringless(t.Peer.Address)
		}},
		{ID: "ring.address-malformed", Clauses: []string{"OPN-16"}, Says: "A ring whose address is not HOST:PORT is MALFORMED.", Run: func(t *T) {
			o := t.openFor(len(t.Hops) - 1)
			o.Held, o.Ring = heldOf(o, nil), &workerpb.RingTarget{Address: "nowhere"}
			t.refuseAt(t.tail(), malformed, o)
		}},
	}
	for i := range cases {
		cases[i].Skip = either(hops(2), needs("ring"), func(t *Target) string {
			if t.Peer == nil {
				return "the target has no hop of ours to dial (--peer)"
			}
			return ""
		})
	}
	return cases
}

// ring is a stream of RingService into a worker, seen by its caller.
type ring struct {
	t      *T
	stream grpc.ClientStreamingClient[workerpb.RingRequest, workerpb.RingResponse]
	cut    context.CancelFunc
}

// ringOn opens a ring on a connection and sends nothing.
func (t *T) ringOn(conn *grpc.ClientConn) *ring {
	ctx, cancel := context.WithCancel(t.ctx)
	t.Cleanup(cancel)
	stream, err := workerpb.NewRingServiceClient(conn).Ring(ctx)
	if err != nil {
		t.Fatalf("open a ring: %v", err)
	}
	return &ring{t: t, stream: stream, cut: cancel}
}

// ringTo opens a ring to the head, which says that it is reached at address: that is where its port is, too.
func (t *T) ringTo(address string) *ring {
	if address == "" {
		t.Fatalf("the head names no ring")
	}
	return t.ringOn(t.head().Conn)
}

// withRing opens a session over the first hop and the peer, with the ring between them.
func (t *T) withRing() (*driver, *below, *ring) {
	d, b := t.withPeer(nil)
	r := t.ringTo(b.open.GetRing().GetAddress())
	r.hello(helloOf(d.open))
	return d, b, r
}

func helloOf(o *workerpb.Open) *workerpb.RingHello {
	return &workerpb.RingHello{SessionId: o.GetSessionId(), SessionKey: o.GetSessionKey(), Attempt: o.GetAttempt()}
}

func (r *ring) send(m *workerpb.RingRequest) {
	if err := r.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		r.t.Fatalf("send %v by the ring: %v", m, err)
	}
}

func (r *ring) hello(h *workerpb.RingHello) {
	r.send(&workerpb.RingRequest{Kind: &workerpb.RingRequest_Hello{Hello: h}})
}

func (r *ring) token(step uint64, index, id uint32, last bool) {
	r.raw(&workerpb.RingToken{StepId: step, Index: proto.Uint32(index), Id: proto.Uint32(id), Last: last})
}

func (r *ring) raw(m *workerpb.RingToken) {
	r.send(&workerpb.RingRequest{Kind: &workerpb.RingRequest_Token{Token: m}})
}

// leave ends the ring from this side and returns the head's answer.
func (r *ring) leave() *workerpb.RingResponse {
	answer, err := r.stream.CloseAndRecv()
	if err != nil {
		r.t.Fatalf("the ring ended with %v", err)
	}
	return answer
}

// refused waits for the end of the ring, which must be an error of code.
func (r *ring) refused(code workerpb.ErrorCode) {
	r.t.want(r.t.errorOf(r.stream.RecvMsg(&workerpb.RingResponse{})), code)
}

// iteration takes the next message, which must be an iteration.
func (b *below) iteration(step uint64, index, token uint32) {
	m := b.next()
	i := m.GetIteration()
	if i == nil || i.GetStepId() != step || i.GetIndex() != index || i.GetToken() != token {
		b.t.Fatalf("the next hop got %v; iteration %d of step %d with token %d was due", m, index, step, token)
	}
	b.whole(i.GetBoundary())
}

// helloRefused is a hello that is refused; the session goes on, and its own ring too.
func helloRefused(id, what string, code workerpb.ErrorCode, change func(*workerpb.RingHello)) Case {
	return Case{ID: "ring.hello-" + id, Clauses: []string{"RNG-3"}, Says: "A hello with " + what + " is " + name(code) + " and changes nothing.", Run: func(t *T) {
		d, b := t.withPeer(nil, func(o *workerpb.Open) { o.Attempt = 4 })
		h := helloOf(d.open)
		change(h)
		r := t.ringTo(b.open.GetRing().GetAddress())
		r.hello(h)
		r.refused(code)
		good := t.ringTo(b.open.GetRing().GetAddress())
		good.hello(helloOf(d.open))
		ringWorks(d, b, good)
	}}
}

// tokenRefused is a duplicate that ends the ring, not the session.
func tokenRefused(id, what string, change func(*workerpb.RingToken)) Case {
	return Case{ID: "ring.token-" + id, Clauses: []string{"RNG-9"}, Says: "A duplicate with " + what + " ends the ring as MALFORMED; the session goes on.", Run: func(t *T) {
		d, b, r := t.withRing()
		step := d.give(d.step(generate(3, t.ids(2, 1))))
		s := b.step()
		m := &workerpb.RingToken{StepId: step, Index: proto.Uint32(0), Id: proto.Uint32(5)}
		change(m)
		r.raw(m)
		r.refused(malformed)
		b.token(step, 0, 6)
		b.iteration(step, 0, 6)
		b.fail(s.GetStepId(), peerError(workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT, workerpb.ErrorScope_ERROR_SCOPE_STEP, workerpb.Recovery_RECOVERY_NEVER))
		d.doneUnjudged(step)
		sessionWorks(d, b)
	}}
}

// ringWorks proves that a ring stands: a token by it begins the first iteration of a run.
func ringWorks(d *driver, b *below, r *ring) (run uint64) {
	id := d.give(d.step(generate(3, d.t.ids(2, 1))))
	b.step()
	r.token(id, 0, 5, false)
	b.iteration(id, 0, 5)
	return id
}

// sessionWorks proves that a session with the peer goes on.
func sessionWorks(d *driver, b *below) {
	id := d.put(d.step(somePrefill(d.t)))
	b.result(b.step(), workerpb.Finish_FINISH_DONE)
	d.result(id)
}

func ringFirst(t *T) {
	d, b, r := t.withRing()
	id := d.give(d.step(generate(3, t.ids(2, 1))))
	s := b.step()
	r.token(id, 0, 5, false)
	b.iteration(id, 0, 5)
	d.silent("before the chain brought the token")
	r.token(id, 1, 6, false)
	b.iteration(id, 1, 6)
	b.token(id, 0, 5)
	b.token(id, 1, 6)
	b.silent("behind the chain's tokens")
	b.token(id, 2, 7)
	b.result(s, workerpb.Finish_FINISH_LENGTH, 5, 6)
	if reply := d.done(id); reply.failed != nil || !slices.Equal(sampled(reply), []uint32{5, 6, 7}) {
		t.Errorf("the run ended with %v after %v", reply, sampled(reply))
	}
	if n := r.leave().GetFirstByRing(); n != 2 {
		t.Errorf("%d tokens came first by the ring, 2 did", n)
	}
}

// ringDialled runs on the target's last worker, whose ring leads to the peer.
func ringDialled(t *T) {
	rings := make(chan *ringIn, 4)
	t.Peer.expectRings(rings)
	t.Cleanup(func() { t.Peer.expectRings(nil) })
	d := t.asHop(func(o *workerpb.Open) { o.Attempt, o.Ring = 3, &workerpb.RingTarget{Address: t.Peer.Address} })
	var in *ringIn
	select {
	case in = <-rings:
	case <-time.After(patience):
		t.Fatalf("the tail did not dial the ring at %s", t.Peer.Address)
	}
	hello := in.next(t).GetHello()
	if !bytes.Equal(hello.GetSessionId(), d.open.GetSessionId()) || !bytes.Equal(hello.GetSessionKey(), d.open.GetSessionKey()) || hello.GetAttempt() != 3 {
		t.Fatalf("the ring began with %v", hello)
	}
	reply := t.runThrough(d)
	for i, token := range reply.tokens {
		m := in.next(t).GetToken()
		if m.GetStepId() != token.GetStepId() || m.Index == nil || m.GetIndex() != uint32(i) || m.Id == nil || m.GetId() != token.GetId() || m.GetLast() != token.GetLast() {
			t.Errorf("token %v came by the ring as %v", token, m)
		}
	}
	d.finish()
	if m := in.next(t); m != nil {
		t.Errorf("%v came by the ring after the end", m)
	}
}

// ringless runs on the target's last worker, whose ring leads nowhere.
func (t *T) ringless(address string) {
	began := time.Now()
	d := t.asHop(func(o *workerpb.Open) { o.Ring = &workerpb.RingTarget{Address: address} })
	t.runThrough(d)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	d.finish()
}

// runThrough runs for three tokens as the hop before.
func (t *T) runThrough(d *driver) *reply {
	id := t.beginRun(d, func(g *workerpb.Generate) { g.MaxTokens = 3 })
	for i := range uint32(2) {
		d.send(t.iterationOf(id, i))
		for len(d.of(id).tokens) < int(i)+2 {
			if !d.take() {
				t.Fatalf("the stream ended: %v", d.end)
			}
		}
	}
	r := d.done(id)
	if r.failed != nil || len(r.tokens) != 3 {
		t.Fatalf("the run ended with %v", r)
	}
	return r
}
