// Package chain is the dialling side of a worker: whom it may dial, the connections that sessions share, the link of one
// session to its next hop, and the ring from a session's tail to its head.
//
// A Link carries messages and says how it ended; what they mean is the business of package session. Nothing here waits on
// behalf of a caller: every method returns at once, and what happens later is told to the Handler.
package chain

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain/outbox"
)

const (
	outboxLimit = 8192             // messages that wait to be sent on one link; credit keeps it far below
	idleFor     = 30 * time.Second // a connection that no session uses is kept for so long
	pingBound   = time.Second      // for the round trip that is measured when a connection is made
)

// Observer hears what happens, for metrics. Its methods return at once.
type Observer interface {
	Dial(outcome string)
	RingDial(outcome string)
	RoundTrip(time.Duration)
}

// Options are how next hops are dialled. All but Outgoing, Buffered and Observer are required.
type Options struct {
	Policy   Policy
	Resolver Resolver
	Dial     dial.Options
	// Outgoing is how many bytes may wait to be sent on one link; 0: no bound but their number.
	Outgoing int
	Buffered *outbox.Gauge // counts what waits to be sent; nil: nobody does
	Observer Observer
}

// Dialer opens links. All methods may be called from any goroutine.
type Dialer struct {
	options Options
	life    context.Context
	end     context.CancelFunc
	all     sync.WaitGroup

	mu    sync.Mutex
	conns map[door]*shared
}

// door is where a connection leads, and who must answer there.
type door struct {
	at       netip.AddrPort
	host     string // as the route has it
	identity string // SAN; "": host
}

// shared is a connection that links share.
type shared struct {
	conn  *dial.Conn
	users int
	idle  *time.Timer // closes it; nil while it is used

	ping sync.Mutex
	rtt  time.Duration
}

// New makes a dialer; Close ends it.
func New(options Options) *Dialer {
	d := &Dialer{options: options, conns: map[door]*shared{}}
	if d.options.Resolver == nil {
		d.options.Resolver = net.DefaultResolver
	}
	d.life, d.end = context.WithCancel(context.Background())
	return d
}

// Close hangs up every link and returns once all have ended.
func (d *Dialer) Close() {
	d.end()
	d.all.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for at, c := range d.conns {
		if c.idle != nil {
			c.idle.Stop()
		}
		_ = c.conn.Close() // nobody uses it
		delete(d.conns, at)
	}
}

// door is that of an address which the policy resolved to at.
func (d *Dialer) door(address string, at netip.AddrPort) door {
	host, _, _ := net.SplitHostPort(address) // the policy has read it
	return door{at, host, d.options.Policy.Identity(host, at)}
}

// take returns the connection through a door, made if need be: one whose last attempt failed is left to those who use it, so
// that this caller learns how things are now.
func (d *Dialer) take(at door) (*shared, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.conns[at]
	if c == nil || c.conn.GetState() == connectivity.TransientFailure {
		if c != nil && c.idle != nil {
			c.idle.Stop()
			_ = c.conn.Close() // nobody uses it
			delete(d.conns, at)
		}
		o, err := d.options.Dial.Expect(at.host, at.identity)
		if err != nil {
			return nil, refused("%s; %w", at.at, err)
		}
		conn, err := dial.Open(at.at.String(), o)
		if err != nil {
			return nil, err
		}
		c = &shared{conn: conn}
		d.conns[at] = c
	}
	if c.idle != nil {
		c.idle.Stop()
		c.idle = nil
	}
	c.users++
	return c, nil
}

// leave gives a connection back; it is closed when nobody has used it for a while.
func (d *Dialer) leave(at door, c *shared) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.users--
	if c.users > 0 {
		return
	}
	if d.conns[at] != c { // it was replaced
		_ = c.conn.Close() // nobody uses it
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(idleFor, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if c.idle == timer {
			_ = c.conn.Close() // nobody uses it
			delete(d.conns, at)
		}
	})
	c.idle = timer
}

// ready waits until the connection stands, or an attempt fails, or ctx ends.
func (c *shared) ready(ctx context.Context) error {
	for {
		state := c.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return c.conn.Unreachable()
		case connectivity.Idle:
			c.conn.ClientConn.Connect()
		case connectivity.Connecting:
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return fault.New(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE, "%s did not take the connection in time", c.conn.Address).
				With(func(e *fault.Error) { e.Inferred = true })
		}
	}
}

// measure returns the round trip, measured once in the life of a connection; 0 when the peer does not say.
func (c *shared) measure(ctx context.Context) time.Duration {
	c.ping.Lock()
	defer c.ping.Unlock()
	if c.rtt > 0 {
		return c.rtt
	}
	bounded, cancel := context.WithTimeout(ctx, pingBound)
	defer cancel()
	began := time.Now()
	if _, err := grpc_health_v1.NewHealthClient(c.conn).Check(bounded, &grpc_health_v1.HealthCheckRequest{}); err == nil {
		c.rtt = time.Since(began)
	}
	return c.rtt
}

func (d *Dialer) observe(err error) {
	if o := d.options.Observer; o != nil {
		o.Dial(outcomeOf(err))
	}
}

func (d *Dialer) observeRing(err error) {
	if o := d.options.Observer; o != nil {
		o.RingDial(outcomeOf(err))
	}
}

func outcomeOf(err error) string {
	if err == nil {
		return "OK"
	}
	return fault.Name(fault.Of(err).Code)
}
