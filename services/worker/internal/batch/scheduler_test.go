package batch_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/batch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is an engine whose native calls wait until the test lets them go, and that remembers them.
type gate struct {
	engine.ShardEngine
	enter chan []engine.Step // a call has begun
	leave chan error         // let it go: nil computes, an error is that of the call
	stops chan engine.SessionID
}

func (g *gate) Step(ctx context.Context, steps []engine.Step) ([]engine.StepResult, error) {
	g.enter <- slices.Clone(steps)
	select {
	case err := <-g.leave:
		if err != nil {
			return nil, err
		}
		return g.ShardEngine.Step(ctx, steps)
	case <-ctx.Done():
		return g.ShardEngine.Step(ctx, steps) // the fake ends every step as CANCELLED
	}
}

func (g *gate) Cancel(s engine.SessionID) { g.stops <- s }

// rig is a scheduler on a gated fake.
type rig struct {
	t *testing.T
	*batch.Scheduler
	gate *gate
	lost chan error
	mu   sync.Mutex
	got  map[engine.SessionID][]batch.Outcome
	came chan struct{}
}

func newRig(t *testing.T, o batch.Options) *rig {
	t.Helper()
	e, _, err := fake.Factory(fake.Default())()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Load(t.Context(), engine.LoadRequest{
		Paths: []string{"fake"}, ContextLimit: 128, Sessions: 3, BatchTokens: 32, MicroBatch: 32, Threads: 1, CacheType: "f32",
	}, nil); err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, got: map[engine.SessionID][]batch.Outcome{}, came: make(chan struct{}, 100), lost: make(chan error, 1),
		gate: &gate{ShardEngine: e, enter: make(chan []engine.Step), leave: make(chan error), stops: make(chan engine.SessionID, 10)},
	}
	o.Tokens, o.Limit = 32, cmp.Or(o.Limit, 20)
	o.Lost = func(err error) { r.lost <- err }
	r.Scheduler = batch.New(r.gate, o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		_ = e.Close()
	})
	return r
}

func id(n byte) engine.SessionID { return engine.SessionID{n} }

func (r *rig) submit(j *batch.Job) error {
	session := j.Session
	j.Done = func(o batch.Outcome) {
		r.mu.Lock()
		r.got[session] = append(r.got[session], o)
		r.mu.Unlock()
		r.came <- struct{}{}
	}
	return r.Submit(j)
}

// open reserves room for sessions and waits.
func (r *rig) open(ids ...byte) {
	r.t.Helper()
	for _, n := range ids {
		if err := r.submit(&batch.Job{Kind: batch.Open, Session: id(n), Context: 100}); err != nil {
			r.t.Fatal(err)
		}
		<-r.came
		if o := r.last(n); o.Err != nil {
			r.t.Fatal(o.Err)
		}
	}
}

func (r *rig) last(n byte) batch.Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.got[id(n)]
	return all[len(all)-1]
}

func (r *rig) step(n byte, at engine.Pos, tokens int) {
	r.t.Helper()
	ids := make([]engine.TokenID, tokens)
	for i := range ids {
		ids[i] = engine.TokenID(10 + i)
	}
	if err := r.submit(&batch.Job{Kind: batch.Step, Session: id(n), Step: engine.Step{Session: id(n), Start: at, Tokens: ids}}); err != nil {
		r.t.Fatal(err)
	}
}

// sessions are those of a batch.
func sessions(steps []engine.Step) (ids []byte) {
	for _, s := range steps {
		ids = append(ids, s.Session[0])
	}
	return ids
}

// What waits is packed: decodes together, prefill chunks together, in turn, as many as fit.
func TestDecodesAndPrefillTakeTurns(t *testing.T) {
	r := newRig(t, batch.Options{})
	r.open(1, 2, 3)
	r.step(1, 0, 20)
	first := <-r.gate.enter // all that follows waits behind this call
	r.step(2, 0, 1)
	r.step(3, 0, 20)
	var order [][]byte
	order = append(order, sessions(first))
	r.gate.leave <- nil
	<-r.came
	order = append(order, sessions(<-r.gate.enter))
	r.step(1, 20, 1)
	r.gate.leave <- nil
	<-r.came
	order = append(order, sessions(<-r.gate.enter))
	r.step(2, 1, 1)
	r.gate.leave <- nil
	<-r.came
	order = append(order, sessions(<-r.gate.enter))
	r.gate.leave <- nil
	<-r.came
	<-r.came
	if want := [][]byte{{1}, {2}, {3}, {1, 2}}; !slices.EqualFunc(order, want, slices.Equal[[]byte]) {
		t.Errorf("batches %v, want %v", order, want)
	}
	if got := r.Totals(); got != (batch.Totals{Batches: 4, Rows: 43, SharedRows: 2}) {
		t.Errorf("totals %+v", got)
	}
	for n := byte(1); n <= 3; n++ {
		if o := r.last(n); o.Err != nil || o.Result.Err != nil {
			t.Errorf("session %d: %v %v", n, o.Err, o.Result.Err)
		}
	}
}

// Two prefill chunks that do not fit one call go in two, oldest first.
func TestACallHoldsNoMoreThanItsBound(t *testing.T) {
	r := newRig(t, batch.Options{})
	r.open(1, 2, 3)
	r.step(1, 0, 1)
	<-r.gate.enter
	r.step(2, 0, 20)
	r.step(3, 0, 13)
	for _, want := range [][]byte{{2}, {3}} {
		r.gate.leave <- nil
		<-r.came
		if got := sessions(<-r.gate.enter); !slices.Equal(got, want) {
			t.Errorf("batch %v, want %v", got, want)
		}
	}
	r.gate.leave <- nil
	<-r.came
}

func TestDeterministicIsOneSessionACall(t *testing.T) {
	r := newRig(t, batch.Options{Deterministic: true})
	r.open(1, 2, 3)
	r.step(1, 0, 1)
	<-r.gate.enter
	r.step(2, 0, 1)
	r.step(3, 0, 1)
	for _, want := range [][]byte{{2}, {3}} {
		r.gate.leave <- nil
		<-r.came
		if got := sessions(<-r.gate.enter); !slices.Equal(got, want) {
			t.Errorf("batch %v, want %v", got, want)
		}
	}
	r.gate.leave <- nil
	<-r.came
}

// A step that waits ends without the engine; one that runs alone ends at once; one that runs with others is asked for alone.
func TestCancelTouchesOneSession(t *testing.T) {
	r := newRig(t, batch.Options{})
	r.open(1, 2, 3)
	r.step(1, 0, 1)
	<-r.gate.enter
	r.step(2, 0, 1)
	r.step(3, 0, 1)
	r.Cancel(id(2)) // waits
	r.Cancel(id(9)) // nobody
	r.Cancel(id(1)) // runs alone: the call ends without being let go
	<-r.came
	if o := r.last(1); !errors.Is(o.Result.Err, engine.Cancelled) {
		t.Errorf("the running step: %v %v", o.Err, o.Result.Err)
	}
	<-r.came
	if o := r.last(2); !errors.Is(o.Err, engine.Cancelled) {
		t.Errorf("the waiting step: %v", o.Err)
	}
	if got := sessions(<-r.gate.enter); !slices.Equal(got, []byte{3}) {
		t.Errorf("batch %v", got)
	}
	r.step(1, 0, 1)
	r.step(2, 0, 1)
	r.gate.leave <- nil
	<-r.came
	<-r.gate.enter // 1 and 2
	r.Cancel(id(1))
	if got := <-r.gate.stops; got != id(1) {
		t.Errorf("the engine is asked to stop %v", got)
	}
	r.gate.leave <- nil
	<-r.came
	<-r.came
	if o := r.last(2); o.Err != nil || o.Result.Err != nil {
		t.Errorf("the other one: %v %v", o.Err, o.Result.Err)
	}
}

// One that must be alone shares no call, neither as the first nor behind others; the rest is packed around it.
func TestAloneSharesNoCall(t *testing.T) {
	for suspect, want := range map[byte][][]byte{1: {{1}, {2, 3}}, 2: {{1}, {2}, {3}}, 3: {{1, 2}, {3}}} {
		r := newRig(t, batch.Options{})
		r.open(1, 2, 3)
		r.step(9, 0, 1)
		<-r.gate.enter // all that follows waits behind this call
		for n := byte(1); n <= 3; n++ {
			step := engine.Step{Session: id(n), Tokens: []engine.TokenID{10}}
			if err := r.submit(&batch.Job{Kind: batch.Step, Session: id(n), Step: step, Alone: n == suspect}); err != nil {
				t.Fatal(err)
			}
		}
		r.gate.leave <- nil
		<-r.came
		var got [][]byte
		for left := 3; left > 0; left -= len(got[len(got)-1]) {
			got = append(got, sessions(<-r.gate.enter))
			r.gate.leave <- nil
			for range got[len(got)-1] {
				<-r.came
			}
		}
		if !slices.EqualFunc(got, want, slices.Equal[[]byte]) {
			t.Errorf("with %d alone: batches %v, want %v", suspect, got, want)
		}
	}
}

// Who was in the call in which the engine was lost is told before the loss is; who only waited is not.
func TestTheLostBatchIsNamed(t *testing.T) {
	r := newRig(t, batch.Options{})
	r.open(1, 2, 3)
	r.step(9, 0, 1)
	<-r.gate.enter
	var named []byte // by the scheduler's goroutine, read once the loss is told
	put := func(n byte, tokens int) {
		step := engine.Step{Session: id(n), Tokens: make([]engine.TokenID, tokens)}
		j := &batch.Job{Kind: batch.Step, Session: id(n), Step: step, Lost: func() { named = append(named, n) }}
		if err := r.submit(j); err != nil {
			t.Fatal(err)
		}
	}
	put(1, 1)
	put(2, 1)
	put(3, 20)
	r.gate.leave <- nil
	<-r.came
	if got := sessions(<-r.gate.enter); !slices.Equal(got, []byte{3}) { // prefill is in turn
		t.Fatalf("batch %v", got)
	}
	r.gate.leave <- nil
	<-r.came
	<-r.gate.enter
	r.gate.leave <- engine.Errorf(engine.EngineFault, "gone")
	<-r.lost
	if !slices.Equal(named, []byte{1, 2}) {
		t.Errorf("%v were in the batch, want 1 and 2", named)
	}
	<-r.came
	<-r.came
}

// Where there is no room, caches are given up as long as there are any.
func TestOpenGivesUpIdleCaches(t *testing.T) {
	r := newRig(t, batch.Options{})
	r.open(1, 2, 3)
	idle := []byte{2}
	retry := func() bool {
		if len(idle) == 0 {
			return false
		}
		n := idle[0]
		idle = idle[1:]
		return r.Submit(&batch.Job{Kind: batch.Release, Session: id(n)}) == nil
	}
	for n, want := range []error{4: nil, 5: engine.NoCapacity} {
		if n < 4 {
			continue
		}
		if err := r.submit(&batch.Job{Kind: batch.Open, Session: id(byte(n)), Context: 100, Retry: retry}); err != nil {
			t.Fatal(err)
		}
		<-r.came
		if o := r.last(byte(n)); !errors.Is(o.Err, want) {
			t.Errorf("session %d: %v, want %v", n, o.Err, want)
		}
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	r := newRig(t, batch.Options{Limit: 2})
	r.open(1, 2, 3)
	r.step(1, 0, 1)
	<-r.gate.enter
	r.step(2, 0, 1)
	r.step(3, 0, 1)
	if err := r.submit(&batch.Job{Kind: batch.Truncate, Session: id(1)}); !errors.Is(err, engine.NoCapacity) {
		t.Errorf("a third one: %v", err)
	}
	if err := r.Submit(&batch.Job{Kind: batch.Release, Session: id(9)}); err != nil {
		t.Errorf("a release: %v", err) // it only makes room
	}
	r.gate.leave <- nil
	<-r.came
	<-r.gate.enter
	r.gate.leave <- nil
	<-r.came
	<-r.came
}

// The loss of the engine is told once, and whoever waits gets it too.
func TestLostEngine(t *testing.T) {
	r := newRig(t, batch.Options{})
	r.open(1, 2)
	r.step(1, 0, 1)
	<-r.gate.enter
	r.gate.leave <- engine.Errorf(engine.EngineFault, "gone")
	<-r.came
	if o := r.last(1); !errors.Is(o.Err, engine.EngineFault) {
		t.Errorf("its step: %v", o.Err)
	}
	if err := <-r.lost; !errors.Is(err, engine.EngineFault) {
		t.Errorf("told: %v", err)
	}
	if err := r.submit(&batch.Job{Kind: batch.Step, Session: id(2)}); !errors.Is(err, engine.EngineFault) {
		t.Errorf("a later one: %v", err)
	}
}

// Close ends what runs and what waits.
func TestCloseEndsWhatWaits(t *testing.T) {
	r := newRig(t, batch.Options{})
	r.open(1, 2)
	r.step(1, 0, 1)
	<-r.gate.enter
	r.step(2, 0, 1)
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := r.last(1); !errors.Is(o.Result.Err, engine.Cancelled) {
		t.Errorf("the running step: %v %v", o.Err, o.Result.Err)
	}
	if o := r.last(2); !errors.Is(o.Err, batch.ErrClosed) {
		t.Errorf("the waiting step: %v", o.Err)
	}
}
