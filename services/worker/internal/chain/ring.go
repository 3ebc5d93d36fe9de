package chain

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain/outbox"
)

const (
	ringLimit    = 256             // tokens that wait to be sent on one ring; they come one by one
	ringBound    = 5 * time.Second // for the connection to the head
	ringFarewell = time.Second     // for the head to take what is left and to answer
)

// Ring is the stream of one attempt from its tail to its head. Nothing depends on it: whatever goes wrong ends it, and nobody
// is told.
type Ring struct {
	dialer  *Dialer
	address string
	out     *outbox.Outbox[*workerpb.RingRequest]
	ctx     context.Context
	cancel  context.CancelFunc
}

// Ring dials HOST:PORT, where the head says that it listens, under the same policy as a next hop.
func (d *Dialer) Ring(address string, hello *workerpb.RingHello) *Ring {
	r := &Ring{dialer: d, address: address, out: outbox.New(outbox.Options[*workerpb.RingRequest]{
		Limit: ringLimit, Gauge: d.options.Buffered, Size: func(m *workerpb.RingRequest) int { return proto.Size(m) },
	})}
	r.ctx, r.cancel = context.WithCancel(d.life)
	r.out.Put(&workerpb.RingRequest{Kind: &workerpb.RingRequest_Hello{Hello: hello}}, false)
	d.all.Add(1)
	go func() {
		defer d.all.Done()
		defer r.cancel()
		defer r.out.Drop()
		r.run()
	}()
	return r
}

// Send queues a token. One that finds no room ends the ring: what came after it would be of no use.
func (r *Ring) Send(t *workerpb.RingToken) {
	if !r.out.Put(&workerpb.RingRequest{Kind: &workerpb.RingRequest_Token{Token: t}}, false) {
		r.out.Drop()
		r.cancel()
	}
}

// End ends the ring behind what is queued, within a bound.
func (r *Ring) End() {
	r.out.Finish()
	time.AfterFunc(ringFarewell, r.cancel)
}

// run is the life of a ring.
func (r *Ring) run() {
	at, err := r.dialer.options.Policy.Check(r.ctx, r.dialer.options.Resolver, r.address)
	if err != nil {
		r.dialer.observeRing(err)
		return
	}
	door := r.dialer.door(r.address, at)
	conn, err := r.dialer.take(door)
	if err != nil {
		r.dialer.observeRing(err)
		return
	}
	defer r.dialer.leave(door, conn)
	connecting, cancel := context.WithTimeout(r.ctx, ringBound)
	err = conn.ready(connecting)
	cancel()
	var stream grpc.ClientStreamingClient[workerpb.RingRequest, workerpb.RingResponse]
	if err == nil {
		stream, err = workerpb.NewRingServiceClient(conn.conn).Ring(r.ctx)
	}
	r.dialer.observeRing(err)
	if err == nil {
		r.write(stream)
	}
}

// write sends until the ring ends, and takes the head's answer.
func (r *Ring) write(stream grpc.ClientStreamingClient[workerpb.RingRequest, workerpb.RingResponse]) {
	for {
		m, ok := r.out.Take(r.ctx)
		if !ok || stream.Send(m) != nil {
			break
		}
	}
	_, _ = stream.CloseAndRecv() // so that the stream ends well where it can; nothing depends on what it says
}
