package session

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// maxHops is the longest route.
const maxHops = 32

// CheckOpen refuses an Open that this hop cannot or may not serve, before anything is reserved or dialled. Whether the id
// is known, and whether there is room, is not its matter.
//
// Errors: MALFORMED, UNSUPPORTED_REVISION, UNSUPPORTED_FEATURE, SHARD_MISMATCH, ROUTE_INVALID, CONTEXT_OVERFLOW.
func CheckOpen(hop *Hop, open *workerpb.Open) *fault.Error {
	for _, check := range []func(*Hop, *workerpb.Open) *fault.Error{
		checkIdentity, checkVersions, checkAmounts, checkChained, checkExpectation, checkRoute, checkContext,
	} {
		if err := check(hop, open); err != nil {
			return err
		}
	}
	return nil
}

func checkIdentity(_ *Hop, o *workerpb.Open) *fault.Error {
	switch {
	case len(o.GetSessionId()) != 16:
		return malformed("open.session_id", "16 bytes")
	case len(o.GetSessionKey()) != 32:
		return malformed("open.session_key", "32 bytes")
	case o.GetAttempt() == 0:
		return malformed("open.attempt", "1 or more")
	case len(o.GetOnBehalfOf()) > 256:
		return malformed("open.on_behalf_of", "at most 256 bytes")
	}
	return nil
}

func checkVersions(h *Hop, o *workerpb.Open) *fault.Error {
	r := o.GetRevisions()
	if r.GetMin() == 0 || r.GetMax() < r.GetMin() {
		return malformed("open.revisions", "a range with 1 ≤ min ≤ max")
	}
	if len(o.GetNeeds()) > 32 {
		return malformed("open.needs", "at most 32 names")
	}
	for i, name := range o.GetNeeds() {
		if len(name) == 0 || len(name) > 64 {
			return malformed(fmt.Sprintf("open.needs[%d]", i), "a name of 1 to 64 bytes")
		}
	}
	if err := h.Revisions.Refuse(o); err != nil {
		return err
	}
	var missing []string
	for _, name := range o.GetNeeds() {
		if !h.on(name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return h.Revisions.versions(o, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, missing, "not ON here: %q", missing)
	}
	return nil
}

func (r Revisions) versions(o *workerpb.Open, code workerpb.ErrorCode, missing []string, format string, args ...any) *fault.Error {
	return fault.New(code, format, args...).With(func(e *fault.Error) {
		e.Detail = &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Version{Version: &workerpb.VersionDetail{
			Theirs: o.GetRevisions(), Ours: &workerpb.RevisionRange{Min: r.Min, Max: r.Max},
			MissingFeatures: missing,
		}}}
	})
}

func checkAmounts(h *Hop, o *workerpb.Open) *fault.Error {
	switch {
	case o.GetContextTokens() == 0:
		return malformed("open.context_tokens", "1 to the context limit of the route")
	case o.GetEgress() == workerpb.Egress_EGRESS_UNSPECIFIED:
		return malformed("open.egress", "FORWARD or RETURN")
	case o.GetReceive() == nil || o.GetReceive().Tokens == nil || o.GetReceive().Bytes == nil:
		return malformed("open.receive", "present, with tokens and bytes")
	case o.GetLinger() == nil || !within(o.GetLinger(), 0, h.Limits.MaxLinger):
		return malformed("open.linger", "0 s to %v", h.Limits.MaxLinger)
	case o.GetBudget() == nil || !within(o.GetBudget(), 1, maxDuration):
		return malformed("open.budget", "more than 0 s")
	case len(o.GetPrefix()) > 16:
		return malformed("open.prefix", "at most 16 offers")
	}
	for _, p := range o.GetPrefix() {
		if p.GetLength() == 0 || len(p.GetChainHash()) != 16 {
			return malformed("open.prefix", "offers with a length of 1 or more and a hash of 16 bytes")
		}
	}
	return nil
}

const maxDuration = time.Duration(1<<63 - 1)

// within says whether d is a legal duration from low to high.
func within(d *durationpb.Duration, low, high time.Duration) bool {
	return d.CheckValid() == nil && d.AsDuration() >= low && d.AsDuration() <= high
}

// checkChained looks at what only a hop may set. The head has no hop before it.
func checkChained(h *Hop, o *workerpb.Open) *fault.Error {
	if h.Shard.Head() && o.GetHeld() != nil {
		return malformed("open.held", "absent at the head")
	}
	if o.GetHeld() == nil {
		switch {
		case o.GetRing() != nil:
			return malformed("open.ring", "absent in a driver's Open")
		case len(o.GetCacheDomain()) > 0:
			return malformed("open.cache_domain", "absent in a driver's Open")
		}
		return nil
	}
	if n := len(o.GetCacheDomain()); n != 0 && n != 32 {
		return malformed("open.cache_domain", "32 bytes")
	}
	if o.GetHeld().Length == nil || len(o.GetHeld().GetChainHash()) != 16 {
		return malformed("open.held", "a length and a chain hash of 16 bytes")
	}
	if o.GetEgress() == workerpb.Egress_EGRESS_RETURN {
		return malformed("open.egress", "FORWARD when passed on by a hop")
	}
	if o.GetRing() != nil && !addressable(o.GetRing().GetAddress()) {
		return malformed("open.ring.address", "HOST:PORT of 1 to 261 bytes")
	}
	return nil
}

func checkExpectation(h *Hop, o *workerpb.Open) *fault.Error {
	e := o.GetExpect()
	switch {
	case len(e.GetFingerprint()) != 32:
		return malformed("open.expect.fingerprint", "32 bytes")
	case e.GetLayers() == nil || e.GetLayers().First == nil || e.GetLayers().GetEnd() <= e.GetLayers().GetFirst():
		return malformed("open.expect.layers", "a range with first < end")
	}
	mismatch := func(format string, args ...any) *fault.Error {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, format, args...)
	}
	if !bytes.Equal(e.GetFingerprint(), h.Fingerprint[:]) {
		return mismatch("worker %s holds the model %x, the caller means %x", h.WorkerID, h.Fingerprint[:6], e.GetFingerprint()[:6])
	}
	if want := layersOf(e.GetLayers()); want != h.Shard.Layers {
		return mismatch("worker %s holds the layers %v, the caller means %v", h.WorkerID, h.Shard.Layers, want)
	}
	for _, end := range []struct {
		path       string
		asked, own *workerpb.BoundaryLayout
	}{
		{"boundary_in", e.GetBoundaryIn(), layoutOf(h.Shard.BoundaryIn)},
		{"boundary_out", e.GetBoundaryOut(), layoutOf(h.Shard.BoundaryOut)},
	} {
		if end.asked != nil && !proto.Equal(end.asked, end.own) {
			return mismatch("worker %s has the %s {%v}, the caller means {%v}", h.WorkerID, end.path, end.own, end.asked)
		}
	}
	return nil
}

// addressable says whether address has the form HOST:PORT.
func addressable(address string) bool {
	host, text, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(text, 10, 16)
	return len(address) <= 261 && err == nil && host != "" && portErr == nil && port > 0
}

func layersOf(l *workerpb.LayerRange) engine.LayerRange {
	return engine.LayerRange{First: l.GetFirst(), End: l.GetEnd()}
}

func checkRoute(h *Hop, o *workerpb.Open) *fault.Error {
	invalid := func(format string, args ...any) *fault.Error {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, format, args...)
	}
	if len(o.GetRoute()) >= maxHops {
		return invalid("it has more than %d hops", maxHops)
	}
	if o.GetEgress() == workerpb.Egress_EGRESS_RETURN {
		if len(o.GetRoute()) > 0 {
			return invalid("egress RETURN has no further hops, this one has %d", len(o.GetRoute()))
		}
		return nil
	}
	end := h.Shard.Layers.End
	for i, hop := range o.GetRoute() {
		if !addressable(hop.GetAddress()) {
			return malformed(pathOf("open.route", i, "address"), "HOST:PORT of 1 to 261 bytes")
		}
		if hop.GetLayers() == nil || hop.GetLayers().First == nil {
			return malformed(pathOf("open.route", i, "layers"), "present, with first and end")
		}
		l := layersOf(hop.GetLayers())
		switch {
		case l.First > end:
			return invalid("the layers %d to %d are missing before hop %s", end, l.First, hop.GetAddress())
		case l.First < end:
			return invalid("hop %s begins at layer %d, which an earlier hop has already; it must begin at %d", hop.GetAddress(), l.First, end)
		case l.End <= l.First:
			return invalid("hop %s has no layers: %v", hop.GetAddress(), l)
		}
		end = l.End
	}
	if end != h.Shard.NLayer {
		return invalid("it ends at layer %d, the model has %d", end, h.Shard.NLayer)
	}
	return nil
}

func checkContext(h *Hop, o *workerpb.Open) *fault.Error {
	if o.GetContextTokens() > h.Shard.ContextLimit {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW, "%d tokens are asked for, worker %s has contexts of up to %d",
			o.GetContextTokens(), h.WorkerID, h.Shard.ContextLimit).With(func(e *fault.Error) {
			e.Scope = workerpb.ErrorScope_ERROR_SCOPE_SESSION
			e.Detail = &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Cache{
				Cache: &workerpb.CacheDetail{Capacity: proto.Uint32(h.Shard.ContextLimit)},
			}}
		})
	}
	return nil
}

// common is the names that are in both lists, in the order of a.
func common(a, b []string) []string {
	var both []string
	for _, name := range a {
		if slices.Contains(b, name) {
			both = append(both, name)
		}
	}
	return both
}
