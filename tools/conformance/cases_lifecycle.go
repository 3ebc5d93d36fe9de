package conformance

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const (
	notReady = workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY
	draining = workerpb.ErrorCode_ERROR_CODE_DRAINING
	ready    = workerpb.ShardState_SHARD_STATE_READY
	unloaded = workerpb.ShardState_SHARD_STATE_UNLOADED
)

// lifecycleCases drain, unload and load the first worker. Each leaves it READY, as another instance.
func lifecycleCases() []Case {
	cases := []Case{
		{ID: "lifecycle.unload", Clauses: []string{"SHD-5", "OPN-18", "CAP-1", "CAP-3", "HLT-1", "HLT-4"},
			Says: "UnloadShard closes sessions with DRAINED; then the worker is not ready, says why, and refuses Open; twice is the same; loaded again it is another instance.", Run: unloads},
		{ID: "lifecycle.watch", Clauses: []string{"HLT-3"}, Says: "WatchHealth tells that the shard went and came back.", Run: watches},
		{ID: "lifecycle.load", Clauses: []string{"SHD-2"}, Says: "LoadShard tells phases in order with done never falling, and ends with READY and the fingerprint.", Run: func(t *T) {
			is := t.head().Is.GetShard()
			t.unload()
			told, err := t.load(nil)
			if err != nil || len(told) == 0 {
				t.Fatalf("LoadShard told %d times how far it is, and ended with %v", len(told), err)
			}
			for i, m := range told {
				now, before := m.GetProgress(), told[max(i, 1)-1].GetProgress()
				if now.GetPhase() == 0 || now.GetPhase() < before.GetPhase() || now.GetPhase() == before.GetPhase() && now.GetDone() < before.GetDone() ||
					now.GetTotal() > 0 && now.GetDone() > now.GetTotal() {
					t.Errorf("%v came behind %v", now, before)
				}
			}
			if last := told[len(told)-1]; last.GetProgress().GetPhase() != workerpb.LoadPhase_LOAD_PHASE_READY || !slices.Equal(last.GetFingerprint(), is.GetFingerprint()) {
				t.Errorf("the last message is %v", last)
			}
		}},
		{ID: "lifecycle.load-other", Clauses: []string{"SHD-2", "HLT-1"}, Says: "A load of a model with another fingerprint than is asked for ends with an error, and the worker is not ready.", Run: func(t *T) {
			t.unload()
			_, err := t.load(func(m *workerpb.LoadShardRequest) { m.Fingerprint = random(32) })
			t.errorOf(err)
			if h := t.health(t.head()); h.GetReady() || h.GetState() == ready {
				t.Errorf("the health is %v", h)
			}
		}},
		{ID: "lifecycle.load-second", Clauses: []string{"SHD-3"}, Says: "A LoadShard while one runs is LOAD_IN_PROGRESS, and the first one goes on.", Run: loadsTwice},
		{ID: "lifecycle.load-cancelled", Clauses: []string{"SHD-3"}, Says: "A LoadShard whose caller goes away is given up.", Run: func(t *T) {
			t.unload()
			s, end := t.loading()
			end()
			for _, err := s.Recv(); err == nil; _, err = s.Recv() {
			}
			t.until("the load is given up", func() bool {
				state := t.health(t.head()).GetState()
				return state != workerpb.ShardState_SHARD_STATE_LOADING && state != ready
			})
		}},
		{ID: "lifecycle.drain", Clauses: []string{"SHD-4", "OPN-18", "HLT-1"}, Says: "Drain refuses new sessions, tells the open one, lets it work, and closes it with DRAINED and REPLAY when a shorter budget is over.", Run: drains},
	}
	for i := range cases {
		cases[i].Skip = func(t *Target) string {
			if t.Store == "" {
				return "the target may not be unloaded (--load names the model to load again)"
			}
			return ""
		}
	}
	return cases
}

// unload frees the first worker's shard; when the case is over it is loaded again.
func (t *T) unload() {
	t.Cleanup(t.reload)
	if a, err := t.head().Shard.UnloadShard(t.ctx, &workerpb.UnloadShardRequest{}); err != nil || a.GetState() != unloaded {
		t.Fatalf("UnloadShard answered %v, %v", a, err)
	}
}

// reload makes the first worker READY, if it is not, and takes note of what it is then.
func (t *T) reload() {
	t.until("the worker has come to rest", func() bool {
		state := t.health(t.head()).GetState()
		return state != workerpb.ShardState_SHARD_STATE_DRAINING && state != workerpb.ShardState_SHARD_STATE_LOADING
	})
	if t.health(t.head()).GetState() != ready {
		if _, err := t.load(nil); err != nil {
			t.Fatalf("load the shard again: %v", err)
		}
	}
	t.until("the worker is ready", func() bool { return t.health(t.head()).GetReady() })
	t.head().Is = t.capability(t.head())
}

// request is a LoadShard of what the first worker held.
func (t *T) request() *workerpb.LoadShardRequest {
	l := t.head().Is.GetShard().GetLayers()
	return &workerpb.LoadShardRequest{Model: t.Store, First: proto.Uint32(l.GetFirst()), End: proto.Uint32(l.GetEnd())}
}

// load loads a shard and returns what was told.
func (t *T) load(change func(*workerpb.LoadShardRequest)) (told []*workerpb.LoadShardResponse, err error) {
	m := t.request()
	if change != nil {
		change(m)
	}
	s, err := t.head().Shard.LoadShard(t.ctx, m)
	for err == nil {
		var one *workerpb.LoadShardResponse
		if one, err = s.Recv(); err == nil {
			told = append(told, one)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return told, err
}

// loading begins a load and waits until it is under way; end hangs up. A load that is done before that can be seen ends the
// case: it is too fast to be disturbed.
func (t *T) loading() (s grpc.ServerStreamingClient[workerpb.LoadShardResponse], end func()) {
	ctx, cancel := context.WithCancel(t.ctx)
	t.Cleanup(cancel)
	s, err := t.head().Shard.LoadShard(ctx, t.request())
	if err != nil {
		t.Fatalf("LoadShard: %v", err)
	}
	var state workerpb.ShardState
	t.until("the load is under way", func() bool {
		state = t.health(t.head()).GetState()
		return state == workerpb.ShardState_SHARD_STATE_LOADING || state == ready
	})
	if state == ready {
		panic(stop{})
	}
	return s, cancel
}

func unloads(t *T) {
	before := t.capability(t.head()).GetInstance()
	d := t.openDriver()
	d.usable()
	t.unload()
	drained(t, d)
	if a, err := t.head().Shard.UnloadShard(t.ctx, &workerpb.UnloadShardRequest{}); err != nil || a.GetState() != unloaded {
		t.Errorf("UnloadShard answered %v, %v the second time", a, err)
	}
	if c := t.capability(t.head()); c.GetShard().GetState() != unloaded || len(c.GetFeatures()) == 0 || c.GetWorkerId() == "" {
		t.Errorf("without a shard the capability is %v", c)
	}
	if h := t.health(t.head()); h.GetReady() || h.GetState() != unloaded || h.GetError() == nil && h.GetProgress() == nil {
		t.Errorf("without a shard the health is %v", h)
	}
	t.until("the standard health service says NOT_SERVING", func() bool {
		a, err := healthpb.NewHealthClient(t.head().Conn).Check(t.ctx, &healthpb.HealthCheckRequest{})
		return err == nil && a.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING
	})
	t.refuse(notReady, func(*workerpb.Open) {})
	t.reload()
	if after := t.capability(t.head()).GetInstance(); len(after) != 16 || slices.Equal(after, before) {
		t.Errorf("the instance was %x and is %x, behind another start of the engine", before, after)
	}
	next := t.openDriver()
	next.usable()
	next.finish()
}

func watches(t *T) {
	s, err := t.head().Worker.WatchHealth(t.ctx, &workerpb.WatchHealthRequest{})
	if err != nil {
		t.Fatalf("WatchHealth: %v", err)
	}
	seen := make(chan *workerpb.Health, 64)
	go func() { // ends with the case
		defer close(seen)
		for m, err := s.Recv(); err == nil; m, err = s.Recv() {
			seen <- m.GetHealth()
		}
	}()
	await := func(what string, is func(*workerpb.Health) bool) {
		for after := time.After(patience); ; {
			select {
			case h := <-seen:
				if h != nil && is(h) {
					return
				}
			case <-after:
				t.Fatalf("WatchHealth did not tell that the worker is %s", what)
			}
		}
	}
	await("ready", (*workerpb.Health).GetReady)
	t.unload()
	await("unloaded", func(h *workerpb.Health) bool { return !h.GetReady() && h.GetState() == unloaded })
	t.reload()
	await("ready again", (*workerpb.Health).GetReady)
}

func loadsTwice(t *T) {
	t.unload()
	s, _ := t.loading()
	_, err := t.load(nil)
	t.want(t.errorOf(err), workerpb.ErrorCode_ERROR_CODE_LOAD_IN_PROGRESS)
	for err = nil; err == nil; _, err = s.Recv() {
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("the first load ended with %v", err)
	}
}

func drains(t *T) {
	d := t.openDriver(func(o *workerpb.Open) { o.Linger = durationpb.New(5 * time.Second) })
	t.Cleanup(t.reload)
	a, err := t.head().Shard.Drain(t.ctx, &workerpb.DrainRequest{Budget: durationpb.New(20 * time.Second)})
	if err != nil || a.GetState() != workerpb.ShardState_SHARD_STATE_DRAINING || a.GetSessions() == 0 || a.GetLeft().AsDuration() > 20*time.Second {
		t.Fatalf("Drain answered %v, %v", a, err)
	}
	m := d.next()
	for m != nil && m.GetDraining() == nil {
		m = d.next()
	}
	if left := m.GetDraining().GetLeft().AsDuration(); left <= 0 || left > 20*time.Second || m.GetDraining().GetHop().GetIndex() != 0 {
		t.Errorf("the open session was told %v", m)
	}
	t.refuse(draining, func(*workerpb.Open) {})
	if h := t.health(t.head()); h.GetReady() || h.GetError().GetCode() != draining {
		t.Errorf("while it drains the health is %v", h)
	}
	d.usable()
	began := time.Now()
	if _, err := t.head().Shard.Drain(t.ctx, &workerpb.DrainRequest{Budget: durationpb.New(200 * time.Millisecond)}); err != nil {
		t.Fatalf("Drain with a shorter budget: %v", err)
	}
	drained(t, d)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("with a budget of 200 ms the session was closed after %v", took)
	}
}

// drained checks how a session that was open ends with its shard.
func drained(t *T, d *driver) {
	c := d.over()
	e := t.want(c.GetError(), draining)
	if c.GetReason() != workerpb.CloseReason_CLOSE_REASON_DRAINED || e.GetRecovery() != workerpb.Recovery_RECOVERY_REPLAY {
		t.Errorf("the session ended with %v", c)
	}
}
