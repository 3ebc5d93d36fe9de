// Package route finds out what a list of workers holds and whether together they are one model: every layer once, the same
// bytes, able to talk to each other. It opens no session.
package route

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/worker"
)

// MaxHops is the longest route.
const MaxHops = 32

// MinRevision and MaxRevision are the revisions of the contract that this client speaks.
const (
	MinRevision = tables.MinRevision
	MaxRevision = tables.MaxRevision
)

// Hop is one worker of a route.
type Hop struct {
	Worker     *worker.Client
	Capability *workerpb.Capability
	First, End uint32 // its layers, [First, End)
}

// String names the hop by layers and address.
func (h Hop) String() string {
	return fmt.Sprintf("%s (layers %d:%d)", h.Worker.Address(), h.First, h.End)
}

// Route is the workers of one model, in the order of their layers.
type Route struct {
	Hops         []Hop
	Fingerprint  [32]byte
	Architecture string
	NLayer       uint32
	Vocab        uint32
	ContextLimit uint32 // tokens, the least of all hops
}

// Head is the worker that takes tokens and speaks to the driver.
func (r *Route) Head() *worker.Client { return r.Hops[0].Worker }

// Describe names the hop that an error is about; empty when the reference names none.
func (r *Route) Describe(ref *workerpb.HopRef) string {
	if ref == nil || ref.Index == nil || int(ref.GetIndex()) >= len(r.Hops) {
		if id := ref.GetWorkerId(); id != "" {
			return "worker " + id
		}
		return ""
	}
	hop := r.Hops[ref.GetIndex()]
	return fmt.Sprintf("hop %d, worker %s at %s", ref.GetIndex(), hop.Capability.GetWorkerId(), hop)
}

// Discover asks each worker what it holds and joins them to a route. The order of workers does not matter: their layers
// give it. It never waits longer than ctx.
//
// Errors: DOWNSTREAM_UNREACHABLE, SHARD_NOT_READY, SHARD_MISMATCH (not one model), ROUTE_INVALID (a gap, an overlap, a
// worker twice), UNSUPPORTED_REVISION, UNSUPPORTED_FEATURE. The sentence names the workers that do not fit.
func Discover(ctx context.Context, workers []*worker.Client) (*Route, error) {
	if len(workers) == 0 || len(workers) > MaxHops {
		return nil, invalid("it has %d workers; give 1 to %d", len(workers), MaxHops)
	}
	for i, w := range workers {
		if slices.ContainsFunc(workers[:i], func(other *worker.Client) bool { return other.Address() == w.Address() }) {
			return nil, invalid("the worker at %s stands in it twice", w.Address())
		}
	}
	capabilities := make([]*workerpb.Capability, len(workers))
	group, ctx := errgroup.WithContext(ctx)
	for i, w := range workers {
		group.Go(func() error {
			c, err := w.Capability(ctx)
			if err != nil {
				return fault.Of(err).At(nil, &workerpb.HopRef{Index: proto.Uint32(uint32(i))})
			}
			capabilities[i] = c
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	hops := make([]Hop, len(workers))
	for i, w := range workers {
		layers := capabilities[i].GetShard().GetLayers()
		hops[i] = Hop{Worker: w, Capability: capabilities[i], First: layers.GetFirst(), End: layers.GetEnd()}
	}
	return join(hops)
}

// join orders the hops and checks that they are one model.
func join(hops []Hop) (*Route, error) {
	for _, hop := range hops {
		if err := checkHop(hop); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(hops, func(a, b Hop) int { return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.End, b.End)) })
	for i := 1; i < len(hops); i++ {
		if err := checkModel(hops[0], hops[i]); err != nil {
			return nil, err
		}
	}
	if err := checkLayers(hops); err != nil {
		return nil, err
	}
	for i := 1; i < len(hops); i++ {
		if err := checkLink(hops[i-1], hops[i]); err != nil {
			return nil, err
		}
	}
	shard := hops[0].Capability.GetShard()
	r := &Route{
		Hops: hops, Fingerprint: [32]byte(shard.GetFingerprint()), Architecture: shard.GetArchitecture(),
		NLayer: shard.GetNLayer(), Vocab: shard.GetNVocab(), ContextLimit: shard.GetContextLimit(),
	}
	for _, hop := range hops {
		r.ContextLimit = min(r.ContextLimit, hop.Capability.GetShard().GetContextLimit())
	}
	return r, nil
}

// checkHop looks at one worker by itself.
func checkHop(hop Hop) error {
	c, shard := hop.Capability, hop.Capability.GetShard()
	if state := shard.GetState(); state != workerpb.ShardState_SHARD_STATE_READY {
		return say(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "The worker at %s is %s; wait until it is READY, or leave it out.",
			hop.Worker.Address(), strings.TrimPrefix(state.String(), "SHARD_STATE_"))
	}
	if len(shard.GetFingerprint()) != 32 || shard.GetNLayer() == 0 || hop.End <= hop.First || hop.End > shard.GetNLayer() {
		return say(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "The worker at %s is READY and does not say what it holds; it breaks the contract.", hop.Worker.Address())
	}
	if r := c.GetRevisions(); r.GetMin() > MaxRevision || r.GetMax() < MinRevision {
		return say(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION, "The worker at %s speaks the revisions %d to %d and this client %d to %d; upgrade the older side.",
			hop.Worker.Address(), r.GetMin(), r.GetMax(), MinRevision, MaxRevision)
	}
	needs := []string{"session"}
	if hop.End < shard.GetNLayer() {
		needs = append(needs, "chain")
	}
	for _, feature := range c.GetFeatures() {
		if slices.Contains(needs, feature.GetName()) && feature.GetStatus() != workerpb.FeatureStatus_FEATURE_STATUS_ON {
			return say(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "The worker at %s has the feature %q off (%s).",
				hop, feature.GetName(), feature.GetReason())
		}
	}
	return nil
}

// checkModel compares two workers' models.
func checkModel(a, b Hop) error {
	x, y := a.Capability.GetShard(), b.Capability.GetShard()
	if !bytes.Equal(x.GetFingerprint(), y.GetFingerprint()) {
		return say(workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, "The workers at %s and %s hold two models: %s %x… and %s %x…; a route is of one model.",
			a.Worker.Address(), b.Worker.Address(), x.GetArchitecture(), x.GetFingerprint()[:6], y.GetArchitecture(), y.GetFingerprint()[:6])
	}
	if x.GetNLayer() != y.GetNLayer() || x.GetNVocab() != y.GetNVocab() {
		return say(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "The workers at %s and %s hold one model and disagree about it (%d layers, %d tokens; %d layers, %d tokens); restart them with one build.",
			a.Worker.Address(), b.Worker.Address(), x.GetNLayer(), x.GetNVocab(), y.GetNLayer(), y.GetNVocab())
	}
	return nil
}

// checkLayers looks for gaps and overlaps.
func checkLayers(hops []Hop) error {
	nLayer := hops[0].Capability.GetShard().GetNLayer()
	if first := hops[0]; first.First != 0 {
		return invalid("no worker holds the layers 0:%d; the first is %s", first.First, first)
	}
	for i := 1; i < len(hops); i++ {
		a, b := hops[i-1], hops[i]
		switch {
		case b.First > a.End:
			return invalid("no worker holds the layers %d:%d between %s and %s", a.End, b.First, a, b)
		case b.First < a.End:
			return invalid("%s and %s overlap in the layers %d:%d; leave one out", a, b, b.First, min(a.End, b.End))
		}
	}
	if last := hops[len(hops)-1]; last.End != nLayer {
		return invalid("no worker holds the layers %d:%d after %s", last.End, nLayer, last)
	}
	return nil
}

// checkLink compares what one hop gives with what the next takes.
func checkLink(a, b Hop) error {
	out, in := a.Capability.GetShard().GetBoundaryOut(), b.Capability.GetShard().GetBoundaryIn()
	if out.GetWidth() != in.GetWidth() || out.GetEncoding() != in.GetEncoding() || out.GetLayout() != in.GetLayout() {
		return say(workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, "%s gives a boundary of %d × %s and %s takes %d × %s; run them with one build.",
			a, out.GetWidth(), out.GetLayout(), b, in.GetWidth(), in.GetLayout())
	}
	return nil
}

// invalid is ROUTE_INVALID.
func invalid(format string, args ...any) error {
	return say(workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, "The route does not join: "+format+".", args...)
}

// say is an error with a sentence of its own, which names the workers.
func say(code workerpb.ErrorCode, format string, args ...any) error {
	return fault.New(code, "").With(func(e *fault.Error) { e.Message = fmt.Sprintf(format, args...) })
}
