package rpc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
)

func whole(t *testing.T, s setting) *worker {
	t.Helper()
	return start(t, engine.LayerRange{First: 0, End: 4}, s)
}

// code demands that an error says so, also about this worker.
func code(t *testing.T, err error, want workerpb.ErrorCode) {
	t.Helper()
	f := fault.FromStatus(err)
	if f == nil || f.Code != want {
		t.Errorf("the error is %v, want %v", err, want)
	} else if f.Origin.GetWorkerId() != "w0" {
		t.Errorf("the origin is %v", f.Origin)
	}
}

func TestCapability(t *testing.T) {
	w := start(t, engine.LayerRange{First: 1, End: 3}, setting{})
	answer, err := workerpb.NewWorkerServiceClient(connect(t, w)).GetCapability(t.Context(), &workerpb.GetCapabilityRequest{})
	if err != nil {
		t.Fatal(err)
	}
	c := answer.GetCapability()
	info, fingerprint, _ := w.shard.Info()
	if c.GetWorkerId() != "w1" || len(c.GetInstance()) != 16 || string(c.GetShard().GetFingerprint()) != string(fingerprint[:]) {
		t.Errorf("identity: %v", c)
	}
	s := c.GetShard()
	if s.GetHead() || s.GetTail() || s.GetLayers().GetFirst() != 1 || s.GetLayers().GetEnd() != 3 || s.GetNLayer() != 4 ||
		s.GetBoundaryIn().GetWidth() != info.BoundaryIn.Width || s.GetBoundaryOut().GetLayout() != info.BoundaryOut.Name {
		t.Errorf("shard: %v", s)
	}
	status := map[string]workerpb.FeatureStatus{}
	for _, f := range c.GetFeatures() {
		status[f.GetName()] = f.GetStatus()
		if (f.GetReason() == "") != (f.GetStatus() == workerpb.FeatureStatus_FEATURE_STATUS_ON) {
			t.Errorf("feature %v", f)
		}
	}
	for name, want := range map[string]workerpb.FeatureStatus{
		"session": 2, "chain": 2, "hub": 2, "text.tokenize": 2, "ring": 2, "text.chat": 2, "cache.prefix": 1, "cache.marks": 2,
		"mtp": 3, "auxiliary_state": 3, "boundary.f16": 3, "boundary.bf16": 3, "boundary.stripes": 3,
	} {
		if status[name] != want {
			t.Errorf("feature %s is %v, want %v", name, status[name], want)
		}
	}
	if l := c.GetLimits(); l.GetSessions() != 4 || l.GetStepTokens() != 64 || l.GetFirstWindow().GetSteps() != 8 || l.GetMessageBytes() != 1<<20 {
		t.Errorf("limits: %v", l)
	}
}

func TestHealth(t *testing.T) {
	w := whole(t, setting{})
	conn := connect(t, w)
	client := workerpb.NewWorkerServiceClient(conn)
	watch, err := client.WatchHealth(t.Context(), &workerpb.WatchHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := watch.Recv()
	if err != nil || !first.GetHealth().GetReady() || first.GetHealth().GetState() != workerpb.ShardState_SHARD_STATE_READY {
		t.Fatalf("%v, %v", first, err)
	}
	standard := grpc_health_v1.NewHealthClient(conn)
	changes, err := standard.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: workerpb.WorkerService_ServiceDesc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := changes.Recv(); err != nil || s.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("%v, %v", s, err)
	}
	dialTo(t, w).open(1, []*worker{w}) // so that the drain does not end at once
	if _, err := workerpb.NewShardServiceClient(conn).Drain(t.Context(), &workerpb.DrainRequest{Budget: durationpb.New(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if h := m.GetHealth(); h.GetState() == workerpb.ShardState_SHARD_STATE_DRAINING {
			if h.GetReady() || h.GetDrainLeft().AsDuration() <= 0 || h.GetUse().GetSessions() != 1 {
				t.Errorf("draining: %v", h)
			}
			break
		}
	}
	if s, err := changes.Recv(); err != nil || s.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v", s, err)
	}
}

func TestText(t *testing.T) {
	w := whole(t, setting{})
	client := workerpb.NewTextServiceClient(connect(t, w))
	_, fingerprint, _ := w.shard.Info()
	ids, err := client.Tokenize(t.Context(), &workerpb.TokenizeRequest{Fingerprint: fingerprint[:], Text: "ab", AddSpecial: true})
	if err != nil || len(ids.GetTokens()) != 3 {
		t.Fatalf("%v, %v", ids, err)
	}
	text, err := client.Detokenize(t.Context(), &workerpb.DetokenizeRequest{Fingerprint: fingerprint[:], Tokens: ids.GetTokens()})
	if err != nil || string(text.GetData()) != "ab" {
		t.Errorf("%v, %v", text, err)
	}
	_, err = client.Detokenize(t.Context(), &workerpb.DetokenizeRequest{Fingerprint: fingerprint[:], Tokens: []uint32{1 << 30}})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
	_, err = client.Tokenize(t.Context(), &workerpb.TokenizeRequest{Fingerprint: make([]byte, 32), Text: "ab"})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH)
	_, err = client.Tokenize(t.Context(), &workerpb.TokenizeRequest{Text: "ab"})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_MALFORMED)
	_, err = client.RenderChat(t.Context(), &workerpb.RenderChatRequest{Fingerprint: fingerprint[:]})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_NO_TEMPLATE)
}

func TestChat(t *testing.T) {
	w := whole(t, setting{model: "fake:chat=true"})
	client := workerpb.NewTextServiceClient(connect(t, w))
	_, fingerprint, _ := w.shard.Info()
	request := &workerpb.RenderChatRequest{Fingerprint: fingerprint[:], MessagesJson: `[{"role":"user","content":"hi"}]`}
	prompt, err := client.RenderChat(t.Context(), request)
	if err != nil || prompt.GetPrompt() != "user: hi\nassistant:" || len(prompt.GetTokens()) != len(prompt.GetPrompt())+1 {
		t.Fatalf("%v, %v", prompt, err)
	}
	message, err := client.ParseChat(t.Context(), &workerpb.ParseChatRequest{Fingerprint: fingerprint[:], Parser: prompt.GetParser(), Text: "hello"})
	if err != nil || message.GetMessageJson() != `{"role":"assistant","content":"hello"}` {
		t.Errorf("%v, %v", message, err)
	}
	request.AddGenerationPrompt = proto.Bool(false)
	prompt, err = client.RenderChat(t.Context(), request)
	if err != nil || prompt.GetPrompt() != "user: hi\n" {
		t.Errorf("%v, %v", prompt, err)
	}
	request.MessagesJson = "{"
	_, err = client.RenderChat(t.Context(), request)
	code(t, err, workerpb.ErrorCode_ERROR_CODE_MALFORMED)
	_, err = client.ParseChat(t.Context(), &workerpb.ParseChatRequest{Fingerprint: fingerprint[:]})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_MALFORMED)
	_, err = client.ParseChat(t.Context(), &workerpb.ParseChatRequest{Fingerprint: make([]byte, 32)})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH)
}

func TestStrangersAreRefusedOnUnaryCalls(t *testing.T) {
	w := whole(t, setting{})
	r := &workerpb.GetCapabilityRequest{}
	r.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
	_, err := workerpb.NewWorkerServiceClient(connect(t, w)).GetCapability(t.Context(), r)
	code(t, err, workerpb.ErrorCode_ERROR_CODE_MALFORMED)
	if path := fault.FromStatus(err).Detail.GetField().GetPath(); path != "#99" {
		t.Errorf("path %q", path)
	}
}

func TestReflection(t *testing.T) {
	w := whole(t, setting{})
	stream, err := grpc_reflection_v1.NewServerReflectionClient(connect(t, w)).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, s := range answer.GetListServicesResponse().GetService() {
		served[s.GetName()] = true
	}
	for _, name := range []string{"dgr.worker.v1.WorkerService", "dgr.worker.v1.ShardService", "dgr.worker.v1.TextService", "grpc.health.v1.Health"} {
		if !served[name] {
			t.Errorf("%s is not served", name)
		}
	}
}

// guard lets in who says the word, to what is listed.
type guard struct{ may map[auth.Operation]bool }

func (guard) Authenticate(context.Context, auth.Peer) (auth.Principal, error) { return "tester", nil }

func (g guard) Authorize(_ context.Context, who auth.Principal, _ auth.Peer, what auth.Operation) error {
	if who == "tester" && g.may[what] {
		return nil
	}
	return errors.New("not listed")
}

// A caller may do what the Authorizer allows, and nothing else.
func TestAccess(t *testing.T) {
	w := whole(t, setting{guard: &guard{map[auth.Operation]bool{auth.Observe: true, auth.Infer: true}}})
	conn := connect(t, w)
	worker1 := workerpb.NewWorkerServiceClient(conn)
	if _, err := worker1.GetMetrics(t.Context(), &workerpb.GetMetricsRequest{}); err != nil {
		t.Error(err)
	}
	_, err := workerpb.NewShardServiceClient(conn).Drain(t.Context(), &workerpb.DrainRequest{})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("status %v", status.Code(err))
	}
	_, err = workerpb.NewTextServiceClient(conn).Tokenize(t.Context(), &workerpb.TokenizeRequest{})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	dialTo(t, w).open(1, []*worker{w})
	for name, change := range map[string]func(*workerpb.Open){
		"as a hop": func(o *workerpb.Open) {
			o.Held = &workerpb.CacheState{Length: proto.Uint32(0), ChainHash: make([]byte, 16)}
		},
		"for another":    func(o *workerpb.Open) { o.OnBehalfOf = "somebody" },
		"with a ring on": func(o *workerpb.Open) { o.Ring = &workerpb.RingTarget{Address: "x:1"} },
	} {
		m := openOf(2, []*worker{w})
		change(m.GetOpen())
		d := dialTo(t, w)
		d.send(m)
		if _, err := d.end(); err == nil || err.Code != workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A panic ends one call, and no more.
func TestPanicStaysInItsCall(t *testing.T) {
	boom := grpc.ChainUnaryInterceptor(func(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if info.FullMethod == workerpb.WorkerService_GetMetrics_FullMethodName {
			panic("boom")
		}
		return handle(ctx, r)
	})
	w := whole(t, setting{server: []grpc.ServerOption{boom}})
	client := workerpb.NewWorkerServiceClient(connect(t, w))
	_, err := client.GetMetrics(t.Context(), &workerpb.GetMetricsRequest{})
	code(t, err, workerpb.ErrorCode_ERROR_CODE_INTERNAL)
	if _, err := client.GetCapability(t.Context(), &workerpb.GetCapabilityRequest{}); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// The first message of a stream is an open.
func TestFirstMessage(t *testing.T) {
	w := whole(t, setting{})
	for name, c := range map[string]struct {
		m    *workerpb.SessionRequest
		want workerpb.ErrorCode
	}{
		"a step":  {step(1, 0, 0, prompt(1)), workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION},
		"a close": {&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}}, workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION},
		"nothing": {&workerpb.SessionRequest{}, workerpb.ErrorCode_ERROR_CODE_MALFORMED},
	} {
		d := dialTo(t, w)
		d.send(c.m)
		d.send(openOf(1, []*worker{w})) // too late: the stream is refused
		if closed, err := d.end(); closed != nil || err == nil || err.Code != c.want {
			t.Errorf("%s: %v, %v", name, closed, err)
		}
	}
	if n := w.dir.Sessions(); n != 0 {
		t.Errorf("%d sessions stay", n)
	}
}

// Boundaries larger than a message travel in frames.
func TestLargeBoundaries(t *testing.T) {
	var want string
	for _, cuts := range [][]uint32{{}, {2}} {
		workers := route(t, setting{model: "fake:width=65536"}, cuts...) // 256 KiB a row
		d := dialTo(t, workers[0])
		d.open(1, workers)
		d.send(step(1, 0, 0, prompt(40, 41, 42, 43, 44, 45, 46, 47, 48, 49)))
		d.send(step(2, 1, 10, run(5, 44)))
		text, _, failed := d.answer(2)
		if want == "" {
			want = text
		}
		if failed != nil || text != want || len(text) != 5 {
			t.Errorf("%q, want %q; %v", text, want, failed)
		}
	}
}
