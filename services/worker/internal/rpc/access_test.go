package rpc_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/rpc"
)

// Connections whose handshake goes no further are cut at the bound, and keep nobody out meanwhile.
func TestStalledHandshakesAreCut(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "ca")
	own := ca.Issue(t, folder, "worker", "127.0.0.1")
	const handshake = 300 * time.Millisecond
	w := whole(t, setting{options: func(o *rpc.Options) {
		var err error
		if o.TLS, err = auth.ServerTLS(discard, own.Cert, own.Key, "", false, "h2"); err != nil {
			t.Fatal(err)
		}
		o.Handshake = handshake
	}})
	began := time.Now()
	var stalled []net.Conn
	for i := range 64 {
		conn, err := net.Dial("tcp", w.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 1 { // the head of a ClientHello, and no more
			if _, err := conn.Write([]byte{22, 3, 1, 2, 0, 1}); err != nil {
				t.Fatal(err)
			}
		}
		stalled = append(stalled, conn)
	}
	o := dial.Default()
	if err := (dial.Files{CA: ca.File}).Secure(&o, discard); err != nil {
		t.Fatal(err)
	}
	conn, err := dial.Open(w.address, o)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := workerpb.NewWorkerServiceClient(conn).GetMetrics(t.Context(), &workerpb.GetMetricsRequest{}); err != nil {
		t.Errorf("beside them: %v", err)
	}
	for _, c := range stalled {
		if err := c.SetReadDeadline(began.Add(20 * handshake)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		for err = error(nil); err == nil; {
			_, err = c.Read(make([]byte, 64)) // an alert may come first
		}
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Fatalf("a connection stands after %v", time.Since(began))
		}
	}
}

// pondering is an authority that thinks until its asker has gone.
type pondering struct{ asked chan struct{} }

func (pondering) Authenticate(context.Context, auth.Peer) (auth.Principal, error) { return "", nil }

func (s pondering) Authorize(ctx context.Context, _ auth.Principal, _ auth.Peer, _ auth.Operation) error {
	s.asked <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

// A caller that leaves while it is asked about leaves nothing behind; the Directory never hears of it.
func TestLeavingWhileAskedAbout(t *testing.T) {
	s := pondering{make(chan struct{})}
	w := whole(t, setting{options: func(o *rpc.Options) { o.Guard = &auth.Guard{Authenticator: s, Authorizer: s, Log: discard} }})
	d := dialTo(t, w)
	d.send(openOf(1, []*worker{w}))
	<-s.asked
	d.cancel()
	if _, err := d.end(); err == nil {
		t.Error("the stream ended well")
	}
	if n := w.dir.Sessions(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
}
