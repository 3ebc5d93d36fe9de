package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// Target is the route that is tried: one worker that holds a whole model, or several in order. The first is spoken to, the
// others are dialled by the hop before them.
type Target struct {
	Hops []*Hop
	Peer *Peer // a next hop of ours that the first hop may dial; nil: none
	// Shown are the secrets by which this program proves itself to workers, by header; nil: none.
	Shown map[string]string
	// Log is all that the workers have logged so far, at the most talkative level; nil: it is not seen.
	Log func() ([]byte, error)
	// Store is the name by which the first worker can load its model again; empty: it is not to be drained or unloaded.
	Store string
	// Faults are what the engines can be made to fail with.
	Faults []Fault
}

// Hop is one worker of the route.
type Hop struct {
	Address string
	Conn    *grpc.ClientConn
	Worker  workerpb.WorkerServiceClient
	Shard   workerpb.ShardServiceClient
	Text    workerpb.TextServiceClient
	Is      *workerpb.Capability // as it was when the target was made
}

// NewTarget asks each worker what it is. The connections stay the caller's.
func NewTarget(ctx context.Context, addresses []string, conns []*grpc.ClientConn) (*Target, error) {
	t := &Target{}
	for i, conn := range conns {
		h := &Hop{
			Address: addresses[i], Conn: conn, Worker: workerpb.NewWorkerServiceClient(conn),
			Shard: workerpb.NewShardServiceClient(conn), Text: workerpb.NewTextServiceClient(conn),
		}
		answer, err := h.Worker.GetCapability(ctx, &workerpb.GetCapabilityRequest{})
		if err != nil {
			return nil, fmt.Errorf("ask %s for its capability: %w", addresses[i], err)
		}
		h.Is = answer.GetCapability()
		t.Hops = append(t.Hops, h)
	}
	return t, t.check()
}

// check says what keeps a route from being one.
func (t *Target) check() error {
	var end uint32
	for _, h := range t.Hops {
		shard := h.Is.GetShard()
		switch {
		case shard.GetState() != workerpb.ShardState_SHARD_STATE_READY:
			return fmt.Errorf("the worker at %s is %v; wait until it is READY", h.Address, shard.GetState())
		case shard.GetLayers().GetFirst() != end:
			return fmt.Errorf("the worker at %s begins at layer %d; name the workers in order, from layer 0, without gap: layer %d is due",
				h.Address, shard.GetLayers().GetFirst(), end)
		case string(shard.GetFingerprint()) != string(t.Hops[0].Is.GetShard().GetFingerprint()):
			return fmt.Errorf("the workers at %s and %s hold different models", t.Hops[0].Address, h.Address)
		}
		end = shard.GetLayers().GetEnd()
	}
	if n := t.Hops[0].Is.GetShard().GetNLayer(); end != n {
		return fmt.Errorf("the route ends at layer %d, the model has %d; name the workers of all layers", end, n)
	}
	return nil
}

// head is the worker that is spoken to.
func (t *Target) head() *Hop { return t.Hops[0] }

// tail is the last worker.
func (t *Target) tail() *Hop { return t.Hops[len(t.Hops)-1] }

// on says whether a feature is ON at every hop.
func (t *Target) on(name string) bool {
	return !slices.ContainsFunc(t.Hops, func(h *Hop) bool {
		return !slices.ContainsFunc(h.Is.GetFeatures(), func(f *workerpb.Feature) bool {
			return f.GetName() == name && f.GetStatus() == workerpb.FeatureStatus_FEATURE_STATUS_ON
		})
	})
}

// needs is a Case.Skip for features.
func needs(names ...string) func(*Target) string {
	return func(t *Target) string {
		for _, name := range names {
			if !t.on(name) {
				return "the feature " + name + " is not ON at every hop"
			}
		}
		return ""
	}
}

// hops is a Case.Skip for routes with fewer hops.
func hops(n int) func(*Target) string {
	return func(t *Target) string {
		if len(t.Hops) < n {
			return fmt.Sprintf("the route has %d hop(s), the case needs %d", len(t.Hops), n)
		}
		return ""
	}
}

// any of several reasons to skip.
func either(skips ...func(*Target) string) func(*Target) string {
	return func(t *Target) string {
		for _, skip := range skips {
			if reason := skip(t); reason != "" {
				return reason
			}
		}
		return ""
	}
}

// vocab is the number of token ids.
func (t *Target) vocab() uint32 { return t.head().Is.GetShard().GetNVocab() }

// ids are n token ids, the same for equal n and seed, none of them special in the usual vocabularies.
func (t *Target) ids(n int, seed uint32) []uint32 {
	out := make([]uint32, n)
	span := max(t.vocab(), 16) - 8
	x := seed*2654435761 + 12345
	for i := range out {
		x = x*1664525 + 1013904223
		out[i] = (8 + (x>>8)%span) % t.vocab()
	}
	return out
}

// context is the tokens that a case reserves: enough, and little.
func (t *Target) context() uint32 {
	n := uint32(128)
	for _, h := range t.Hops {
		n = min(n, h.Is.GetShard().GetContextLimit())
	}
	return n
}

// openFor is a good Open for the route from hop first on.
func (t *Target) openFor(first int) *workerpb.Open {
	h := t.Hops[first].Is.GetShard()
	o := &workerpb.Open{
		SessionId: random(16), SessionKey: random(32), Attempt: 1,
		Revisions: &workerpb.RevisionRange{Min: 1, Max: 1},
		Expect: &workerpb.Expectation{
			Fingerprint: h.GetFingerprint(), Layers: proto.CloneOf(h.GetLayers()), BoundaryIn: proto.CloneOf(h.GetBoundaryIn()),
			BoundaryOut: proto.CloneOf(h.GetBoundaryOut()),
		},
		ContextTokens: t.context(), Egress: workerpb.Egress_EGRESS_FORWARD,
		Receive: &workerpb.ReceiveWindow{Tokens: proto.Uint32(1024), Bytes: proto.Uint64(64 << 20)},
		Linger:  durationpb.New(0), Budget: durationpb.New(5 * time.Second),
	}
	for _, next := range t.Hops[first+1:] {
		o.Route = append(o.Route, &workerpb.RouteHop{Address: next.Address, Layers: proto.CloneOf(next.Is.GetShard().GetLayers())})
	}
	return o
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
