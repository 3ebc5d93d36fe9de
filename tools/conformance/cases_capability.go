package conformance

import (
	"slices"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// revision1 are the names of features that revision 1 knows.
var revision1 = []string{
	"session", "chain", "hub", "ring", "text.tokenize", "text.chat", "sampling.grammar", "sampling.logprobs", "cache.marks", "cache.prefix",
	"boundary.f16", "boundary.bf16", "boundary.stripes", "mtp", "auxiliary_state",
}

// eachHop makes a case that looks at every hop of the route.
func eachHop(id, says string, clauses []string, look func(*T, *Hop)) Case {
	return Case{ID: id, Says: says, Clauses: clauses, Run: func(t *T) {
		for _, h := range t.Hops {
			look(t, h)
		}
	}}
}

func (t *T) capability(h *Hop) *workerpb.Capability {
	answer, err := h.Worker.GetCapability(t.ctx, &workerpb.GetCapabilityRequest{})
	if err != nil {
		t.Fatalf("GetCapability of %s: %v", h.Address, err)
	}
	return answer.GetCapability()
}

func capabilityCases() []Case {
	return []Case{
		eachHop("capability.identity", "Worker, instance, build and revisions are named.", []string{"CAP-2", "CAP-3"}, func(t *T, h *Hop) {
			c := t.capability(h)
			r := c.GetRevisions()
			if c.GetWorkerId() == "" || len(c.GetWorkerId()) > 128 || len(c.GetInstance()) != 16 || c.GetBuild().GetVersion() == "" ||
				r.GetMin() == 0 || r.GetMax() < r.GetMin() {
				t.Errorf("worker_id %q, instance %x, build %v, revisions %v", c.GetWorkerId(), c.GetInstance(), c.GetBuild(), r)
			}
			if again := t.capability(h); !slices.Equal(again.GetInstance(), c.GetInstance()) {
				t.Errorf("the instance changed from %x to %x between two calls", c.GetInstance(), again.GetInstance())
			}
		}),
		eachHop("capability.features", "Every feature of revision 1 is listed once; what is not ON has a reason, what is reserved is RESERVED.", []string{"CAP-4"}, features),
		eachHop("capability.shard", "The shard's layers, ends and boundary layouts agree.", []string{"CAP-2", "CAP-5"}, shardIs),
		eachHop("capability.limits", "All limits are set.", []string{"CAP-6"}, func(t *T, h *Hop) {
			l := t.capability(h).GetLimits()
			if l.GetSessions() == 0 || l.GetFirstWindow().GetSteps() == 0 || l.GetMaxWindow().GetSteps() < l.GetFirstWindow().GetSteps() ||
				l.GetWorkerWindowBytes() == 0 || l.GetMessageBytes() == 0 || l.GetBatchTokens() == 0 || l.GetStepTokens() == 0 || l.GetMaxLinger() == nil ||
				l.GetIdle() == nil || l.GetOpenBudget() == nil || l.GetDrain() == nil || l.GetKeepalive() == nil ||
				l.GetMaxWindow().GetBytes() < l.GetFirstWindow().GetBytes() || l.GetWorkerOutgoingBytes() == 0 || l.GetOutputBytes() == 0 {
				t.Errorf("limits are %v", l)
			}
		}),
		eachHop("capability.numerics", "All that decides bits is named.", []string{"CAP-7"}, func(t *T, h *Hop) {
			n := t.capability(h).GetNumerics()
			if n.GetBackend() == "" || n.GetThreads() == 0 || n.GetCacheType() == "" || n.GetMicroBatch() == 0 || len(n.GetBuild()) != 32 {
				t.Errorf("numerics are %v", n)
			}
		}),
		{ID: "capability.fast", Clauses: []string{"CAP-1", "HLT-1"}, Says: "GetCapability and GetHealth answer while the engine works.", Run: func(t *T) {
			d := t.openDriver()
			d.put(d.step(generate(t.room(d), t.ids(2, 1))))
			began := time.Now()
			for range 20 {
				t.capability(t.head())
				t.health(t.head())
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("40 calls took %v", took)
			}
			d.hangUp()
		}},
		eachHop("capability.reservations", "Reserved boundary encodings are RESERVED and the layouts in use are F32.", []string{"CAP-5"}, func(t *T, h *Hop) {
			s := t.capability(h).GetShard()
			for _, l := range []*workerpb.BoundaryLayout{s.GetBoundaryIn(), s.GetBoundaryOut()} {
				if l != nil && (l.GetEncoding() != workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32 || l.GetWidth() == 0 || l.GetLayout() == "") {
					t.Errorf("%s has the layout %v", h.Address, l)
				}
			}
		}),
	}
}

// room is the longest run that a session of a case has room for behind two tokens.
func (t *T) room(d *driver) uint32 { return d.open.GetContextTokens() - 2 }

func features(t *T, h *Hop) {
	seen := map[string]*workerpb.Feature{}
	for _, f := range t.capability(h).GetFeatures() {
		if seen[f.GetName()] != nil {
			t.Errorf("%s lists %s twice", h.Address, f.GetName())
		}
		seen[f.GetName()] = f
		if off := f.GetStatus() != workerpb.FeatureStatus_FEATURE_STATUS_ON; off != (f.GetReason() != "") || f.GetStatus() == 0 || len(f.GetReason()) > 256 {
			t.Errorf("%s has %s as %v with the reason %q", h.Address, f.GetName(), f.GetStatus(), f.GetReason())
		}
	}
	for _, name := range revision1 {
		if seen[name] == nil {
			t.Errorf("%s does not list %s", h.Address, name)
		}
	}
	for _, name := range []string{"mtp", "auxiliary_state", "boundary.f16", "boundary.bf16", "boundary.stripes"} {
		if s := seen[name].GetStatus(); s != workerpb.FeatureStatus_FEATURE_STATUS_RESERVED {
			t.Errorf("%s has %s as %v, it is reserved", h.Address, name, s)
		}
	}
}

func shardIs(t *T, h *Hop) {
	s := t.capability(h).GetShard()
	l := s.GetLayers()
	switch {
	case len(s.GetFingerprint()) != 32 || s.GetArchitecture() == "" || s.GetNLayer() == 0 || s.GetContextLimit() == 0 || s.GetNVocab() == 0:
		t.Errorf("%s has the shard %v", h.Address, s)
	case l == nil || l.First == nil || l.GetFirst() >= l.GetEnd() || l.GetEnd() > s.GetNLayer():
		t.Errorf("%s has the layers %v of %d", h.Address, l, s.GetNLayer())
	case s.GetHead() != (l.GetFirst() == 0) || s.GetTail() != (l.GetEnd() == s.GetNLayer()):
		t.Errorf("%s has head %v, tail %v, layers %v of %d", h.Address, s.GetHead(), s.GetTail(), l, s.GetNLayer())
	case (s.GetBoundaryIn() == nil) != s.GetHead() || (s.GetBoundaryOut() == nil) != s.GetTail():
		t.Errorf("%s has boundaries %v, %v with head %v, tail %v", h.Address, s.GetBoundaryIn(), s.GetBoundaryOut(), s.GetHead(), s.GetTail())
	}
}

func (t *T) health(h *Hop) *workerpb.Health {
	answer, err := h.Worker.GetHealth(t.ctx, &workerpb.GetHealthRequest{})
	if err != nil {
		t.Fatalf("GetHealth of %s: %v", h.Address, err)
	}
	return answer.GetHealth()
}

// hopHealth is what the first hop knows of the one at an address.
func (t *T) hopHealth(address string) *workerpb.HopHealth {
	for _, h := range t.health(t.head()).GetHops() {
		if h.GetAddress() == address {
			return h
		}
	}
	t.Fatalf("%s does not know of %s", t.head().Address, address)
	return nil
}

func (t *T) metrics(h *Hop) *workerpb.GetMetricsResponse {
	m, err := h.Worker.GetMetrics(t.ctx, &workerpb.GetMetricsRequest{})
	if err != nil {
		t.Fatalf("GetMetrics of %s: %v", h.Address, err)
	}
	return m
}

func healthCases() []Case {
	return []Case{
		eachHop("health.ready", "A READY worker whose probe passed is ready, and says how old the probe is.", []string{"HLT-1"}, func(t *T, h *Hop) {
			if r := t.health(h); !r.GetReady() || r.GetState() != workerpb.ShardState_SHARD_STATE_READY || r.GetError() != nil || r.GetProbeAge() == nil ||
				!slices.Equal(r.GetInstance(), h.Is.GetInstance()) {
				t.Errorf("%s reports %v", h.Address, r)
			}
		}),
		eachHop("health.standard", "The standard health service says SERVING while ready.", []string{"HLT-4"}, func(t *T, h *Hop) {
			for _, service := range []string{"", "dgr.worker.v1.WorkerService"} {
				a, err := healthpb.NewHealthClient(h.Conn).Check(t.ctx, &healthpb.HealthCheckRequest{Service: service})
				if err != nil || a.GetStatus() != healthpb.HealthCheckResponse_SERVING {
					t.Errorf("%s answers %v, %v for %q", h.Address, a.GetStatus(), err, service)
				}
			}
		}),
		eachHop("health.watch", "WatchHealth sends the present report at once.", []string{"HLT-3"}, func(t *T, h *Hop) {
			watchOnce(t, h)
		}),
		{ID: "health.use", Clauses: []string{"HLT-1"}, Says: "Health counts the open sessions.", Run: func(t *T) {
			d := t.openDriver()
			if use := t.health(t.head()).GetUse(); use.GetSessions() == 0 || use.GetReservedTokens() < uint64(t.context()) {
				t.Errorf("with a session open the use is %v", use)
			}
			d.finish()
		}},
		{ID: "health.hops", Clauses: []string{"HLT-6"}, Skip: hops(2), Says: "Health names every later hop of a session with its place, address and worker, and how old that is.", Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(somePrefill(t))))
			for i, h := range t.Hops[1:] {
				seen := t.hopHealth(h.Address)
				if !seen.GetReachable() || seen.GetHop().GetIndex() != uint32(i)+1 || seen.GetHop().GetWorkerId() != h.Is.GetWorkerId() ||
					!slices.Equal(seen.GetHop().GetInstance(), t.capability(h).GetInstance()) || seen.GetRtt().AsDuration() <= 0 {
					t.Errorf("hop %d is seen as %v", i+1, seen)
				}
				if age := seen.GetAge(); age == nil || age.AsDuration() < 0 || age.AsDuration() > 2*time.Second {
					t.Errorf("what is known of hop %d is %v old", i+1, age)
				}
			}
			d.finish()
		}},
		{ID: "health.metrics", Clauses: []string{"HLT-5"}, Says: "Counters grow by what a session used and never fall; its usage is in Closed.", Run: countersGrow},
	}
}

func watchOnce(t *T, h *Hop) {
	stream, err := h.Worker.WatchHealth(t.ctx, &workerpb.WatchHealthRequest{})
	if err != nil {
		t.Fatalf("WatchHealth of %s: %v", h.Address, err)
	}
	got := make(chan error, 1)
	go func(s grpc.ServerStreamingClient[workerpb.WatchHealthResponse]) {
		m, err := s.Recv()
		if err == nil && m.GetHealth() == nil {
			err = errNoHealth
		}
		got <- err
	}(stream)
	select {
	case err := <-got:
		if err != nil {
			t.Errorf("WatchHealth of %s: %v", h.Address, err)
		}
	case <-time.After(patience):
		t.Errorf("WatchHealth of %s sent nothing", h.Address)
	}
}

func countersGrow(t *T) {
	before := t.metrics(t.head())
	d := t.openDriver()
	tokens := t.ids(5, 8)
	d.result(d.put(d.step(prefill(tokens...))))
	d.run(3, t.ids(1, 9))
	usage := d.finish().GetUsage()
	if usage.GetTokensEvaluated() < 8 {
		t.Errorf("Closed.usage has %d evaluated tokens, 5 + 1 + 2 were", usage.GetTokensEvaluated())
	}
	after := t.metrics(t.head())
	if !slices.Equal(before.GetInstance(), after.GetInstance()) {
		t.Fatalf("the instance changed meanwhile")
	}
	grown := after.GetTotal().GetTokensEvaluated() - before.GetTotal().GetTokensEvaluated()
	switch {
	case grown < usage.GetTokensEvaluated():
		t.Errorf("the total grew by %d evaluated tokens, the session used %d", grown, usage.GetTokensEvaluated())
	case after.GetSessionsOpened() <= before.GetSessionsOpened():
		t.Errorf("sessions_opened went from %d to %d", before.GetSessionsOpened(), after.GetSessionsOpened())
	case after.GetBatches() <= before.GetBatches() || after.GetBatchRows() < before.GetBatchRows()+usage.GetTokensEvaluated():
		t.Errorf("batches %d → %d, rows %d → %d", before.GetBatches(), after.GetBatches(), before.GetBatchRows(), after.GetBatchRows())
	case after.GetImpossibleTransitions() != before.GetImpossibleTransitions():
		t.Errorf("the worker counted a transition that its tables call impossible")
	}
	for i, e := range after.GetErrors() {
		if i > 0 && e.GetCode() <= after.GetErrors()[i-1].GetCode() {
			t.Errorf("errors are not ascending by code")
		}
	}
	_ = proto.Size(after)
}
