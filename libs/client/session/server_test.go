package session_test

import (
	"context"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/cachehash"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
	"github.com/distributed-gguf-runtime/dgr/libs/client/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var fingerprint = [32]byte{1, 2, 3}

// head is the worker's side of one stream, played by a test message by message.
type head struct {
	t      *testing.T
	stream workerpb.WorkerService_SessionServer
	chain  *cachehash.Chain
}

// server answers GetCapability as a worker that holds a whole model, and plays script on each Session stream.
type server struct {
	workerpb.UnimplementedWorkerServiceServer
	t      *testing.T
	script func(*head) error
	hashes []uint32 // tokens cached at first
}

func (s *server) GetCapability(context.Context, *workerpb.GetCapabilityRequest) (*workerpb.GetCapabilityResponse, error) {
	return &workerpb.GetCapabilityResponse{Capability: &workerpb.Capability{
		WorkerId: "w0", Instance: make([]byte, 16), Revisions: &workerpb.RevisionRange{Min: 1, Max: 3},
		Features: []*workerpb.Feature{{Name: "session", Status: workerpb.FeatureStatus_FEATURE_STATUS_ON}},
		Shard: &workerpb.ShardInfo{
			State: workerpb.ShardState_SHARD_STATE_READY, Fingerprint: fingerprint[:], Architecture: "fake",
			Layers: &workerpb.LayerRange{First: proto.Uint32(0), End: 4}, NLayer: 4, Head: true, Tail: true, ContextLimit: 64, NVocab: 8,
		},
	}}, nil
}

func (s *server) Session(stream workerpb.WorkerService_SessionServer) error {
	h := &head{t: s.t, stream: stream, chain: cachehash.NewChain(fingerprint)}
	h.chain.Append(s.hashes...)
	return s.script(h)
}

// play starts a server in memory and discovers the route over it.
func play(t *testing.T, script func(*head) error) *route.Route {
	t.Helper()
	return discover(t, &server{t: t, script: script})
}

func discover(t *testing.T, s *server) *route.Route {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	workerpb.RegisterWorkerServiceServer(g, s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(listener)
	}()
	o := dial.Default()
	o.Dialer = func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }
	w, err := worker.Open("head:1", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Close()
		g.Stop()
		<-served
	})
	r, err := route.Discover(t.Context(), []*worker.Client{w})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// options are short, so that a test that waits for silence ends soon.
func options() session.Options {
	o := session.Default()
	o.ChunkTokens = 2
	o.OpenBudget, o.StepBudget, o.TokenBudget = time.Second, 10*time.Second, 10*time.Second
	return o
}

func open(t *testing.T, r *route.Route) *session.Session {
	t.Helper()
	s, err := session.Open(t.Context(), r, options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Abandon)
	return s
}

// recv is the next request; the end of the stream ends the script without complaint.
func (h *head) recv() *workerpb.SessionRequest {
	m, err := h.stream.Recv()
	if err != nil {
		return &workerpb.SessionRequest{}
	}
	return m
}

func (h *head) step() *workerpb.Step { return h.recv().GetStep() }

func (h *head) send(m *workerpb.SessionResponse) { _ = h.stream.Send(m) }

func (h *head) state() *workerpb.CacheState {
	hash := h.chain.Last()
	return &workerpb.CacheState{
		Length: proto.Uint32(h.chain.Len()), ChainHash: hash[:],
		Reach: []*workerpb.LengthSpan{{From: proto.Uint32(0), To: proto.Uint32(h.chain.Len())}},
	}
}

// opened reads Open and grants steps.
func (h *head) opened(steps uint32) *workerpb.Open {
	o := h.recv().GetOpen()
	h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: &workerpb.Opened{
		Revision: 1, Window: &workerpb.Credit{Steps: proto.Uint32(steps), Bytes: proto.Uint64(0)}, MaxStepTokens: 16, FrameBytes: 1 << 16,
		Cache: h.state(), Hops: []*workerpb.HopReport{{Hop: &workerpb.HopRef{Index: proto.Uint32(0), WorkerId: "w0"}}},
	}}})
	return o
}

func (h *head) credit(steps uint32) {
	h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{Credit: &workerpb.Credit{Steps: &steps, Bytes: proto.Uint64(0)}}})
}

// done evaluates tokens and says that a step is done.
func (h *head) done(id uint64, finish workerpb.Finish, tokens ...uint32) {
	h.chain.Append(tokens...)
	h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepResult{StepResult: &workerpb.StepResult{
		StepId: id, Cache: h.state(), Finish: finish,
		Timing: []*workerpb.HopTiming{{Hop: proto.Uint32(0), Shapes: []uint32{uint32(len(tokens))}}},
	}}})
}

func (h *head) failed(id uint64, code workerpb.ErrorCode, scope workerpb.ErrorScope) {
	h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepFailed{StepFailed: &workerpb.StepFailed{
		StepId: id, Cache: h.state(),
		Error: &workerpb.ShardError{Code: code, Message: "it failed", Scope: scope, Recovery: workerpb.Recovery_RECOVERY_FIX_REQUEST},
	}}})
}

func (h *head) token(step uint64, index, id uint32) {
	h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Token{Token: &workerpb.Token{
		StepId: step, Index: &index, Id: &id, Bytes: []byte{'a' + byte(id)},
	}}})
}

func (h *head) closed(reason workerpb.CloseReason, e *workerpb.ShardError) error {
	h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: &workerpb.Closed{
		Reason: reason, Error: e, Usage: &workerpb.Usage{TokensEvaluated: uint64(h.chain.Len())},
	}}})
	return nil
}

// untilEnd reads until the driver hangs up.
func (h *head) untilEnd() error {
	for {
		if _, err := h.stream.Recv(); err != nil {
			return nil
		}
	}
}
