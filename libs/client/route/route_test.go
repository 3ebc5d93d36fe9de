package route_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type capable struct {
	workerpb.UnimplementedWorkerServiceServer
	capability *workerpb.Capability
}

func (c capable) GetCapability(context.Context, *workerpb.GetCapabilityRequest) (*workerpb.GetCapabilityResponse, error) {
	return &workerpb.GetCapabilityResponse{Capability: c.capability}, nil
}

// shard is the capability of a good worker of a model of 6 layers.
func shard(first, end uint32, spoil ...func(*workerpb.Capability)) *workerpb.Capability {
	fingerprint := make([]byte, 32)
	fingerprint[0] = 7
	hidden := &workerpb.BoundaryLayout{Width: 8, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Layout: "hidden"}
	c := &workerpb.Capability{
		WorkerId: fmt.Sprintf("w%d", first), Revisions: &workerpb.RevisionRange{Min: 1, Max: 1},
		Features: []*workerpb.Feature{
			{Name: "session", Status: workerpb.FeatureStatus_FEATURE_STATUS_ON}, {Name: "chain", Status: workerpb.FeatureStatus_FEATURE_STATUS_ON},
		},
		Shard: &workerpb.ShardInfo{
			State: workerpb.ShardState_SHARD_STATE_READY, Fingerprint: fingerprint, Architecture: "fake", NLayer: 6, NVocab: 9,
			Layers: &workerpb.LayerRange{First: proto.Uint32(first), End: end}, ContextLimit: 100 - first,
		},
	}
	if first > 0 {
		c.Shard.BoundaryIn = proto.CloneOf(hidden)
	}
	if end < 6 {
		c.Shard.BoundaryOut = proto.CloneOf(hidden)
	}
	for _, s := range spoil {
		s(c)
	}
	return c
}

// serve starts a worker for each capability; its address is named after its place, w0, w1, …
func serve(t *testing.T, capabilities ...*workerpb.Capability) []*worker.Client {
	t.Helper()
	var clients []*worker.Client
	for i, c := range capabilities {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer()
		workerpb.RegisterWorkerServiceServer(g, capable{capability: c})
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = g.Serve(listener)
		}()
		o := dial.Default()
		o.Dialer = func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
		}
		client, err := worker.Open(fmt.Sprintf("w%d:1", i), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = client.Close()
			g.Stop()
			<-served
		})
		clients = append(clients, client)
	}
	return clients
}

func TestWorkersInAnyOrderJoin(t *testing.T) {
	workers := serve(t, shard(4, 6), shard(0, 2), shard(2, 4))
	r, err := route.Discover(t.Context(), workers)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, hop := range r.Hops {
		order = append(order, hop.String())
	}
	if want := []string{"w1:1 (layers 0:2)", "w2:1 (layers 2:4)", "w0:1 (layers 4:6)"}; !slices.Equal(order, want) {
		t.Errorf("the route is %v, want %v", order, want)
	}
	if r.NLayer != 6 || r.Vocab != 9 || r.ContextLimit != 96 || r.Architecture != "fake" || r.Fingerprint[0] != 7 || r.Head().Address() != "w1:1" {
		t.Errorf("the route is %+v", r)
	}
	if got := r.Describe(&workerpb.HopRef{Index: proto.Uint32(1), WorkerId: "w2"}); got != "hop 1, worker w2 at w2:1 (layers 2:4)" {
		t.Errorf("hop 1 is %q", got)
	}
}

func TestWhatDoesNotJoinIsNamed(t *testing.T) {
	other := func(c *workerpb.Capability) { c.Shard.Fingerprint[0] = 8 }
	for name, c := range map[string]struct {
		workers []*workerpb.Capability
		code    workerpb.ErrorCode
		says    []string
	}{
		"none":          {nil, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, []string{"0 workers"}},
		"gap":           {[]*workerpb.Capability{shard(0, 2), shard(3, 6)}, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, []string{"2:3", "w0:1", "w1:1"}},
		"overlap":       {[]*workerpb.Capability{shard(0, 4), shard(3, 6)}, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, []string{"3:4", "w0:1", "w1:1"}},
		"twice":         {[]*workerpb.Capability{shard(0, 3), shard(0, 3), shard(3, 6)}, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, []string{"0:3", "w0:1", "w1:1"}},
		"inside":        {[]*workerpb.Capability{shard(0, 6), shard(2, 4)}, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, []string{"2:4", "w0:1", "w1:1"}},
		"no head":       {[]*workerpb.Capability{shard(2, 6)}, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, []string{"0:2", "w0:1"}},
		"no tail":       {[]*workerpb.Capability{shard(0, 3), shard(3, 5)}, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, []string{"5:6", "w1:1"}},
		"two models":    {[]*workerpb.Capability{shard(0, 3), shard(3, 6, other)}, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, []string{"w0:1", "w1:1", "07", "08"}},
		"models before": {[]*workerpb.Capability{shard(0, 2), shard(3, 6, other)}, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, []string{"w0:1", "w1:1"}},
		"boundary": {[]*workerpb.Capability{shard(0, 3), shard(3, 6, func(c *workerpb.Capability) { c.Shard.BoundaryIn.Width = 9 })},
			workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, []string{"w0:1", "w1:1", "8", "9"}},
		"loading": {[]*workerpb.Capability{shard(0, 3), shard(3, 6, func(c *workerpb.Capability) { c.Shard.State = workerpb.ShardState_SHARD_STATE_LOADING })},
			workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, []string{"w1:1", "LOADING"}},
		"later revision": {[]*workerpb.Capability{shard(0, 6, func(c *workerpb.Capability) { c.Revisions = &workerpb.RevisionRange{Min: 5, Max: 6} })},
			workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION, []string{"w0:1", "5 to 6", "1 to 1"}},
		"dials nobody": {[]*workerpb.Capability{shard(0, 3, func(c *workerpb.Capability) {
			c.Features[1].Status, c.Features[1].Reason = workerpb.FeatureStatus_FEATURE_STATUS_OFF, "chain.allow is empty"
		}), shard(3, 6)}, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, []string{"w0:1", "chain", "chain.allow is empty"}},
		"says nothing": {[]*workerpb.Capability{shard(0, 6, func(c *workerpb.Capability) { c.Shard.Layers = nil })},
			workerpb.ErrorCode_ERROR_CODE_INTERNAL, []string{"w0:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := route.Discover(t.Context(), serve(t, c.workers...))
			var f *fault.Error
			if !errors.As(err, &f) || f.Code != c.code {
				t.Fatalf("error %v, want %s", err, fault.Name(c.code))
			}
			for _, word := range c.says {
				if !strings.Contains(f.Message, word) {
					t.Errorf("%q does not say %q", f.Message, word)
				}
			}
			if strings.Contains(f.Message, "\n") {
				t.Errorf("%q is more than a line", f.Message)
			}
		})
	}
}

func TestUnreachableWorkerIsNamed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close() // now nobody answers there
	client, err := worker.Open(address, dial.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = route.Discover(t.Context(), []*worker.Client{client})
	f := fault.Of(err)
	if f.Code != workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE || !f.Inferred || !strings.Contains(f.Message, address) || !strings.Contains(f.Message, "connection refused") {
		t.Errorf("error %+v", f)
	}
}

func TestAddressesAreLookedAt(t *testing.T) {
	for _, bad := range []string{"", "host", "host:", "http://host:1/", strings.Repeat("h", 300) + ":1"} {
		if c, err := worker.Open(bad, dial.Default()); err == nil {
			_ = c.Close()
			t.Errorf("%q is taken for an address", bad)
		} else if fault.Of(err).Code != workerpb.ErrorCode_ERROR_CODE_MALFORMED {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
