package session_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/cachehash"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// world is a driver and a route of hops, joined by queues. Nothing moves by itself: next lists what could happen, and the
// test chooses.
type world struct {
	t       testing.TB
	now     time.Time
	model   fake.Options
	hops    []*node
	log     io.Writer // of every message, or nil
	got     []*workerpb.SessionResponse
	ended   []*fault.Error // how streams to the driver ended; nil entries are OK
	skew    bool           // CancelStep may overtake, or not
	express bool           // control overtakes always

	hello *workerpb.RingHello   // of the ring; nil: there is none
	rung  []*workerpb.RingToken // under way on it
	first int                   // tokens that it brought first
}

// node is one hop: its core, its engine, and the link into it.
type node struct {
	index    int
	core     *session.Core
	hop      *session.Hop
	engine   engine.ShardEngine
	work     []session.Work // handed in, not done
	stop     bool           // StopWork was asked for the work in hand
	down     []*workerpb.SessionRequest
	up       []*workerpb.SessionResponse
	dialed   bool // a link into this hop exists
	opened   bool // Opened came over it
	broken   error
	wins     session.Room
	gone     int
	id       engine.SessionID
	last     func()      // says that the driver's stream ends
	frozen   bool        // it neither computes nor answers
	poisoned bool        // its next result holds NaN
	fails    engine.Code // how its next step fails
	held     []uint32    // tokens that the engine was given, as it holds them
	seats    byte        // that were given out
	kept     []keptCache // oldest first
}

// keptCache is a cache that outlived its session, with its tokens.
type keptCache struct {
	session.Kept
	tokens []uint32
}

var (
	start     = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sessionID = engine.SessionID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	key       = []byte("0123456789abcdef0123456789abcdef")
)

// newWorld makes a route of hops with layers [0,cuts[0]), [cuts[0],cuts[1]), … of one fake model.
func newWorld(t testing.TB, model fake.Options, cuts ...uint32) *world {
	return newMixedWorld(t, model, func(int) fake.Options { return model }, cuts...)
}

// newMixedWorld is newWorld with caches that go back otherwise at each hop.
func newMixedWorld(t testing.TB, model fake.Options, at func(hop int) fake.Options, cuts ...uint32) *world {
	w := &world{t: t, now: start, model: model}
	first := uint32(0)
	for i, end := range append(cuts, model.NLayer) {
		w.hops = append(w.hops, newNode(t, at(i), i, engine.LayerRange{First: first, End: end}))
		first = end
	}
	return w
}

func newNode(t testing.TB, model fake.Options, index int, layers engine.LayerRange) *node {
	t.Helper()
	e, _, err := fake.Factory(model)()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	info, err := e.Load(context.Background(), engine.LoadRequest{
		Paths: []string{"fake"}, Layers: layers, ContextLimit: 256, Sessions: 4, BatchTokens: 64, MicroBatch: 64, Threads: 1, CacheType: "f32",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	on := workerpb.FeatureStatus_FEATURE_STATUS_ON
	limits := session.DefaultLimits(64)
	hop := &session.Hop{
		WorkerID: fmt.Sprintf("w%d", index), Instance: [16]byte{byte(index)}, Fingerprint: model.Fingerprint(), Shard: info,
		Revisions: session.Revisions{Min: 1, Max: 1}, Limits: limits,
		Features: []*workerpb.Feature{
			{Name: "session", Status: on}, {Name: "cache.prefix", Status: on}, {Name: "chain", Status: on}, {Name: "hub", Status: on}, {Name: "sampling.logprobs", Status: on},
			{Name: "ring", Status: workerpb.FeatureStatus_FEATURE_STATUS_OFF, Reason: "later"},
		},
	}
	n := &node{index: index, hop: hop, engine: e, id: sessionID, wins: session.Room{Window: limits.WindowBytes, Outgoing: 1 << 20}}
	n.reset()
	return n
}

// reset makes a hop forget the session, as a worker does when it is gone.
func (n *node) reset() {
	n.seats++
	n.core = session.New(n.hop, n.id, engine.SessionID{n.seats}, key, forgetful{})
}

// forgetful is a memory of no faults.
type forgetful struct{}

func (forgetful) Struck(engine.Code) bool { return false }
func (forgetful) Condemned() bool         { return false }

// move is one thing that can happen.
type move struct {
	name string
	do   func()
}

// moves lists everything that can happen now.
func (w *world) moves() []move {
	var all []move
	for i, n := range w.hops {
		if n.frozen {
			continue
		}
		if len(n.work) > 0 {
			all = append(all, move{fmt.Sprintf("engine %d", i), func() { w.compute(n) }})
		}
		for at, m := range n.down {
			if at > 0 && !(w.skew && m.GetCancelStep() != nil) {
				continue
			}
			all = append(all, move{fmt.Sprintf("down %d", i), func() { w.deliverDown(n, at) }})
		}
		if len(n.up) > 0 {
			all = append(all, move{fmt.Sprintf("up %d", i), func() { w.deliverUp(n) }})
		} else if n.last != nil {
			all = append(all, move{"last 0", func() { n.last(); n.last = nil }})
		} else if n.broken != nil && i > 0 && n.dialed {
			all = append(all, move{fmt.Sprintf("end %d", i), func() { w.linkEnds(n) }})
		}
	}
	if len(w.rung) > 0 {
		all = append(all, move{"ring", w.deliverRing})
	}
	return all
}

// deliverRing brings a token by the ring to the head, unless the ring is not the head's present one.
func (w *world) deliverRing() {
	m, head := w.rung[0], w.hops[0]
	w.rung = w.rung[1:]
	if head.core.MayRing(w.hello) != nil {
		return
	}
	w.note("%d)0 ring: token %d of step %d is %d", len(w.hops)-1, m.GetIndex(), m.GetStepId(), m.GetId())
	w.apply(head, head.core.Ring(w.now, m))
}

// settle lets everything happen, the earliest possible first, until nothing can.
func (w *world) settle() {
	w.t.Helper()
	for range 100000 {
		all := w.moves()
		if len(all) == 0 {
			return
		}
		all[0].do()
	}
	w.t.Fatal("it does not come to rest")
}

func (w *world) note(format string, args ...any) {
	if w.log != nil {
		fmt.Fprintf(w.log, format+"\n", args...)
	}
}

func (w *world) deliverDown(n *node, at int) {
	m := n.down[at]
	n.down = append(n.down[:at:at], n.down[at+1:]...)
	from := "D"
	if n.index > 0 {
		from = fmt.Sprint(n.index - 1)
		before := w.hops[n.index-1]
		w.apply(before, before.core.SentDown(w.now, session.PayloadDown(m)))
	}
	w.note("%s>%d %s", from, n.index, describe(m))
	if o := m.GetOpen(); o != nil {
		if err := session.CheckOpen(n.hop, o); err != nil {
			w.endUp(n, err)
			return
		}
		if n.core.State() == tables.SessionClosed {
			n.reset()
		}
		w.apply(n, n.core.Open(w.now, o, n.wins))
		return
	}
	if n.attachedTo() {
		w.apply(n, n.core.Upstream(w.now, m))
	}
}

func (n *node) attachedTo() bool {
	s := n.core.State()
	return s != tables.SessionNone && s != tables.SessionLingering && s != tables.SessionClosed
}

func (w *world) deliverUp(n *node) {
	m := n.up[0]
	n.up = n.up[1:]
	w.apply(n, n.core.SentUp(w.now, session.PayloadUp(m)))
	if n.index == 0 {
		w.note("0>D %s", describe(m))
		w.got = append(w.got, m)
		return
	}
	w.note("%d>%d %s", n.index, n.index-1, describe(m))
	if m.GetOpened() != nil {
		n.opened = true
	}
	before := w.hops[n.index-1]
	w.apply(before, before.core.Downstream(w.now, m))
}

// linkEnds tells the hop before that the link is over.
func (w *world) linkEnds(n *node) {
	n.dialed = false
	before := w.hops[n.index-1]
	err := n.broken
	n.broken = nil
	w.note("%d<%d ends: %v", n.index-1, n.index, err)
	if n.opened {
		w.apply(before, before.core.DownstreamEnded(w.now, fault.Of(err)))
	} else {
		w.apply(before, before.core.Unreachable(w.now, fault.Of(err)))
	}
}

// endUp is the end of the stream that hop n serves.
func (w *world) endUp(n *node, err *fault.Error) {
	if n.index == 0 {
		w.ended = append(w.ended, err)
		n.last = func() { w.note("0>D end: %v", err) }
		return
	}
	n.broken = io.EOF
	if err != nil {
		n.broken = err
	}
}

func (w *world) compute(n *node) {
	job := n.work[0]
	n.work = n.work[1:]
	ctx := context.Background()
	o := session.Outcome{Kind: job.Kind}
	switch job.Kind {
	case session.WorkOpen:
		o.Err = n.engine.Open(ctx, job.Session, job.Context)
		n.held = nil
	case session.WorkRelease:
		o.Err = n.engine.Release(ctx, job.Session)
		n.held = nil
	case session.WorkAdopt:
		n.adopt(job, &o)
	case session.WorkTruncate:
		o.Cache, o.Err = n.engine.Truncate(ctx, job.Session, job.Length)
		if o.Err == nil {
			n.held = n.held[:min(int(job.Length), len(n.held))]
		}
	case session.WorkStep:
		w.step(n, job, &o)
	}
	n.stop = false
	if o.Kind != session.WorkRelease {
		w.apply(n, n.core.Outcome(w.now, o))
	}
}

// adopt copies the kept cache that fits the longest offer.
func (n *node) adopt(job session.Work, o *session.Outcome) {
	var best *keptCache
	var length uint32
	for i := range n.kept {
		if l := n.kept[i].Offered(n.hop.Shard.Cache.Copy, job.Offers, job.Context); l > length {
			best, length = &n.kept[i], l
		}
	}
	if best == nil {
		return
	}
	o.Kept = &best.Kept
	o.Cache, o.Err = n.engine.Copy(context.Background(), best.Seat, job.Session, engine.Pos(length))
	if o.Err == nil {
		n.held = append([]uint32(nil), best.tokens[:length]...)
	}
}

// state is what the engine holds for a session.
func (n *node) state(seat engine.SessionID) engine.CacheState {
	state, _ := n.engine.Truncate(context.Background(), seat, 1<<31) // nothing, where it holds none
	return state
}

// marks drops and takes what a step asks for.
func (n *node) marks(job session.Work, o *session.Outcome) bool {
	ctx := context.Background()
	for _, at := range job.Unmark {
		if _, o.Err = n.engine.Unmark(ctx, job.Session, at); o.Err != nil {
			return false
		}
	}
	if job.Mark {
		_, o.Err = n.engine.Mark(ctx, job.Session)
	}
	o.Marked = o.Err == nil
	return o.Marked
}

func (w *world) step(n *node, job session.Work, o *session.Outcome) {
	if n.stop { // the engine obeys at once here; that it comes too late is tried by not stopping
		o.Result = engine.StepResult{Err: engine.Errorf(engine.Cancelled, "stopped")}
		return
	}
	if !n.marks(job, o) {
		w.t.Errorf("hop %d: %v", n.index, o.Err)
		return
	}
	if n.fails != "" {
		o.Result = engine.StepResult{Err: engine.Errorf(n.fails, "made up"), Cache: n.state(job.Session)}
		n.fails = ""
		return
	}
	results, err := n.engine.Step(context.Background(), []engine.Step{job.Step})
	if o.Err = err; err != nil {
		return
	}
	o.Result = results[0]
	o.Result.Compute = time.Millisecond
	if n.poisoned {
		n.poisoned = false
		copy(o.Result.Boundary.Data[4:], []byte{0, 0, 0xc0, 0xff})
	}
	if o.Result.Err == nil {
		for _, id := range job.Step.Tokens {
			n.held = append(n.held, uint32(id))
		}
	}
}

// apply carries out effects.
func (w *world) apply(n *node, effects []session.Effect) {
	widen := uint64(0)
	for _, e := range effects {
		switch e := e.(type) {
		case session.Up:
			n.up = append(n.up, proto.Clone(e.Message).(*workerpb.SessionResponse))
		case session.EndUp:
			w.endUp(n, e.Err)
		case session.Refuse:
			w.endUp(n, e.Err)
		case session.Dial:
			next := w.hops[n.index+1]
			next.dialed, next.opened, next.broken, next.up = true, false, nil, nil
			next.down = append(next.down, &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: e.Open}})
		case session.Down:
			next := w.hops[n.index+1]
			m := proto.Clone(e.Message).(*workerpb.SessionRequest)
			if e.Control && w.express {
				next.down = append([]*workerpb.SessionRequest{m}, next.down...)
			} else {
				next.down = append(next.down, m)
			}
		case session.DialRing:
			w.hello, w.rung = e.Hello, nil
		case session.RingOut:
			if w.hello != nil {
				w.rung = append(w.rung, e.Token)
			}
		case session.RungFirst:
			w.first++
		case session.HangUp:
			w.hangUp(w.hops[n.index+1])
		case session.Submit:
			n.work = append(n.work, e.Work)
		case session.StopWork:
			n.stop = true
		case session.Widen:
			widen += e.Bytes
		case session.Keep:
			n.kept = append(n.kept, keptCache{e.Kept, append([]uint32(nil), n.held...)})
		case session.Gone:
			n.gone++
		case session.Impossible:
			w.t.Errorf("hop %d: impossible transition in table %s: %s in %s", n.index, e.Table, e.Event, e.State)
		}
	}
	if widen > 0 {
		w.apply(n, n.core.Widened(w.now, widen))
	}
}

// hangUp cuts the link into a hop: what is under way on it is lost.
func (w *world) hangUp(n *node) {
	n.dialed, n.broken, n.up, n.down = false, nil, nil, nil
	if n.attachedTo() {
		w.apply(n, n.core.UpstreamEnded(w.now))
	}
}

// tick moves the clock and rings what is due.
func (w *world) tick(d time.Duration) {
	w.now = w.now.Add(d)
	for _, n := range w.hops {
		for range 10 {
			if at := n.core.Alarm(); at.IsZero() || at.After(w.now) {
				break
			}
			w.apply(n, n.core.Tick(w.now))
		}
	}
}

// send puts a request of the driver on the first link.
func (w *world) send(m *workerpb.SessionRequest) { w.hops[0].down = append(w.hops[0].down, m) }

func (w *world) openMessage(attempt uint64) *workerpb.Open {
	o := &workerpb.Open{
		SessionId: sessionID[:], SessionKey: key, Attempt: attempt, Revisions: &workerpb.RevisionRange{Min: 1, Max: 1},
		Expect: &workerpb.Expectation{Fingerprint: w.hops[0].hop.Fingerprint[:], Layers: rangeOf(w.hops[0])}, ContextTokens: 128,
		Egress: workerpb.Egress_EGRESS_FORWARD, Receive: &workerpb.ReceiveWindow{Tokens: proto.Uint32(64), Bytes: proto.Uint64(1 << 20)},
		Linger: durationpb.New(30 * time.Second), Budget: durationpb.New(15 * time.Second),
	}
	for _, n := range w.hops[1:] {
		o.Route = append(o.Route, &workerpb.RouteHop{Address: fmt.Sprintf("w%d:7000", n.index), Layers: rangeOf(n)})
	}
	return o
}

func rangeOf(n *node) *workerpb.LayerRange {
	l := n.hop.Shard.Layers
	return &workerpb.LayerRange{First: proto.Uint32(l.First), End: l.End}
}

func newChain(fingerprint [32]byte) *cachehash.Chain { return cachehash.NewChain(fingerprint) }
