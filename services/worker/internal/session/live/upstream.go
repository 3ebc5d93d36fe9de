package live

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain/outbox"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// outboxLimit is how many responses may wait for one stream; room for responses keeps it far below.
const outboxLimit = 8192

// Upstream is the stream of one attempt, seen from its session: where responses go. Whoever serves the stream takes them
// with Next, and hands every message to Receive, from one goroutine each.
type Upstream struct {
	directory *Directory
	out       *outbox.Outbox[*workerpb.SessionResponse]

	caller   Caller                  // set before the first message; used by the reader alone
	domain   domain                  // of its Open; set before the session is
	session  *Session                // set by the first message; used by the reader alone
	attached atomic.Pointer[Session] // the same, for the writer
	refused  bool                    // the first message was refused; used by the reader alone

	holds bool // room for what it sends; guarded by Directory.mu

	mu       sync.Mutex
	revision uint32 // in whose words the caller is answered
	end      *fault.Error
	over     chan struct{} // closed once the stream is to end
}

// Caller is who opened a stream: the peer, as it proved itself, and for whom it may say that it acts. Both are empty where
// nobody has to prove anything.
type Caller struct {
	Principal, OnBehalfOf string
	Account               string // whose quota it uses: the principal, or where it calls from
}

// Stream makes the upstream of a stream that has just begun.
func (d *Directory) Stream() *Upstream {
	u := &Upstream{directory: d, revision: d.options.Revisions.Min, over: make(chan struct{})}
	u.out = outbox.New(outbox.Options[*workerpb.SessionResponse]{
		Limit: outboxLimit, Bytes: int(d.options.Stream()), Gauge: d.options.Buffered,
		Size: func(m *workerpb.SessionResponse) int { return proto.Size(m) }, Sent: u.sent,
	})
	return u
}

// sent tells the session of payload that has gone out.
func (u *Upstream) sent(m *workerpb.SessionResponse) {
	if n := session.PayloadUp(m); n > 0 {
		u.attached.Load().sentUp(u, n)
	}
}

// Speaks takes note of what the caller speaks, of its first message. Until that is known it is answered in the words of the
// worker's least revision.
func (u *Upstream) Speaks(m *workerpb.SessionRequest) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.revision = u.directory.options.Revisions.Of(m.GetOpen().GetRevisions())
}

// put queues a response, in the caller's words; it is false when too many wait.
func (u *Upstream) put(m *workerpb.SessionResponse) bool {
	u.mu.Lock()
	if o := m.GetOpened(); o != nil {
		u.revision = o.GetRevision()
	}
	revision := u.revision
	u.mu.Unlock()
	return u.out.Put(session.Words(u.directory.options.Revisions, m, revision), false)
}

// From says who opened the stream. It comes before the first Receive, from the same goroutine.
func (u *Upstream) From(c Caller) { u.caller = c }

// Receive takes a message of the stream.
func (u *Upstream) Receive(m *workerpb.SessionRequest) {
	switch {
	case u.refused:
		return
	case u.session == nil:
		u.refused = !u.directory.First(u, m)
		return
	}
	u.session.received(u, m)
}

// End ends the attempt, or the stream if there is none yet, with an error of this worker.
func (u *Upstream) End(err *fault.Error) {
	if s := u.attached.Load(); s != nil {
		s.violate(u, err)
	} else {
		u.directory.Refuse(u, err)
	}
}

// Ended says that nothing more comes from the stream.
func (u *Upstream) Ended() {
	u.out.Drop()
	u.directory.freeOutgoing(u)
	if u.session != nil {
		u.session.upstreamEnded(u)
	}
}

// Next waits for a response to send; it is false when the stream is to end, or with ctx.
func (u *Upstream) Next(ctx context.Context) (*workerpb.SessionResponse, bool) {
	return u.out.Take(ctx)
}

// Status is how the stream ends, once Next is false: nil is OK.
func (u *Upstream) Status() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.end == nil {
		return nil
	}
	return u.end
}

// finish ends the stream behind what is queued. The first one counts.
func (u *Upstream) finish(err *fault.Error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	select {
	case <-u.over:
		return
	default:
	}
	u.end = session.InWords(u.directory.options.Revisions, err, u.revision)
	close(u.over)
	u.out.Finish()
}

// Over is closed once the stream is to end, behind what is left to send.
func (u *Upstream) Over() <-chan struct{} { return u.over }
