package admin

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workeradmin"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// held is a shard whose status the test chooses.
type held struct {
	mu     sync.Mutex
	status shard.Status
	drains []time.Duration
	err    error
}

func (h *held) Status() shard.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

func (h *held) Drain(budget time.Duration) (shard.Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drains = append(h.drains, budget)
	return h.status, h.err
}

func (h *held) is(s shard.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = s
}

var capability = &workerpb.Capability{
	WorkerId: "w1", Instance: []byte{0xab}, Build: &workerpb.Build{Version: "1.2.3"},
	Revisions: &workerpb.RevisionRange{Min: 1, Max: 2},
	Features: []*workerpb.Feature{
		{Name: "session", Status: workerpb.FeatureStatus_FEATURE_STATUS_ON},
		{Name: "mtp", Status: workerpb.FeatureStatus_FEATURE_STATUS_RESERVED, Reason: "later"},
	},
	Shard: &workerpb.ShardInfo{
		State: workerpb.ShardState_SHARD_STATE_READY, Fingerprint: []byte{1, 2}, Architecture: "llama",
		Layers: &workerpb.LayerRange{First: proto.Uint32(2), End: 5}, NLayer: 5, Tail: true, ContextLimit: 2048, NVocab: 512,
		BoundaryIn: &workerpb.BoundaryLayout{Width: 64, Layout: "hidden"}, Verified: workerpb.Verified_VERIFIED_OWN,
	},
	Cache: &workerpb.CacheAbility{Truncate: workerpb.TruncateAbility_TRUNCATE_ABILITY_ANY, Copy: workerpb.CopyAbility_COPY_ABILITY_PREFIX, Marks: proto.Uint32(0)},
	Limits: &workerpb.Limits{
		Sessions: 4, FirstWindow: &workerpb.Credit{Steps: proto.Uint32(8), Bytes: proto.Uint64(1 << 24)}, MaxLinger: durationpb.New(30 * time.Second),
		BatchTokens: 512, MessageBytes: 1 << 20, WorkerWindowBytes: 1 << 30, WorkerOutgoingBytes: 1 << 28,
		MaxWindow: &workerpb.Credit{Steps: proto.Uint32(64), Bytes: proto.Uint64(1 << 28)},
	},
	Numerics: &workerpb.Numerics{Backend: "cpu", Threads: 2, CacheType: "f16", MicroBatch: 512},
	Devices:  []*workerpb.Device{{Name: "CPU", Backend: "cpu", MemoryTotal: 1 << 30, MemoryFree: proto.Uint64(0)}},
	Text:     &workerpb.TextAbility{Served: true},
}

// serve runs the port on a free address and returns a client for it and its base URL.
func serve(t *testing.T, s Shard) (*workeradmin.ClientWithResponses, string) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dgr_worker_sessions", Help: "Sessions now."}, func() float64 { return 2 }))
	opened := time.Now().Add(-time.Minute)
	server := New(Options{
		WorkerID: "w1", Shard: s, Capability: func() *workerpb.Capability { return capability }, Metrics: registry,
		Log: slog.New(slog.DiscardHandler),
		Sessions: func() []Session {
			return []Session{
				{ID: [16]byte{2}, State: "LINGERING", Attempt: 3, ContextTokens: 100, CacheLength: 7, Opened: opened, Active: opened},
				{ID: [16]byte{1}, State: "ACTIVE", Attempt: 1, Opened: opened, Active: time.Now(), Downstream: "127.0.0.1:9"},
			}
		},
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the port ended with %v", err)
		}
	})
	url := "http://" + l.Addr().String()
	client, err := workeradmin.NewClientWithResponses(url, workeradmin.WithHTTPClient(&http.Client{Transport: transport, Timeout: 10 * time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	return client, url
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// conforms checks a body against the schema of the description.
func conforms(t *testing.T, schema string, body []byte) {
	t.Helper()
	spec := must[*openapi3.T](t)(workeradmin.GetSwagger())
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if err := spec.Components.Schemas[schema].Value.VisitJSON(value, openapi3.MultiErrors()); err != nil {
		t.Errorf("a body is no %s: %v", schema, err)
	}
}

func TestReadinessSaysTheState(t *testing.T) {
	h := &held{}
	client, _ := serve(t, h)
	notReady := fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "")
	for _, tt := range []struct {
		status shard.Status
		want   int
		check  func(workeradmin.Readiness) bool
	}{
		{shard.Status{State: tables.ShardUnloaded, Err: notReady}, 503, func(r workeradmin.Readiness) bool {
			return r.Error.Code == "SHARD_NOT_READY" && r.Error.Recovery == "RETRY_SAME" && r.Instance == nil && *r.Error.RetryAfterSeconds == 1
		}},
		{shard.Status{State: tables.ShardLoading, Err: notReady, Progress: engine.LoadProgress{Phase: engine.LoadReading, Done: 3, Total: 9}}, 503,
			func(r workeradmin.Readiness) bool {
				return *r.Progress == workeradmin.LoadProgress{Phase: "READING", DoneBytes: 3, TotalBytes: 9}
			}},
		{shard.Status{State: tables.ShardReady, Ready: true, Instance: [16]byte{0xfe}, Probed: true, ProbeAge: time.Second, ProbeTook: time.Millisecond}, 200,
			func(r workeradmin.Readiness) bool {
				return r.Ready && r.Error == nil && r.Progress == nil && *r.Instance == "fe"+strings.Repeat("0", 30) && *r.ProbeAgeSeconds == 1 && *r.ProbeTookSeconds == 0.001
			}},
		{shard.Status{State: tables.ShardDraining, DrainLeft: 2 * time.Second, Err: fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, "")}, 503,
			func(r workeradmin.Readiness) bool { return *r.DrainLeftSeconds == 2 && r.Error.Code == "DRAINING" }},
		{shard.Status{State: tables.ShardFailed, Err: fault.New(workerpb.ErrorCode_ERROR_CODE_BAD_MODEL_FILE, "cut")}, 503,
			func(r workeradmin.Readiness) bool {
				return r.Error.Code == "BAD_MODEL_FILE" && r.Error.Scope == "SHARD" && strings.HasSuffix(r.Error.Message, "cut")
			}},
	} {
		t.Run(tt.status.State.String(), func(t *testing.T) {
			h.is(tt.status)
			r := must[*workeradmin.GetReadyzResponse](t)(client.GetReadyzWithResponse(t.Context()))
			body := r.JSON200
			if tt.want == 503 {
				body = r.JSON503
			}
			if r.StatusCode() != tt.want || body == nil || string(body.State) != tt.status.State.String() || !tt.check(*body) {
				t.Errorf("%d: %s", r.StatusCode(), r.Body)
			}
			conforms(t, "Readiness", r.Body)
			if live := must[*workeradmin.GetLivezResponse](t)(client.GetLivezWithResponse(t.Context())); live.StatusCode() != 200 || !live.JSON200.Alive {
				t.Errorf("livez: %d %s", live.StatusCode(), live.Body)
			}
		})
	}
}

// staying are residents that do nothing.
type staying struct{}

func (staying) Settle(shard.Loaded)                 {}
func (staying) Drain(time.Duration)                 {}
func (staying) Empty(context.Context) error         { return nil }
func (staying) Evict(context.Context, *fault.Error) {}
func (staying) Sessions() int                       { return 0 }

func TestReadyzAnswersWhileTheEngineIsFrozen(t *testing.T) {
	s := shard.New(shard.Options{
		Residents: staying{}, ProbeInterval: 20 * time.Millisecond, ProbeTimeout: 20 * time.Millisecond, Drain: time.Second,
		Request: engine.LoadRequest{ContextLimit: 8, Sessions: 1, BatchTokens: 8, MicroBatch: 8, Threads: 1, CacheType: "f16"},
	})
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	if err := s.Load(t.Context(), shard.Order{Source: &shard.Imaginary{}, Model: "fake:script=probe 2+ stuck"}, nil); err != nil {
		t.Fatal(err)
	}
	client, _ := serve(t, s)
	for status, changed := s.Watch(); status.Ready; status, changed = s.Watch() {
		<-changed
	}
	begin := time.Now()
	r := must[*workeradmin.GetReadyzResponse](t)(client.GetReadyzWithResponse(t.Context()))
	if took := time.Since(begin); r.JSON503 == nil || r.JSON503.State != "READY" || took > time.Second {
		t.Errorf("%d after %s: %s", r.StatusCode(), took, r.Body)
	}
}

func TestCapability(t *testing.T) {
	client, _ := serve(t, &held{status: shard.Status{State: tables.ShardReady, Loaded: &shard.Loaded{Info: engine.ShardInfo{Memory: engine.Memory{Weights: 77}}}}})
	r := must[*workeradmin.GetCapabilityResponse](t)(client.GetCapabilityWithResponse(t.Context()))
	conforms(t, "Capability", r.Body)
	c := r.JSON200
	if c == nil || c.WorkerId != "w1" || *c.Instance != "ab" || c.Build.Pin != nil || c.Revisions.Max != 2 || len(c.Features) != 2 ||
		c.Features[1].Status != "RESERVED" || *c.Features[1].Reason != "later" || c.Features[0].Reason != nil {
		t.Fatalf("identity: %+v", c)
	}
	s := c.Shard
	if s.State != "READY" || *s.Fingerprint != "0102" || *s.Layers != (workeradmin.LayerRange{First: 2, End: 5}) || *s.Head || !*s.Tail ||
		*s.Verified != "OWN" || s.BoundaryIn.Width != 64 || s.BoundaryOut != nil || *s.WeightsBytes != 77 {
		t.Errorf("shard: %+v", s)
	}
	if c.Cache.Truncate != "ANY" || c.Cache.Copy != "PREFIX" || c.Limits.WindowBytes != 1<<24 || c.Limits.LingerSeconds != 30 ||
		c.Numerics.Backend != "cpu" || *c.Devices[0].MemoryFreeBytes != 0 || !c.Text.Served {
		t.Errorf("abilities: %+v", c)
	}
}

func TestSessionsAreOrdered(t *testing.T) {
	client, _ := serve(t, &held{})
	r := must[*workeradmin.ListSessionsResponse](t)(client.ListSessionsWithResponse(t.Context()))
	conforms(t, "SessionList", r.Body)
	list := r.JSON200.Sessions
	if len(list) != 2 || !strings.HasPrefix(list[0].Id, "01") || *list[0].Downstream != "127.0.0.1:9" || list[1].State != "LINGERING" ||
		list[1].CacheLength != 7 || list[1].Attempt != 3 || list[1].AgeSeconds < 60 || list[1].Downstream != nil {
		t.Errorf("%s", r.Body)
	}
}

func TestMetricsAreText(t *testing.T) {
	client, _ := serve(t, &held{})
	r := must[*workeradmin.GetMetricsResponse](t)(client.GetMetricsWithResponse(t.Context()))
	if got := string(r.Body); !strings.Contains(got, "\ndgr_worker_sessions 2\n") || !strings.HasPrefix(r.HTTPResponse.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("%s %s", r.HTTPResponse.Header, got)
	}
}

func TestDrain(t *testing.T) {
	h := &held{status: shard.Status{State: tables.ShardDraining, DrainLeft: 5 * time.Second}}
	_, url := serve(t, h)
	for _, tt := range []struct {
		body string
		want int
		has  string
	}{
		{"", 202, `"left_seconds":5`},
		{"{}", 202, `"sessions":2`},
		{`{"budget_seconds":2.5}`, 202, `"state":"DRAINING"`},
		{`{"budget_seconds":-1}`, 400, "MALFORMED"},
		{`{"budget_seconds":"2"}`, 400, "MALFORMED"},
		{`{"budget":2}`, 400, "budget"},
		{`{} {}`, 400, "MALFORMED"},
		{`{`, 400, "MALFORMED"},
		{strings.Repeat(" ", bodyBytes+1), 400, "longer"},
	} {
		status, body := post(t, url+"/v1/drain", tt.body, nil)
		if status != tt.want || !strings.Contains(body, tt.has) {
			t.Errorf("%.20q: %d %s", tt.body, status, body)
		}
		schema := "DrainStatus"
		if tt.want == 400 {
			schema = "Error"
		}
		conforms(t, schema, []byte(body))
	}
	if len(h.drains) != 3 || h.drains[0] != -1 || h.drains[1] != -1 || h.drains[2] != 2500*time.Millisecond {
		t.Errorf("asked for %v", h.drains)
	}
	h.err = fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "")
	h.is(shard.Status{State: tables.ShardLoading})
	if status, body := post(t, url+"/v1/drain", "", nil); status != 409 || !strings.Contains(body, "SHARD_NOT_READY") {
		t.Errorf("loading: %d %s", status, body)
	}
	h.is(shard.Status{State: tables.ShardUnloaded})
	if status, body := post(t, url+"/v1/drain", "", nil); status != 202 {
		t.Errorf("drained already: %d %s", status, body)
	}
	if status, _ := post(t, url+"/v1/drain", "", map[string]string{"Sec-Fetch-Site": "cross-site"}); status != 403 {
		t.Errorf("a foreign page got %d", status)
	}
}

func TestWhatIsNotThere(t *testing.T) {
	_, url := serve(t, &held{})
	for path, want := range map[string]int{"/": 404, "/v1/none": 404, "/v1/sessions": 405} {
		status, body := post(t, url+path, "", nil)
		var e workeradmin.Error
		if err := json.Unmarshal([]byte(body), &e); status != want || err != nil || e.Code != "MALFORMED" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func post(t *testing.T, url, body string, header map[string]string) (int, string) {
	t.Helper()
	request := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))
	for k, v := range header {
		request.Header.Set(k, v)
	}
	request.Close = true
	response := must[*http.Response](t)(http.DefaultClient.Do(request))
	defer response.Body.Close()
	return response.StatusCode, string(must[[]byte](t)(io.ReadAll(response.Body)))
}
