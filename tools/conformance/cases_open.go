package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const (
	malformed   = workerpb.ErrorCode_ERROR_CODE_MALFORMED
	unsupported = workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE
	mismatch    = workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH
	unlawful    = workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION
	badRoute    = workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID
	otherShard  = workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH
)

// openFault is an Open that must be refused.
type openFault struct {
	id, says string
	clauses  []string
	code     workerpb.ErrorCode
	path     string // that the detail must name, or ""
	skip     func(*Target) string
	change   func(*Target, *workerpb.Open)
}

// asCase makes a case of the fault: the refusal, its detail, and that a good Open for the same id is served afterwards from empty.
func (f openFault) asCase() Case {
	return Case{ID: "open." + f.id, Clauses: append(f.clauses, "ERR-1", "ERR-2", "ERR-4"), Says: f.says, Skip: f.skip, Run: func(t *T) {
		good := t.openFor(0)
		bad := proto.CloneOf(good)
		f.change(t.Target, bad)
		e := t.refuseAt(t.head(), f.code, bad)
		if f.path != "" && !strings.HasPrefix(e.GetDetail().GetField().GetPath(), f.path) {
			t.Errorf("the detail names the field %q, %q is due", e.GetDetail().GetField().GetPath(), f.path)
		}
		d := t.openWith(t.head(), good)
		if n := d.opened.GetCache().GetLength(); n != 0 {
			t.Errorf("after the refusal the session begins with %d tokens", n)
		}
		d.usable()
		d.finish()
	}}
}

// missing is an Open without something that is required.
func missing(path string, change func(*workerpb.Open)) openFault {
	return openFault{
		id: "missing." + strings.TrimPrefix(path, "open."), says: "An Open without " + path + " is MALFORMED, with its path, and reserves nothing.",
		clauses: []string{"VER-2", "OPN-19"}, code: malformed, path: path, change: func(_ *Target, o *workerpb.Open) { change(o) },
	}
}

// illegal is an Open with a value out of its range.
func illegal(path, what string, change func(*workerpb.Open)) openFault {
	return openFault{
		id: "illegal." + strings.TrimPrefix(path, "open.") + "." + what, says: fmt.Sprintf("An Open with %s %s is MALFORMED, with its path.", path, what),
		clauses: []string{"VER-2"}, code: malformed, path: path, change: func(_ *Target, o *workerpb.Open) { change(o) },
	}
}

func openCases() []Case {
	seconds := func(s int64) *durationpb.Duration { return &durationpb.Duration{Seconds: s} }
	faults := []openFault{
		missing("open.session_id", func(o *workerpb.Open) { o.SessionId = nil }),
		missing("open.session_key", func(o *workerpb.Open) { o.SessionKey = nil }),
		missing("open.attempt", func(o *workerpb.Open) { o.Attempt = 0 }),
		missing("open.revisions", func(o *workerpb.Open) { o.Revisions = nil }),
		missing("open.expect", func(o *workerpb.Open) { o.Expect = nil }),
		missing("open.expect.fingerprint", func(o *workerpb.Open) { o.Expect.Fingerprint = nil }),
		missing("open.expect.layers", func(o *workerpb.Open) { o.Expect.Layers = nil }),
		missing("open.expect.layers.first", func(o *workerpb.Open) { o.Expect.Layers.First = nil }).named("open.expect.layers"),
		missing("open.expect.layers.end", func(o *workerpb.Open) { o.Expect.Layers.End = 0 }).named("open.expect.layers"),
		missing("open.context_tokens", func(o *workerpb.Open) { o.ContextTokens = 0 }),
		missing("open.egress", func(o *workerpb.Open) { o.Egress = 0 }),
		missing("open.receive", func(o *workerpb.Open) { o.Receive = nil }),
		missing("open.receive.tokens", func(o *workerpb.Open) { o.Receive.Tokens = nil }).named("open.receive"),
		missing("open.receive.bytes", func(o *workerpb.Open) { o.Receive.Bytes = nil }).named("open.receive"),
		missing("open.linger", func(o *workerpb.Open) { o.Linger = nil }),
		missing("open.budget", func(o *workerpb.Open) { o.Budget = nil }),
		illegal("open.session_id", "15-bytes", func(o *workerpb.Open) { o.SessionId = o.SessionId[:15] }),
		illegal("open.session_id", "17-bytes", func(o *workerpb.Open) { o.SessionId = append(o.SessionId, 0) }),
		illegal("open.session_key", "31-bytes", func(o *workerpb.Open) { o.SessionKey = o.SessionKey[:31] }),
		illegal("open.session_key", "33-bytes", func(o *workerpb.Open) { o.SessionKey = append(o.SessionKey, 0) }),
		illegal("open.revisions", "min-0", func(o *workerpb.Open) { o.Revisions.Min = 0 }),
		illegal("open.revisions", "max-below-min", func(o *workerpb.Open) { o.Revisions.Min = 2 }),
		illegal("open.needs", "33-names", func(o *workerpb.Open) { o.Needs = slices.Repeat([]string{"session"}, 33) }),
		illegal("open.needs", "65-bytes", func(o *workerpb.Open) { o.Needs = []string{strings.Repeat("n", 65)} }),
		illegal("open.expect.fingerprint", "31-bytes", func(o *workerpb.Open) { o.Expect.Fingerprint = o.Expect.Fingerprint[:31] }),
		illegal("open.expect.layers", "empty", func(o *workerpb.Open) { o.Expect.Layers.End = o.Expect.Layers.GetFirst() }),
		illegal("open.linger", "negative", func(o *workerpb.Open) { o.Linger = seconds(-1) }),
		illegal("open.linger", "no-duration", func(o *workerpb.Open) { o.Linger = &durationpb.Duration{Seconds: 1, Nanos: -1} }),
		illegal("open.budget", "zero", func(o *workerpb.Open) { o.Budget = seconds(0) }),
		illegal("open.budget", "negative", func(o *workerpb.Open) { o.Budget = seconds(-1) }),
		illegal("open.prefix", "17-offers", func(o *workerpb.Open) {
			o.Prefix = slices.Repeat([]*workerpb.PrefixOffer{{Length: 1, ChainHash: make([]byte, 16)}}, 17)
		}),
		illegal("open.prefix", "length-0", func(o *workerpb.Open) { o.Prefix = []*workerpb.PrefixOffer{{ChainHash: make([]byte, 16)}} }),
		illegal("open.prefix", "15-bytes", func(o *workerpb.Open) { o.Prefix = []*workerpb.PrefixOffer{{Length: 1, ChainHash: make([]byte, 15)}} }),
		illegal("open.on_behalf_of", "257-bytes", func(o *workerpb.Open) { o.OnBehalfOf = strings.Repeat("p", 257) }),
		{id: "linger-above-limit", clauses: []string{"VER-2", "CAP-6"}, code: malformed, path: "open.linger",
			says: "A linger above limits.max_linger is MALFORMED.", change: func(t *Target, o *workerpb.Open) {
				o.Linger = durationpb.New(t.head().Is.GetLimits().GetMaxLinger().AsDuration() + time.Second)
			}},
		{id: "held-from-driver", clauses: []string{"OPN-16"}, code: malformed, path: "open.held",
			says: "held from a driver is MALFORMED at the head.", change: func(_ *Target, o *workerpb.Open) {
				o.Held = &workerpb.CacheState{Length: proto.Uint32(0), ChainHash: make([]byte, 16)}
			}},
		{id: "ring-from-driver", clauses: []string{"OPN-16"}, code: malformed, path: "open.ring",
			says:   "ring from a driver is MALFORMED.",
			change: func(_ *Target, o *workerpb.Open) { o.Ring = &workerpb.RingTarget{Address: "127.0.0.1:1"} }},
		{id: "other-fingerprint", clauses: []string{"OPN-8"}, code: otherShard, says: "Another fingerprint is SHARD_MISMATCH.",
			change: func(_ *Target, o *workerpb.Open) { o.Expect.Fingerprint[31] ^= 1 }},
		{id: "other-first-layer", clauses: []string{"OPN-8"}, code: otherShard, says: "Another first layer is SHARD_MISMATCH.",
			skip: func(t *Target) string {
				if t.head().Is.GetShard().GetLayers().GetEnd() < 2 {
					return "the first shard has one layer"
				}
				return ""
			},
			change: func(_ *Target, o *workerpb.Open) { o.Expect.Layers.First = proto.Uint32(1) }},
		{id: "other-end-layer", clauses: []string{"OPN-8"}, code: otherShard, says: "Another end of layers is SHARD_MISMATCH.",
			change: func(_ *Target, o *workerpb.Open) { o.Expect.Layers.End++ }},
		{id: "boundary-in-at-head", clauses: []string{"OPN-8"}, code: otherShard, says: "A boundary layout where the head takes none is SHARD_MISMATCH.",
			change: func(_ *Target, o *workerpb.Open) {
				o.Expect.BoundaryIn = &workerpb.BoundaryLayout{Width: 8, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Layout: "hidden"}
			}},
		{id: "other-boundary-out", clauses: []string{"OPN-8"}, code: otherShard, skip: hops(2), says: "Another width of the boundary is SHARD_MISMATCH.",
			change: func(_ *Target, o *workerpb.Open) { o.Expect.BoundaryOut.Width++ }},
		{id: "revision-too-new", clauses: []string{"VER-3"}, code: workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION,
			says: "Revisions above the worker's are UNSUPPORTED_REVISION.", change: func(t *Target, o *workerpb.Open) {
				n := t.head().Is.GetRevisions().GetMax() + 1
				o.Revisions = &workerpb.RevisionRange{Min: n, Max: n + 3}
			}},
		{id: "context-too-long", clauses: []string{"OPN-11", "CAP-6"}, code: workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW,
			says:   "More context than the limit is CONTEXT_OVERFLOW.",
			change: func(t *Target, o *workerpb.Open) { o.ContextTokens = t.head().Is.GetShard().GetContextLimit() + 1 }},
		{id: "need.unknown", clauses: []string{"VER-5"}, code: unsupported, says: "An unknown need is UNSUPPORTED_FEATURE.",
			change: func(_ *Target, o *workerpb.Open) { o.Needs = []string{"session", "no.such.feature"} }},
	}
	for _, reserved := range []string{"mtp", "auxiliary_state", "boundary.f16", "boundary.bf16", "boundary.stripes"} {
		faults = append(faults, openFault{id: "need." + reserved, clauses: []string{"VER-5", "CAP-4"}, code: unsupported,
			says:   "The need " + reserved + ", which is reserved, is UNSUPPORTED_FEATURE.",
			change: func(_ *Target, o *workerpb.Open) { o.Needs = []string{reserved} }})
	}
	cases := make([]Case, 0, len(faults)+8)
	for _, f := range faults {
		cases = append(cases, f.asCase())
	}
	return append(cases, openedCases()...)
}

// named is the fault with the path that a coarser check may name.
func (f openFault) named(path string) openFault {
	f.path = path
	return f
}

// openedCases are about Opens that must succeed, and about what Opened says.
func openedCases() []Case {
	return []Case{
		{ID: "open.opened", Clauses: []string{"OPN-13", "OPN-15", "VER-4", "VER-6", "CAC-1"},
			Says: "Opened names every hop in order, the window, the limits and an empty cache with its hash.", Run: opened},
		{ID: "open.version-detail", Clauses: []string{"VER-3"}, Says: "UNSUPPORTED_REVISION carries both ranges.", Run: func(t *T) {
			e := t.refuse(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION, func(o *workerpb.Open) {
				o.Revisions = &workerpb.RevisionRange{Min: 1000, Max: 1001}
			})
			v := e.GetDetail().GetVersion()
			if v.GetTheirs().GetMin() != 1000 || v.GetTheirs().GetMax() != 1001 || v.GetOurs().GetMin() == 0 || v.GetOurs().GetMax() < v.GetOurs().GetMin() {
				t.Errorf("the detail is %v", v)
			}
		}},
		{ID: "open.need-detail", Clauses: []string{"VER-5"}, Says: "UNSUPPORTED_FEATURE names what is missing and both ranges.", Run: func(t *T) {
			e := t.refuse(unsupported, func(o *workerpb.Open) { o.Needs = []string{"session", "x.one", "x.two"} })
			v := e.GetDetail().GetVersion()
			if !slices.Equal(v.GetMissingFeatures(), []string{"x.one", "x.two"}) || v.GetOurs() == nil || v.GetTheirs() == nil {
				t.Errorf("the detail is %v", v)
			}
		}},
		{ID: "open.needs-on", Clauses: []string{"VER-5", "VER-6"}, Says: "Needs that are ON everywhere are accepted, every one of Opened.features among them.", Run: func(t *T) {
			first := t.openDriver()
			names := first.opened.GetFeatures()
			first.finish()
			t.openDriver(func(o *workerpb.Open) { o.Needs = names[:min(len(names), 32)] }).finish()
		}},
		{ID: "open.revisions-wide", Clauses: []string{"VER-4"}, Says: "A range that reaches above the worker's is served at the greatest common revision.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Revisions.Max = 1 << 31 })
			want := uint32(1 << 31)
			for _, h := range t.Hops {
				want = min(want, h.Is.GetRevisions().GetMax())
			}
			if d.opened.GetRevision() != want {
				t.Errorf("revision %d, %d is due", d.opened.GetRevision(), want)
			}
			d.finish()
		}},
		{ID: "open.context-limit", Clauses: []string{"OPN-10", "CAP-6"}, Says: "The context limit itself is served, and is the capacity that Opened reports.", Run: func(t *T) {
			limit := t.head().Is.GetShard().GetContextLimit()
			for _, h := range t.Hops {
				limit = min(limit, h.Is.GetShard().GetContextLimit())
			}
			d := t.openDriver(func(o *workerpb.Open) { o.ContextTokens = limit })
			if got := d.opened.GetAbility().GetCapacity(); got < limit {
				t.Errorf("Opened.ability.capacity is %d, %d was asked for", got, limit)
			}
			d.usable()
			d.finish()
		}},
		{ID: "open.capacity", Clauses: []string{"OPN-10", "OPN-12", "CAP-6"}, Says: "limits.sessions sessions open at once; one more is NO_CAPACITY with retry_after at once, and a place that is freed is taken again.", Run: capacity},
		{ID: "open.capacity-lingering", Clauses: []string{"OPN-12"}, Says: "Lingering caches are evicted before NO_CAPACITY.", Run: lingeringMakesRoom},
	}
}

func opened(t *T) {
	d := t.openDriver()
	o := d.opened
	if len(o.GetHops()) != len(t.Hops) {
		t.Fatalf("%d hops are reported, the route has %d", len(o.GetHops()), len(t.Hops))
	}
	for i, h := range o.GetHops() {
		is := t.Hops[i].Is
		if h.GetHop().Index == nil || h.GetHop().GetIndex() != uint32(i) || h.GetHop().GetWorkerId() != is.GetWorkerId() ||
			string(h.GetHop().GetInstance()) != string(is.GetInstance()) || !proto.Equal(h.GetLayers(), is.GetShard().GetLayers()) {
			t.Errorf("hop %d is reported as %v", i, h)
		}
		if h.GetFound().Length == nil || h.GetFound().GetLength() != 0 || h.GetNumerics() == nil {
			t.Errorf("hop %d found %v, numerics %v", i, h.GetFound(), h.GetNumerics())
		}
		if (h.GetLinkRtt() != nil) != (i < len(t.Hops)-1) {
			t.Errorf("hop %d of %d reports the link RTT %v", i, len(t.Hops), h.GetLinkRtt())
		}
	}
	for _, name := range o.GetFeatures() {
		if !t.on(name) {
			t.Errorf("Opened lists the feature %s, which is not ON everywhere", name)
		}
	}
	if o.GetRevision() == 0 || o.GetWindow().GetSteps() == 0 || o.GetMaxStepTokens() == 0 || o.GetChunkTokens() == 0 || o.GetChunkTokens() > o.GetMaxStepTokens() || o.GetFrameBytes() < 65536 ||
		o.GetLinger() == nil || o.GetAbility().GetTruncate() == 0 || o.GetAbility().GetCopy() == 0 || o.GetAbility().GetCapacity() == 0 {
		t.Errorf("Opened is incomplete: %v", o)
	}
	d.holds(o.GetCache(), nil)
	d.finish()
}

func capacity(t *T) {
	limit := t.head().Is.GetLimits().GetSessions()
	for _, h := range t.Hops {
		limit = min(limit, h.Is.GetLimits().GetSessions())
	}
	all := make([]*driver, limit)
	for i := range all {
		all[i] = t.openDriver()
	}
	began := time.Now()
	e := t.refuse(workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY, func(*workerpb.Open) {})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("NO_CAPACITY took %v; Open must not wait for capacity", took)
	}
	if e.GetRetryAfter() == nil {
		t.Errorf("NO_CAPACITY has no retry_after")
	}
	all[0].finish()
	all[0] = t.openDriver()
	for _, d := range all {
		d.usable()
		d.finish()
	}
}

func lingeringMakesRoom(t *T) {
	limit := t.head().Is.GetLimits().GetSessions()
	linger := min(20*time.Second, t.head().Is.GetLimits().GetMaxLinger().AsDuration())
	for range limit {
		d := t.openDriver(func(o *workerpb.Open) { o.Linger = durationpb.New(linger) })
		d.usable()
		d.hangUp()
		for d.take() {
		}
	}
	t.until("all caches linger", func() bool { return t.health(t.head()).GetUse().GetLingering() >= limit })
	all := make([]*driver, limit)
	for i := range all {
		all[i] = t.openDriver()
	}
	for _, d := range all {
		d.finish()
	}
}

func routeCases() []Case {
	layers := func(first, end uint32) *workerpb.LayerRange {
		return &workerpb.LayerRange{First: proto.Uint32(first), End: end}
	}
	with := func(address string, first, end uint32) *workerpb.RouteHop {
		return &workerpb.RouteHop{Address: address, Layers: layers(first, end)}
	}
	n := func(t *Target) uint32 { return t.head().Is.GetShard().GetNLayer() }
	end := func(t *Target) uint32 { return t.head().Is.GetShard().GetLayers().GetEnd() }
	faults := []openFault{
		{id: "beyond-the-model", says: "A route that ends beyond the last layer is ROUTE_INVALID.", change: func(t *Target, o *workerpb.Open) {
			o.Route = append(o.Route, with("127.0.0.1:1", n(t), n(t)+1))
		}},
		{id: "gap", says: "A route with a gap is ROUTE_INVALID.", change: func(t *Target, o *workerpb.Open) {
			o.Route = []*workerpb.RouteHop{with("127.0.0.1:1", end(t)+1, n(t)+1)}
		}},
		{id: "gap-to-the-end", says: "A route that ends with the model but skips a layer is ROUTE_INVALID.", skip: func(t *Target) string {
			if n(t) < end(t)+2 {
				return "fewer than two layers are behind the first shard"
			}
			return ""
		}, change: func(t *Target, o *workerpb.Open) {
			o.Route = []*workerpb.RouteHop{with("127.0.0.1:1", end(t)+1, n(t))}
		}},
		{id: "overlap", says: "A route with an overlap is ROUTE_INVALID.", change: func(t *Target, o *workerpb.Open) {
			o.Route = []*workerpb.RouteHop{with("127.0.0.1:1", end(t)-1, n(t))}
		}},
		{id: "empty-hop", says: "A hop without layers is ROUTE_INVALID.", change: func(t *Target, o *workerpb.Open) {
			o.Route = append([]*workerpb.RouteHop{with("127.0.0.1:1", end(t), end(t))}, o.Route...)
		}},
		{id: "shrinking", says: "A hop whose layers go backwards is ROUTE_INVALID.", change: func(t *Target, o *workerpb.Open) {
			o.Route = []*workerpb.RouteHop{with("127.0.0.1:1", end(t), end(t)-1)}
		}},
		{id: "32-further-hops", says: "A route of 33 hops is ROUTE_INVALID.", change: func(t *Target, o *workerpb.Open) {
			o.Route = nil
			for i := range uint32(32) {
				o.Route = append(o.Route, with("127.0.0.1:1", end(t)+i, end(t)+i+1))
			}
			if last := o.Route[31].Layers; last.End < n(t) { // so that there is nothing else to refuse
				last.End = n(t)
			}
		}},
		{id: "short", says: "FORWARD without a hop to the end is ROUTE_INVALID.", skip: hops(2), change: func(_ *Target, o *workerpb.Open) {
			o.Route = o.Route[:len(o.Route)-1]
		}},
		{id: "return-with-route", says: "RETURN with further hops is ROUTE_INVALID.", change: func(t *Target, o *workerpb.Open) {
			o.Egress = workerpb.Egress_EGRESS_RETURN
			o.Route = append(o.Route, with("127.0.0.1:1", n(t), n(t)+1))
		}},
	}
	var cases []Case
	for _, f := range faults {
		f.id, f.clauses, f.code = "route."+f.id, []string{"OPN-9", "OPN-19"}, badRoute
		cases = append(cases, f.asCase())
	}
	for _, f := range []openFault{
		{id: "route.address-empty", says: "A hop without an address is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Route[0].Address = "" }},
		{id: "route.address-no-port", says: "An address without a port is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Route[0].Address = "192.0.2.1" }},
		{id: "route.address-url", says: "A URL as address is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Route[0].Address = "http://192.0.2.1:7711" }},
		{id: "route.address-long", says: "An address of 262 bytes is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Route[0].Address = strings.Repeat("a", 262) }},
		{id: "route.layers-missing", says: "A hop without layers is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Route[0].Layers = nil }},
		{id: "route.first-missing", says: "A hop without a first layer is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Route[0].Layers.First = nil }},
	} {
		f.clauses, f.code, f.path, f.skip = []string{"VER-2"}, malformed, "open.route[0]", hops(2)
		cases = append(cases, f.asCase())
	}
	for id, address := range map[string]string{
		"not-listed": "192.0.2.1:7711", "link-local": "169.254.169.254:80", "multicast": "224.0.0.1:7711", "unspecified": "0.0.0.0:7711",
	} {
		cases = append(cases, openFault{
			id: "dial." + id, clauses: []string{"DIA-1", "DIA-2"}, code: workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED, skip: hops(2),
			says: "The next hop " + address + " is ROUTE_REFUSED.", change: func(_ *Target, o *workerpb.Open) { o.Route[0].Address = address },
		}.asCase())
	}
	slices.SortFunc(cases, func(a, b Case) int { return strings.Compare(a.ID, b.ID) })
	return cases
}
