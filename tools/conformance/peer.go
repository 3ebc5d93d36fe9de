package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// Peer is a next hop that does what a case tells it: the target dials it, so that what a hop says to the one behind it, and
// what it makes of every answer, can be seen. It belongs to one target and serves one case at a time.
type Peer struct {
	workerpb.UnimplementedWorkerServiceServer
	workerpb.UnimplementedRingServiceServer
	Address string
	server  *grpc.Server
	served  chan struct{}

	mu      sync.Mutex
	waiting chan *below  // of the case at work; nil: streams are refused
	rings   chan *ringIn // the same for rings
}

// Listen starts a peer at an address that the target can reach, as 127.0.0.1:0; options say its TLS.
func Listen(address string, options ...grpc.ServerOption) (*Peer, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen as the next hop on %s: %w", address, err)
	}
	p := &Peer{Address: listener.Addr().String(), server: grpc.NewServer(options...), served: make(chan struct{})}
	workerpb.RegisterWorkerServiceServer(p.server, p)
	workerpb.RegisterRingServiceServer(p.server, p)
	go func() {
		defer close(p.served)
		_ = p.server.Serve(listener) // ends with Close
	}()
	return p, nil
}

// Close ends the peer and all its streams.
func (p *Peer) Close() {
	p.server.Stop()
	<-p.served
}

// expect makes the peer take streams for a case.
func (p *Peer) expect(streams chan *below) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = streams
}

// errPeerDone ends a stream of the peer as a process that ends does: without Closed.
var errPeerDone = errors.New("the peer is done")

// Session hands a stream to the case and lives as long as the case lets it.
func (p *Peer) Session(stream grpc.BidiStreamingServer[workerpb.SessionRequest, workerpb.SessionResponse]) error {
	p.mu.Lock()
	waiting := p.waiting
	p.mu.Unlock()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	b := &below{stream: stream, in: make(chan *workerpb.SessionRequest, 4096), end: cancel}
	select {
	case waiting <- b: // a nil channel never takes it
	default:
		return errPeerDone
	}
	go b.read(ctx)
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, errPeerOK) {
		return cause
	}
	return nil
}

// ringIn is a ring from the target to the peer, seen by the peer.
type ringIn struct{ in chan *workerpb.RingRequest }

// expectRings makes the peer take rings for a case; nil: they are refused.
func (p *Peer) expectRings(rings chan *ringIn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rings = rings
}

// Ring hands a ring to the case and reads it to its end.
func (p *Peer) Ring(stream grpc.ClientStreamingServer[workerpb.RingRequest, workerpb.RingResponse]) error {
	p.mu.Lock()
	rings := p.rings
	p.mu.Unlock()
	r := &ringIn{in: make(chan *workerpb.RingRequest, 4096)}
	defer close(r.in)
	select {
	case rings <- r: // a nil channel never takes it
	default:
		return errPeerDone
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return stream.SendAndClose(&workerpb.RingResponse{})
		}
		select {
		case r.in <- m:
		default:
			return errPeerDone
		}
	}
}

// next is the next message of the ring; nil at its end.
func (r *ringIn) next(t *T) *workerpb.RingRequest {
	select {
	case m := <-r.in:
		return m
	case <-time.After(patience):
		t.Fatalf("nothing came by the ring for %v", patience)
		return nil
	}
}

// errPeerOK ends a stream of the peer with status OK.
var errPeerOK = errors.New("ok")

// below is a stream from the target to the peer, seen by the peer.
type below struct {
	t      *T
	stream grpc.BidiStreamingServer[workerpb.SessionRequest, workerpb.SessionResponse]
	in     chan *workerpb.SessionRequest
	end    context.CancelCauseFunc
	open   *workerpb.Open
	tokens []uint32 // that the peer holds
}

func (b *below) read(ctx context.Context) {
	defer close(b.in)
	for {
		m, err := b.stream.Recv()
		if err != nil {
			return
		}
		select {
		case b.in <- m:
		case <-ctx.Done():
			return
		}
	}
}

// next is the next message of the target; nil when it hung up.
func (b *below) next() *workerpb.SessionRequest {
	select {
	case m := <-b.in:
		return m
	case <-time.After(patience):
		b.t.Fatalf("the target sent nothing to its next hop for %v", patience)
		return nil
	}
}

// silent says that the target sends nothing for a while.
func (b *below) silent(what string) {
	select {
	case m := <-b.in:
		b.t.Fatalf("%s: the target sent %v to its next hop", what, m)
	case <-time.After(quiet):
	}
}

func (b *below) send(m *workerpb.SessionResponse) {
	if err := b.stream.Send(m); err != nil {
		b.t.Fatalf("the peer cannot send %T: %v", m.GetKind(), err)
	}
}

// step takes the next message, which must be a step, with the frames of its boundary, and gives its credit back.
func (b *below) step() *workerpb.Step {
	m := b.next()
	s := m.GetStep()
	if s == nil {
		b.t.Fatalf("the target sent %v to its next hop, a step was due", m)
	}
	b.whole(s.GetBoundary())
	b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{
		Credit: &workerpb.Credit{Steps: proto.Uint32(1), Bytes: proto.Uint64(s.GetBoundary().GetSize())},
	}})
	return s
}

// whole collects the frames of a boundary and checks their form.
func (b *below) whole(boundary *workerpb.Boundary) {
	if boundary == nil || boundary.GetSize() == uint64(len(boundary.GetData())) {
		return
	}
	var all []byte
	for i := uint32(0); uint64(len(all)) < boundary.GetSize(); i++ {
		f := b.next().GetFrame()
		if left := boundary.GetSize() - uint64(len(all)); f.GetIndex() != i || uint64(len(f.GetData())) != min(left, peerFrame) {
			b.t.Fatalf("frame %d has the index %d and %d bytes, %d are left", i, f.GetIndex(), len(f.GetData()), left)
		}
		all = append(all, f.GetData()...)
	}
	boundary.Data = all
}

// state is the cache that the peer says it holds.
func (b *below) state() *workerpb.CacheState {
	return &workerpb.CacheState{
		Length: proto.Uint32(uint32(len(b.tokens))), ChainHash: chainHash(b.open.GetExpect().GetFingerprint(), b.tokens),
		Reach: []*workerpb.LengthSpan{{From: proto.Uint32(0), To: proto.Uint32(uint32(len(b.tokens)))}},
	}
}

// result answers a step well: the peer then holds its tokens, and the sampled ones that were evaluated.
func (b *below) result(s *workerpb.Step, finish workerpb.Finish, evaluated ...uint32) {
	switch kind := s.GetKind().(type) {
	case *workerpb.Step_Prefill:
		b.tokens = append(b.tokens, kind.Prefill.GetTokens()...)
	case *workerpb.Step_Decode:
		b.tokens = append(b.tokens, kind.Decode.GetTokens()...)
	case *workerpb.Step_Generate:
		b.tokens = append(b.tokens, kind.Generate.GetTokens()...)
	case *workerpb.Step_Truncate:
		b.tokens = b.tokens[:min(len(b.tokens), int(kind.Truncate.GetLength()))]
	}
	b.tokens = append(b.tokens, evaluated...)
	b.sendResult(s.GetStepId(), finish, 0)
}

func (b *below) sendResult(id uint64, finish workerpb.Finish, sampled uint32) {
	b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepResult{StepResult: &workerpb.StepResult{
		StepId: id, Cache: b.state(), Finish: finish, Sampled: proto.Uint32(sampled),
		Timing: []*workerpb.HopTiming{{Hop: proto.Uint32(0), Compute: durationpb.New(time.Microsecond), Shapes: []uint32{1}}},
	}}})
}

// fail answers a step with an error.
func (b *below) fail(id uint64, e *workerpb.ShardError) {
	b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepFailed{StepFailed: &workerpb.StepFailed{StepId: id, Error: e, Cache: b.state()}}})
}

// peerError is an error that the peer raises about itself.
func peerError(code workerpb.ErrorCode, scope workerpb.ErrorScope, recovery workerpb.Recovery) *workerpb.ShardError {
	self := &workerpb.HopRef{Index: proto.Uint32(0), WorkerId: peerName, Instance: make([]byte, 16)}
	return &workerpb.ShardError{Code: code, Message: "The peer says so.", Scope: scope, Recovery: recovery, Origin: self, Subject: self}
}

// peerName is the worker_id of a peer.
const peerName = "conformance-peer"

// peerFrame is the frame size that the peer asks for, the least that is legal.
const peerFrame = 65536

// opened is what the peer answers to an Open.
func (b *below) opened() *workerpb.Opened {
	shard := b.t.tail().Is.GetShard()
	return &workerpb.Opened{
		Revision: 1, Features: []string{"session"}, Window: &workerpb.Credit{Steps: proto.Uint32(4), Bytes: proto.Uint64(4 << 20)},
		MaxStepTokens: 64, FrameBytes: peerFrame, Cache: b.state(), Linger: b.open.GetLinger(),
		Ability: &workerpb.CacheAbility{
			Truncate: workerpb.TruncateAbility_TRUNCATE_ABILITY_ANY, Copy: workerpb.CopyAbility_COPY_ABILITY_PREFIX, Marks: proto.Uint32(0),
			Capacity: b.open.GetContextTokens(),
		},
		Hops: []*workerpb.HopReport{{
			Hop: &workerpb.HopRef{Index: proto.Uint32(0), WorkerId: peerName, Instance: make([]byte, 16)}, Layers: b.open.GetExpect().GetLayers(),
			Found: b.state(), Numerics: &workerpb.Numerics{Backend: "cpu", Threads: 1, CacheType: "f16", MicroBatch: shard.GetNLayer(), Build: make([]byte, 32)},
		}},
	}
}

// peerOpen is an Open for the first hop and the peer behind it.
func (t *T) peerOpen() *workerpb.Open {
	o := t.openFor(0)
	shard := t.head().Is.GetShard()
	o.Route = []*workerpb.RouteHop{{Address: t.Peer.Address, Layers: &workerpb.LayerRange{
		First: proto.Uint32(shard.GetLayers().GetEnd()), End: shard.GetNLayer(),
	}}}
	return o
}

// dialled sends an Open whose next hop is the peer and waits until the target has dialled it.
func (t *T) dialled(change ...func(*workerpb.Open)) (*link, *below, *workerpb.Open) {
	streams := make(chan *below, 4)
	t.Peer.expect(streams)
	t.Cleanup(func() { t.Peer.expect(nil) })
	o := t.peerOpen()
	for _, c := range change {
		c(o)
	}
	l := t.link(t.head())
	l.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	var b *below
	select {
	case b = <-streams:
	case m := <-l.in:
		t.Fatalf("the target did not dial the peer at %s: %v, %v", t.Peer.Address, m, l.end)
	case <-time.After(patience):
		t.Fatalf("the target did not dial the peer at %s", t.Peer.Address)
	}
	b.t = t
	t.Cleanup(func() { b.end(errPeerDone) })
	if b.open = b.next().GetOpen(); b.open == nil {
		t.Fatalf("the first message to the next hop is no Open")
	}
	return l, b, o
}

// withPeer opens a session over the first hop and the peer.
func (t *T) withPeer(change func(*workerpb.Opened), changes ...func(*workerpb.Open)) (*driver, *below) {
	l, b, o := t.dialled(changes...)
	answer := b.opened()
	if change != nil {
		change(answer)
	}
	b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: answer}})
	m := l.next()
	if m.GetOpened() == nil {
		t.Fatalf("%v came, Opened was due: %v", m, l.end)
	}
	return &driver{link: l, open: o, opened: m.GetOpened(), replies: map[uint64]*reply{}, steps: int64(m.GetOpened().GetWindow().GetSteps())}, b
}
