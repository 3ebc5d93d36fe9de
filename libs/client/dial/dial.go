// Package dial opens connections to workers: message sizes, keepalive, transport security and what to say when nobody
// answers. It knows no method of the contract.
package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Options say how to connect.
type Options struct {
	TLS          *tls.Config                                     // nil: no transport security
	Credentials  credentials.PerRPCCredentials                   // nil: none; only sent over TLS
	MessageBytes int                                             // greatest message in either direction, bytes
	Keepalive    time.Duration                                   // a silent connection is probed after this; at least 10 s
	DialTimeout  time.Duration                                   // for one attempt to connect
	Backoff      time.Duration                                   // between attempts to connect, at first
	Interceptors []grpc.DialOption                               // tracing and the like
	Dialer       func(context.Context, string) (net.Conn, error) // nil: TCP

	roots          func() *x509.CertPool // of Files, where they name a CA
	host, identity string                // of Expect
}

// Default are the contract's promises: messages of 1 MiB and a little, keepalive 20 s.
func Default() Options {
	return Options{
		MessageBytes: 4 << 20, Keepalive: 20 * time.Second, DialTimeout: 3 * time.Second, Backoff: 100 * time.Millisecond,
	}
}

// Conn is a connection to one worker. It connects at its first use, and again when it broke.
type Conn struct {
	*grpc.ClientConn
	Address string

	last atomic.Pointer[error] // how the last attempt to connect ended; nil before the first
}

// Open makes a connection to HOST:PORT. It does not connect yet; the error is about the address.
func Open(address string, o Options) (*Conn, error) {
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" || len(address) > 261 {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "%q is no address of a worker; write HOST:PORT, as 10.0.0.7:7711", address)
	}
	conn := &Conn{Address: address}
	security := insecure.NewCredentials()
	if o.TLS != nil {
		security = handshake{credentials.NewTLS(o.TLSFor(address)), conn}
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MessageBytes), grpc.MaxCallSendMsgSize(o.MessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: o.Keepalive, Timeout: o.Keepalive / 2}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: o.Backoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: o.DialTimeout,
		}),
		grpc.WithContextDialer(conn.dialer(o)),
		grpc.WithDisableServiceConfig(),
	}
	if o.Credentials != nil {
		options = append(options, grpc.WithPerRPCCredentials(o.Credentials))
	}
	client, err := grpc.NewClient("passthrough:///"+address, append(options, o.Interceptors...)...)
	if err != nil {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "the connection to %s cannot be set up: %w", address, err)
	}
	conn.ClientConn = client
	return conn, nil
}

// dialer remembers why it failed: gRPC hides it in a text.
func (c *Conn) dialer(o Options) func(context.Context, string) (net.Conn, error) {
	dial := o.Dialer
	if dial == nil {
		dialer := &net.Dialer{Timeout: o.DialTimeout}
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}
	}
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := dial(ctx, address)
		c.last.Store(&err)
		return conn, err
	}
}

// handshake remembers why the other side's proof was not accepted, or ours.
type handshake struct {
	credentials.TransportCredentials
	conn *Conn
}

func (h handshake) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		failed := fmt.Errorf("no TLS: %w", err)
		h.conn.last.Store(&failed)
	}
	return secured, info, err
}

// Clone is as gRPC asks for it.
func (h handshake) Clone() credentials.TransportCredentials {
	return handshake{h.TransportCredentials.Clone(), h.conn}
}

// Connect waits until the worker answers the door, or ctx ends.
//
// Errors: DOWNSTREAM_UNREACHABLE with what the last attempt met.
func (c *Conn) Connect(ctx context.Context) error {
	c.ClientConn.Connect()
	for {
		state := c.GetState()
		if state == connectivity.Ready {
			return nil
		}
		if !c.WaitForStateChange(ctx, state) {
			return c.Unreachable()
		}
		if c.GetState() == connectivity.Idle {
			c.ClientConn.Connect()
		}
	}
}

// Unreachable is the error of a call that found no worker at the address.
func (c *Conn) Unreachable() *fault.Error {
	why := "it does not answer"
	if last := c.last.Load(); last != nil && *last != nil {
		why = Reason(*last)
	} else if last != nil {
		why = "what answers there speaks no gRPC, or hung up as one does that wants TLS or a client certificate"
	}
	return fault.New(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE, "").With(func(e *fault.Error) {
		e.Message = fmt.Sprintf("The worker at %s cannot be reached (%s); is it running, and is the address right?", c.Address, why)
		e.Inferred = true
	})
}

// Reason is a network error in few words.
func Reason(err error) string {
	var name *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route to the host"
	case errors.As(err, &name):
		return "the host name is unknown"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	return err.Error()
}
