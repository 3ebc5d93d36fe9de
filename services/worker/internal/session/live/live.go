// Package live runs sessions: it joins each session.Core with its streams, its link, the scheduler and the clock, and keeps
// the directory of the sessions of a shard.
//
// A session is a monitor, not a goroutine: whoever has news for it (a stream's reader, a link's reader, the scheduler, a
// timer) takes its lock, hands the news to the core and carries out the effects, none of which waits. So a token passes a
// hop without changing goroutines more often than the engine needs.
//
// Locks are taken in the order session, directory. What must stay out: every decision (package session) and gRPC (package
// rpc).
package live

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/batch"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain/outbox"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/quota"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// Observer hears what happens, for metrics. Its methods return at once.
type Observer interface {
	batch.Observer
	SessionOpened()
	SessionClosed(reason string)
	Error(code string)
	Transition(table, state, event string)
	Impossible(table, state, event string)
	RungFirst()
}

// Options are what a directory needs to know. All are required but Buffered, Quotas and Observer.
type Options struct {
	WorkerID      string
	Revisions     session.Revisions
	Limits        session.Limits
	WindowBytes   uint64        // sum of all windows
	OutgoingBytes uint64        // sum of what waits to be sent to all peers
	Sessions      uint32        // at once, kept prefixes included
	KeptBytes     uint64        // of kept prefixes; 0: none are kept
	Buffered      *outbox.Gauge // of all that is buffered for peers; nil: one of its own
	Quotas        *quota.Quotas // of principals; nil: the usual ones
	BatchTokens   int           // most rows of one native call
	Deterministic bool
	Chained       bool   // chain.allow lists something
	Ring          string // HOST:PORT where a tail reaches this worker as head; empty: it offers no ring
	Dialer        *chain.Dialer
	Log           *slog.Logger
	Observer      Observer
}

// Directory is the sessions on one shard; it is the shard's Residents. All methods may be called from any goroutine.
type Directory struct {
	options  Options
	suspects *suspects
	hearsay  hearsay

	mu       sync.Mutex
	sessions map[engine.SessionID]*Session
	shard    *residence // nil: no shard
	drained  time.Time  // when sessions will be closed; zero: not draining
	windows  uint64     // bytes granted
	streams  uint64     // that hold room for what they send
	before   PrefixUse  // of shards that are gone
	changed  chan struct{}
	totals   totals
}

// residence is a shard in service.
type residence struct {
	loaded    shard.Loaded
	hop       *session.Hop
	scheduler *batch.Scheduler
	prefixes  *prefixes
}

// leastFrame is the smallest full frame that the contract allows, bytes.
const leastFrame = 64 << 10

// New makes an empty directory without a shard.
func New(options Options) *Directory {
	if options.Observer == nil {
		options.Observer = deaf{}
	}
	if options.Buffered == nil {
		options.Buffered = &outbox.Gauge{}
	}
	if options.Quotas == nil {
		options.Quotas = quota.New(quota.Default())
	}
	options.Limits.FrameBytes = max(options.Limits.FrameBytes, leastFrame)
	return &Directory{options: options, suspects: newSuspects(), sessions: map[engine.SessionID]*Session{}, changed: make(chan struct{})}
}

var _ shard.Residents = (*Directory)(nil)

// streamsPerSession is how many streams there can be for each session at once: the last messages of older attempts may wait
// to be taken.
const streamsPerSession = 2

// Stream is how many bytes may wait to be sent on one stream, or on the link behind it.
func (o Options) Stream() uint64 {
	return o.OutgoingBytes / (2 * streamsPerSession * uint64(max(o.Sessions, 1)))
}

// Payload is the part of it that one step's boundary or answer may take.
func (o Options) Payload() uint64 { return o.Stream() - o.Stream()/8 }

// Settle takes a fresh engine into service.
func (d *Directory) Settle(l shard.Loaded) {
	hop := &session.Hop{
		WorkerID: d.options.WorkerID, Instance: l.Instance, Fingerprint: l.Fingerprint, Shard: l.Info, Ring: d.options.Ring,
		Revisions: d.options.Revisions, Limits: d.options.Limits, Features: d.Features(l.Engine.Capabilities(), &l.Info),
		Tally:        d.options.Observer.Transition,
		CheckGrammar: func(g engine.Grammar) error { return l.Text.CheckGrammar(context.Background(), g) },
	}
	scheduler := batch.New(l.Engine, batch.Options{
		Tokens: d.options.BatchTokens, Deterministic: d.options.Deterministic, Limit: 4096, Observer: d.options.Observer, Lost: l.Lost,
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shard, d.drained = &residence{l, hop, scheduler, newPrefixes(d.options, l.Info, scheduler, d.before)}, time.Time{}
}

// Drain refuses new sessions, tells the open ones and ends those that linger.
func (d *Directory) Drain(left time.Duration) {
	d.mu.Lock()
	d.drained = time.Now().Add(left)
	r := d.shard
	d.mu.Unlock()
	if r != nil {
		r.prefixes.clear()
	}
	for _, s := range d.all() {
		s.drain(left)
	}
}

// Empty waits until there is no session.
func (d *Directory) Empty(ctx context.Context) error {
	for {
		d.mu.Lock()
		n, changed := len(d.sessions), d.changed
		d.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Evict ends every session with why and waits until nobody uses the engine.
func (d *Directory) Evict(ctx context.Context, why *fault.Error) {
	d.mu.Lock()
	gone := d.shard
	d.shard = nil
	if gone != nil {
		d.before = gone.prefixes.used()
	}
	d.mu.Unlock()
	if gone == nil {
		return
	}
	for _, s := range d.all() {
		s.end(why)
	}
	if err := gone.scheduler.Close(ctx); err != nil {
		d.options.Log.Error("the engine does not come to rest", "cause", err)
	}
}

// Options are those that it was made with.
func (d *Directory) Options() Options { return d.options }

// Buffered is the gauge of all that is buffered for peers.
func (d *Directory) Buffered() *outbox.Gauge { return d.options.Buffered }

// Sessions is how many there are, lingering ones included.
func (d *Directory) Sessions() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sessions)
}

// PrefillChunk is how many tokens of prefill take about as long as a native call should; 0 where none has been measured.
func (d *Directory) PrefillChunk() uint32 {
	d.mu.Lock()
	shard := d.shard
	d.mu.Unlock()
	if shard == nil {
		return 0
	}
	return uint32(shard.scheduler.Measured())
}

func (d *Directory) all() []*Session {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*Session, 0, len(d.sessions))
	for _, s := range d.sessions {
		all = append(all, s)
	}
	return all
}

// Features are what a worker with this engine and this shard can do; nil: it holds none.
func (d *Directory) Features(c engine.Capabilities, held *engine.ShardInfo) []*workerpb.Feature {
	on := func(name string) *workerpb.Feature {
		return &workerpb.Feature{Name: name, Status: workerpb.FeatureStatus_FEATURE_STATUS_ON}
	}
	not := func(name string, status workerpb.FeatureStatus, reason string) *workerpb.Feature {
		return &workerpb.Feature{Name: name, Status: status, Reason: reason}
	}
	off, kept := workerpb.FeatureStatus_FEATURE_STATUS_OFF, workerpb.FeatureStatus_FEATURE_STATUS_RESERVED
	chained := on("chain")
	if !d.options.Chained {
		chained = not("chain", off, "chain.allow of this worker lists nobody")
	}
	ring := on("ring")
	if why := d.ringless(held); why != "" {
		ring = not("ring", off, why)
	}
	list := []*workerpb.Feature{
		on("session"), chained, on("hub"), on("text.tokenize"), ring,
		on("cache.marks"),
	}
	if d.options.KeptBytes > 0 {
		list = append(list, on(session.FeaturePrefix))
	} else {
		list = append(list, not(session.FeaturePrefix, off, "kept_bytes of this worker is 0"))
	}
	list = append(list, engineFeature(c, engine.FeatureChat), engineFeature(c, engine.FeatureGrammar), engineFeature(c, engine.FeatureLogprobs))
	for _, name := range []string{"boundary.f16", "boundary.bf16", "boundary.stripes", "mtp", "auxiliary_state"} {
		list = append(list, not(name, kept, "no revision says what it means"))
	}
	return list
}

// ringless says why a worker with this shard cannot do its part of a ring; "": it can. A head is dialled, a tail dials, and a
// hop between them hands on where to.
func (d *Directory) ringless(held *engine.ShardInfo) string {
	switch {
	case (held == nil || held.Head()) && d.options.Ring == "":
		return "ring.advertise of this worker is empty"
	case held != nil && !held.Head() && held.Tail() && !d.options.Chained:
		return "chain.allow of this worker lists nobody"
	}
	return ""
}

// engineFeature is what the engine says about one of its features.
func engineFeature(c engine.Capabilities, name string) *workerpb.Feature {
	for _, f := range c.Features {
		if f.Name == name {
			return &workerpb.Feature{Name: name, Status: workerpb.FeatureStatus(f.Status), Reason: f.Reason}
		}
	}
	return &workerpb.Feature{
		Name: name, Status: workerpb.FeatureStatus_FEATURE_STATUS_OFF, Reason: strings.TrimSpace("the engine "+c.Name) + " does not have it",
	}
}

// deaf is no observer.
type deaf struct{}

func (deaf) Batch(int, int, time.Duration)     {}
func (deaf) Queued(int)                        {}
func (deaf) SessionOpened()                    {}
func (deaf) SessionClosed(string)              {}
func (deaf) Error(string)                      {}
func (deaf) Transition(string, string, string) {}
func (deaf) Impossible(string, string, string) {}
func (deaf) RungFirst()                        {}
