package rpc_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/rpc"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// worker is a whole worker in this process, on a fake engine, behind a real port.
type worker struct {
	address string
	layers  engine.LayerRange
	server  *rpc.Server
	shard   *shard.Shard
	dir     *live.Directory
	dialer  *chain.Dialer
	stop    func() // all of it; it may be called again
}

// setting is what a test may want to be different.
type setting struct {
	model     string
	sessions  uint32
	limits    func(*session.Limits)
	allow     []string
	address   string // to listen on; empty: a free port
	server    []grpc.ServerOption
	sendWait  time.Duration
	guard     *guard // nil: everybody may do everything
	options   func(*rpc.Options)
	directory func(*live.Options)
	observer  live.Observer
	ring      func(own string) string // where tails are told to reach a worker, from where it listens; nil: nowhere
	speaks    session.Revisions       // zero: revision 1
	empty     bool                    // it holds nothing until LoadShard asks for a model, of any name
}

// start makes a worker ready.
func start(t testing.TB, layers engine.LayerRange, s setting) *worker {
	t.Helper()
	if s.model == "" {
		s.model = "fake"
	}
	if s.sessions == 0 {
		s.sessions = 4
	}
	if s.allow == nil {
		s.allow = []string{"127.0.0.1:*"}
	}
	policy, err := chain.ParsePolicy(s.allow)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", cmp.Or(s.address, "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	limits := session.DefaultLimits(64)
	if s.limits != nil {
		s.limits(&limits)
	}
	w := &worker{address: listener.Addr().String(), layers: layers, dialer: chain.New(chain.Options{Policy: policy, Dial: dial.Default()})}
	id := fmt.Sprintf("w%d", layers.First)
	revisions := s.speaks
	if revisions.Max == 0 {
		revisions = session.Revisions{Min: 1, Max: 1}
	}
	directory := live.Options{
		WorkerID: id, Revisions: revisions, Limits: limits, WindowBytes: 1 << 30, BatchTokens: 64, Chained: true,
		OutgoingBytes: 1 << 30, Sessions: s.sessions,
		Dialer: w.dialer, Log: discard, Observer: s.observer,
	}
	if s.ring != nil {
		directory.Ring = s.ring(w.address)
	}
	if s.directory != nil {
		s.directory(&directory)
	}
	w.dir = live.New(directory)
	w.shard = shard.New(shard.Options{
		Residents: w.dir, ProbeInterval: time.Hour, ProbeTimeout: time.Second, Drain: time.Minute, Log: discard,
		Request: engine.LoadRequest{ContextLimit: 256, Sessions: s.sessions, BatchTokens: 64, MicroBatch: 64, Threads: 1, CacheType: "f32"},
	})
	order := shard.Order{Source: &shard.Imaginary{}, Model: s.model, Layers: layers}
	if !s.empty {
		if err := w.shard.Load(context.Background(), order, nil); err != nil {
			t.Fatal(err)
		}
	}
	options := rpc.Options{
		WorkerID: id, Build: &workerpb.Build{Version: "test"}, Shard: w.shard, Directory: w.dir, Revisions: revisions, Limits: limits,
		Sessions: s.sessions, Context: 256, BatchTokens: 64, WindowBytes: 1 << 30, MessageBytes: 1 << 20, Drain: time.Minute,
		Keepalive: 20 * time.Second, SendWait: s.sendWait, Log: discard,
	}
	if s.guard != nil {
		options.Guard = &auth.Guard{Authenticator: s.guard, Authorizer: s.guard, Log: discard}
	}
	if s.empty {
		options.Store = shelf{order}
	}
	if s.options != nil {
		s.options(&options)
	}
	w.server = rpc.New(options, s.server...)
	served := make(chan error, 1)
	go func() { served <- w.server.GRPC().Serve(listener) }()
	w.stop = sync.OnceFunc(func() {
		w.kill()
		if err := <-served; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := w.shard.Close(ctx); err != nil {
			t.Error(err)
		}
		w.dialer.Close()
	})
	t.Cleanup(w.stop)
	return w
}

// shelf is a store of one model.
type shelf struct{ order shard.Order }

func (s shelf) Order(string) (shard.Order, error) { return s.order, nil }

// kill cuts every connection, as the end of the process would.
func (w *worker) kill() { w.server.Close() }

// route starts a worker for each range of layers.
func route(t testing.TB, s setting, cuts ...uint32) []*worker {
	t.Helper()
	var workers []*worker
	first := uint32(0)
	for _, end := range append(cuts, 4) {
		workers = append(workers, start(t, engine.LayerRange{First: first, End: end}, s))
		first = end
	}
	return workers
}

// driver is one session stream.
type driver struct {
	t      testing.TB
	conn   *grpc.ClientConn
	stream grpc.BidiStreamingClient[workerpb.SessionRequest, workerpb.SessionResponse]
	cancel context.CancelFunc
}

func connect(t testing.TB, w *worker) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// dialTo begins a stream to the first worker.
func dialTo(t testing.TB, w *worker) *driver {
	t.Helper()
	d := &driver{t: t, conn: connect(t, w)}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	d.cancel = cancel
	t.Cleanup(cancel)
	var err error
	if d.stream, err = workerpb.NewWorkerServiceClient(d.conn).Session(ctx); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *driver) send(m *workerpb.SessionRequest) {
	d.t.Helper()
	if err := d.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		d.t.Fatal(err)
	}
}

func (d *driver) receive() *workerpb.SessionResponse {
	d.t.Helper()
	m, err := d.stream.Recv()
	if err != nil {
		d.t.Fatalf("the stream ended: %v", err)
	}
	return m
}

// open opens a session over workers.
func (d *driver) open(id byte, workers []*worker) *workerpb.Opened {
	d.t.Helper()
	d.send(openOf(id, workers))
	o := d.receive().GetOpened()
	if o == nil {
		d.t.Fatal("the first response is not opened")
	}
	return o
}

func openOf(id byte, workers []*worker) *workerpb.SessionRequest {
	_, fingerprint, _ := workers[0].shard.Info()
	o := &workerpb.Open{
		SessionId: append(make([]byte, 15), id), SessionKey: make([]byte, 32), Attempt: 1,
		Revisions: &workerpb.RevisionRange{Min: 1, Max: 1}, ContextTokens: 128, Egress: workerpb.Egress_EGRESS_FORWARD,
		Expect:  &workerpb.Expectation{Fingerprint: fingerprint[:], Layers: layersOf(workers[0])},
		Receive: &workerpb.ReceiveWindow{Tokens: proto.Uint32(1 << 20), Bytes: proto.Uint64(1 << 20)},
		Linger:  durationpb.New(0), Budget: durationpb.New(5 * time.Second),
	}
	for _, w := range workers[1:] {
		o.Route = append(o.Route, &workerpb.RouteHop{Address: w.address, Layers: layersOf(w)})
	}
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}}
}

func layersOf(w *worker) *workerpb.LayerRange {
	return &workerpb.LayerRange{First: proto.Uint32(w.layers.First), End: w.layers.End}
}

func step(id, after uint64, at uint32, kind any) *workerpb.SessionRequest {
	s := &workerpb.Step{
		StepId: id, After: proto.Uint64(after), ExpectCache: &workerpb.ExpectCache{Length: proto.Uint32(at)},
		Budget: durationpb.New(10 * time.Second),
	}
	switch kind := kind.(type) {
	case *workerpb.Prefill:
		s.Kind = &workerpb.Step_Prefill{Prefill: kind}
	case *workerpb.Generate:
		s.Kind = &workerpb.Step_Generate{Generate: kind}
	}
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: s}}
}

func prompt(tokens ...uint32) *workerpb.Prefill { return &workerpb.Prefill{Tokens: tokens} }

func run(count, token uint32) *workerpb.Generate {
	return &workerpb.Generate{
		Tokens: []uint32{token}, MaxTokens: count, TokenBudget: durationpb.New(5 * time.Second),
		Sampling: &workerpb.Sampling{Temperature: proto.Float32(0)},
	}
}

// answer reads until the terminal reply of a step and returns the tokens on the way.
func (d *driver) answer(id uint64) (text string, result *workerpb.StepResult, failed *workerpb.StepFailed) {
	d.t.Helper()
	for {
		m := d.receive()
		switch {
		case m.GetToken() != nil:
			text += string(m.GetToken().GetBytes())
		case m.GetStepResult().GetStepId() == id:
			return text, m.GetStepResult(), nil
		case m.GetStepFailed().GetStepId() == id:
			return text, nil, m.GetStepFailed()
		case m.GetClosed() != nil:
			d.t.Fatalf("closed: %v", m.GetClosed())
		}
	}
}

// A chain says what one worker says.
func TestChainEqualsOneWorker(t *testing.T) {
	want := ""
	for _, cuts := range [][]uint32{{}, {2}, {1, 3}, {1, 2, 3}} {
		t.Run(fmt.Sprint(len(cuts)+1, " workers"), func(t *testing.T) {
			workers := route(t, setting{}, cuts...)
			d := dialTo(t, workers[0])
			o := d.open(1, workers)
			if len(o.GetHops()) != len(workers) {
				t.Fatalf("hops %v", o.GetHops())
			}
			for i, h := range o.GetHops() {
				if h.GetHop().GetIndex() != uint32(i) || (h.GetLinkRtt() == nil) != (i == len(workers)-1) {
					t.Errorf("hop %d: %v", i, h)
				}
			}
			d.send(step(1, 0, 0, prompt(40, 41, 42, 43)))
			d.send(step(2, 1, 4, run(24, 44)))
			text, result, failed := d.answer(2)
			if failed != nil || result.GetFinish() != workerpb.Finish_FINISH_LENGTH || result.GetSampled() != 24 {
				t.Fatalf("result %v, failed %v", result, failed)
			}
			if want == "" {
				want = text
			}
			if text != want || len(text) != 24 {
				t.Errorf("text %q, want %q", text, want)
			}
			d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
			closed := d.receive().GetClosed()
			if closed.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED || closed.GetUsage().GetTokensEvaluated() != 28 {
				t.Errorf("closed %v", closed)
			}
			if _, err := d.stream.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("the stream ended with %v", err)
			}
		})
	}
}
