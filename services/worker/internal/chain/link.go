package chain

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain/outbox"
)

// Handler is told what happens on a link, in order, from one goroutine. None of it comes after HangUp returned but what was
// under way already.
type Handler interface {
	// RoundTrip is what was measured, before the first message.
	RoundTrip(*Link, time.Duration)
	// Received is a message of the next hop.
	Received(*Link, *workerpb.SessionResponse)
	// Sent is a message that went out; it comes from another goroutine than the rest.
	Sent(*Link, *workerpb.SessionRequest)
	// Ended is the end, unless it was by HangUp. opened says whether Opened had come; err is nil where the stream ended
	// well, has an Origin where the next hop said it, and is Inferred where it was concluded.
	Ended(l *Link, opened bool, err *fault.Error)
}

// Link is the stream of one attempt of one session to its next hop.
type Link struct {
	dialer  *Dialer
	address string
	handler Handler
	out     *outbox.Outbox[*workerpb.SessionRequest]
	ctx     context.Context
	cancel  context.CancelFunc
}

// Open dials HOST:PORT and sends open. bound is how long connecting may take.
func (d *Dialer) Open(address string, open *workerpb.Open, bound time.Duration, h Handler) *Link {
	l := &Link{dialer: d, address: address, handler: h}
	l.out = outbox.New(outbox.Options[*workerpb.SessionRequest]{
		Limit: outboxLimit, Bytes: d.options.Outgoing, Gauge: d.options.Buffered,
		Size: func(m *workerpb.SessionRequest) int { return proto.Size(m) },
		Sent: func(m *workerpb.SessionRequest) { h.Sent(l, m) },
	})
	l.ctx, l.cancel = context.WithCancel(d.life)
	l.out.Put(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: open}}, false)
	d.all.Add(1)
	go func() {
		defer d.all.Done()
		defer l.cancel()
		l.run(bound)
	}()
	return l
}

// Send queues a message; control overtakes what is not. It is false when too much waits.
func (l *Link) Send(m *workerpb.SessionRequest, control bool) bool { return l.out.Put(m, control) }

// HangUp ends the link at once.
func (l *Link) HangUp() {
	l.out.Drop()
	l.cancel()
}

// run is the life of a link.
func (l *Link) run(bound time.Duration) {
	at, err := l.dialer.options.Policy.Check(l.ctx, l.dialer.options.Resolver, l.address)
	if err == nil {
		var conn *shared
		door := l.dialer.door(l.address, at)
		if conn, err = l.dialer.take(door); err == nil {
			defer l.dialer.leave(door, conn)
			l.talk(conn, bound)
			return
		}
	}
	l.dialer.observe(err)
	l.ended(false, err)
}

// talk connects, runs the stream and reports its end.
func (l *Link) talk(conn *shared, bound time.Duration) {
	connecting, cancel := context.WithTimeout(l.ctx, bound)
	err := conn.ready(connecting)
	if err == nil {
		if rtt := conn.measure(connecting); rtt > 0 && l.ctx.Err() == nil {
			l.handler.RoundTrip(l, rtt)
			if o := l.dialer.options.Observer; o != nil {
				o.RoundTrip(rtt)
			}
		}
	}
	cancel()
	l.dialer.observe(err)
	opened := false
	if err == nil {
		opened, err = l.stream(conn)
		if err != nil && !opened && gone(err) {
			err = conn.conn.Unreachable()
		}
	}
	l.ended(opened, err)
}

// gone says whether a stream ended because the connection did.
func gone(err error) bool {
	f := fault.Of(err)
	return f.Inferred && f.Code == workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE
}

// stream reads to the end; a goroutine of its own writes. It returns once that has ended too.
func (l *Link) stream(conn *shared) (opened bool, err error) {
	client, err := workerpb.NewWorkerServiceClient(conn.conn).Session(l.ctx)
	if err != nil {
		return false, err
	}
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		l.write(client)
	}()
	for {
		m, err := client.Recv()
		if err != nil {
			l.out.Drop()
			<-wrote
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return opened, err
		}
		opened = opened || m.GetOpened() != nil
		l.handler.Received(l, m)
	}
}

func (l *Link) write(client grpc.BidiStreamingClient[workerpb.SessionRequest, workerpb.SessionResponse]) {
	for {
		m, ok := l.out.Take(l.ctx)
		if !ok || client.Send(m) != nil { // Recv says why
			return
		}
	}
}

// ended reports the end, unless it was wanted.
func (l *Link) ended(opened bool, err error) {
	if l.ctx.Err() != nil && l.dialer.life.Err() == nil {
		return
	}
	l.handler.Ended(l, opened, fault.Of(err))
}
