package rpc_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const slow = "fake:script=step slow 2ms"

// end reads to the end of the stream and returns Closed and the stream's error.
func (d *driver) end() (*workerpb.Closed, *fault.Error) {
	var closed *workerpb.Closed
	for {
		m, err := d.stream.Recv()
		if errors.Is(err, io.EOF) {
			return closed, nil
		}
		if err != nil {
			return closed, fault.FromStatus(err)
		}
		if m.GetClosed() != nil {
			closed = m.GetClosed()
		}
	}
}

// firstToken reads until a token comes.
func (d *driver) firstToken() {
	d.t.Helper()
	for d.receive().GetToken() == nil {
	}
}

func is(t *testing.T, err *fault.Error, code workerpb.ErrorCode) {
	t.Helper()
	if err == nil || err.Code != code {
		t.Fatalf("the error is %v, want %v", err, code)
	}
}

// Killing a hop in the middle of a run is told at once, with the hop's place and name.
func TestLostHopIsNamed(t *testing.T) {
	for _, lost := range []int{1, 2} {
		workers := route(t, setting{model: slow}, 1, 3)
		d := dialTo(t, workers[0])
		d.open(1, workers)
		d.send(step(1, 0, 0, run(120, 44)))
		d.firstToken()
		began := time.Now()
		workers[lost].kill()
		closed, err := d.end()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		is(t, err, workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)
		want := []string{"", "w1", "w3"}[lost]
		if err.Subject.GetIndex() != uint32(lost) || err.Subject.GetWorkerId() != want {
			t.Errorf("the subject is %v, want hop %d, %s", err.Subject, lost, want)
		}
		if !proto.Equal(closed.GetError(), err.Proto()) || closed.GetReason() != workerpb.CloseReason_CLOSE_REASON_ERROR {
			t.Errorf("closed %v, status %v", closed, err)
		}
		if status.Code(err) != codes.Aborted {
			t.Errorf("the status is %v", status.Code(err))
		}
		next := dialTo(t, workers[0]) // the callers stay up
		next.send(openOf(2, workers))
		_, err = next.end()
		is(t, err, workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE)
		if err.Subject.GetIndex() != uint32(lost) || !strings.Contains(err.Message, workers[lost].address) {
			t.Errorf("the error does not name hop %d at %s: %v %v", lost, workers[lost].address, err, err.Subject)
		}
	}
}

func TestNobodyListensThere(t *testing.T) {
	workers := route(t, setting{}, 2)
	m := openOf(1, workers)
	m.GetOpen().Route[0].Address = "127.0.0.1:1"
	d := dialTo(t, workers[0])
	began := time.Now()
	d.send(m)
	_, err := d.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE)
	if !strings.Contains(err.Message, "127.0.0.1:1") || time.Since(began) > 2*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if workers[0].dir.Sessions() != 0 {
		t.Error("the session stays")
	}
}

// What chain.allow does not list is not dialled.
func TestOnlyListedHopsAreDialled(t *testing.T) {
	workers := route(t, setting{allow: []string{"10.0.0.0/8:*"}}, 2)
	d := dialTo(t, workers[0])
	d.send(openOf(1, workers))
	_, err := d.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED)
	if err.Subject.GetWorkerId() != "w0" {
		t.Errorf("subject %v", err.Subject)
	}
}

// An Open that cannot be served is refused with the reason, and nothing stays of it.
func TestRefusedOpens(t *testing.T) {
	workers := route(t, setting{}, 2)
	other := start(t, engine.LayerRange{First: 2, End: 4}, setting{model: "fake:seed=9"})
	for name, c := range map[string]struct {
		change func(*workerpb.Open)
		want   workerpb.ErrorCode
	}{
		"gap":          {func(o *workerpb.Open) { o.Route[0].Layers.First = proto.Uint32(3) }, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID},
		"overlap":      {func(o *workerpb.Open) { o.Route[0].Layers.First = proto.Uint32(1) }, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID},
		"short":        {func(o *workerpb.Open) { o.Route[0].Layers.End = 3 }, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID},
		"no route":     {func(o *workerpb.Open) { o.Route = nil }, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID},
		"other model":  {func(o *workerpb.Open) { o.Route[0].Address = other.address }, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH},
		"other layers": {func(o *workerpb.Open) { o.Expect.Layers.End = 3 }, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH},
		"fingerprint":  {func(o *workerpb.Open) { o.Expect.Fingerprint = make([]byte, 32) }, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH},
		"revision":     {func(o *workerpb.Open) { o.Revisions = &workerpb.RevisionRange{Min: 2, Max: 3} }, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION},
		"feature":      {func(o *workerpb.Open) { o.Needs = []string{"ring"} }, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE},
		"context":      {func(o *workerpb.Open) { o.ContextTokens = 257 }, workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW},
		"attempt":      {func(o *workerpb.Open) { o.Attempt = 0 }, workerpb.ErrorCode_ERROR_CODE_MALFORMED},
		"held":         {func(o *workerpb.Open) { o.Held = &workerpb.CacheState{} }, workerpb.ErrorCode_ERROR_CODE_MALFORMED},
		"budget":       {func(o *workerpb.Open) { o.Budget = durationpb.New(0) }, workerpb.ErrorCode_ERROR_CODE_MALFORMED},
		"unknown field": {func(o *workerpb.Open) {
			o.Expect.Layers.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
		}, workerpb.ErrorCode_ERROR_CODE_MALFORMED},
	} {
		t.Run(name, func(t *testing.T) {
			m := openOf(1, workers)
			c.change(m.GetOpen())
			d := dialTo(t, workers[0])
			d.send(m)
			closed, err := d.end()
			is(t, err, c.want)
			if closed != nil || err.Origin == nil {
				t.Errorf("closed %v, origin %v", closed, err.Origin)
			}
			if name == "unknown field" && err.Detail.GetField().GetPath() != "open.expect.layers.#99" {
				t.Errorf("path %q", err.Detail.GetField().GetPath())
			}
			if workers[0].dir.Sessions() != 0 {
				t.Error("the session stays")
			}
		})
	}
	dialTo(t, workers[0]).open(1, workers) // and it still works
}

// Two sessions, one is cancelled: the other goes on with the same tokens.
func TestCancelTouchesNobodyElse(t *testing.T) {
	workers := route(t, setting{model: slow}, 2)
	alone := dialTo(t, workers[0])
	alone.open(1, workers)
	alone.send(step(1, 0, 0, run(60, 44)))
	want, _, _ := alone.answer(1)

	a, b := dialTo(t, workers[0]), dialTo(t, workers[0])
	a.open(2, workers)
	b.open(3, workers)
	a.send(step(1, 0, 0, run(60, 44)))
	b.send(step(1, 0, 0, run(100, 50)))
	b.firstToken()
	b.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{
		CancelStep: &workerpb.CancelStep{StepId: 1, Through: 1},
	}})
	_, result, failed := b.answer(1)
	if failed != nil || result.GetFinish() != workerpb.Finish_FINISH_CANCELLED || result.GetCache().GetLength() != result.GetSampled() {
		t.Errorf("the stopped run: %v, %v", result, failed)
	}
	if got, _, failed := a.answer(1); got != want || failed != nil {
		t.Errorf("the other one said %q, alone %q, failed %v", got, want, failed)
	}
	b.send(step(2, 1, result.GetCache().GetLength(), run(3, 50))) // the stopped one lives
	if text, _, failed := b.answer(2); failed != nil || len(text) != 3 {
		t.Errorf("%q, %v", text, failed)
	}
}

// A session that does nothing does not keep a second one waiting.
func TestIdleClientDoesNotBlock(t *testing.T) {
	workers := route(t, setting{}, 2)
	dialTo(t, workers[0]) // a stream without an open
	dialTo(t, workers[0]).open(1, workers)
	began := time.Now()
	d := dialTo(t, workers[0])
	d.open(2, workers)
	d.send(step(1, 0, 0, run(3, 44)))
	d.answer(1)
	if took := time.Since(began); took > time.Second {
		t.Errorf("it took %v", took)
	}
}

// A hop that is stuck is named when the step's time is over; a hop before it says so.
func TestDeadlineNamesTheLateHop(t *testing.T) {
	for stuck, want := range []string{"w0", "w1", "w3"} {
		layers := []engine.LayerRange{{First: 0, End: 1}, {First: 1, End: 3}, {First: 3, End: 4}}
		var workers []*worker
		for i, l := range layers {
			s := setting{}
			if i == stuck {
				s.model = "fake:script=step 3 stuck"
			}
			workers = append(workers, start(t, l, s))
		}
		d := dialTo(t, workers[0])
		d.open(1, workers)
		g := run(20, 44)
		g.TokenBudget = durationpb.New(300 * time.Millisecond)
		d.send(step(1, 0, 0, g))
		began := time.Now()
		_, result, failed := d.answer(1)
		if took := time.Since(began); took > 2*time.Second || failed == nil {
			t.Fatalf("after %v: %v", took, result)
		}
		err := fault.FromProto(failed.GetError())
		is(t, err, workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED)
		if err.Subject.GetIndex() != uint32(stuck) || err.Subject.GetWorkerId() != want || failed.GetCache().GetLength() != 0 {
			t.Errorf("stuck hop %d: subject %v, cache %d", stuck, err.Subject, failed.GetCache().GetLength())
		}
		d.send(step(2, 0, 0, run(3, 44))) // the session lives
		if text, _, failed := d.answer(2); failed != nil || len(text) != 3 {
			t.Errorf("%q, %v", text, failed)
		}
	}
}

// The end of the engine ends its sessions, names the hop, and the next session works.
func TestLostEngineIsNamed(t *testing.T) {
	workers := []*worker{
		start(t, engine.LayerRange{First: 0, End: 2}, setting{}),
		start(t, engine.LayerRange{First: 2, End: 4}, setting{model: "fake:script=step 4 lost"}),
	}
	d := dialTo(t, workers[0])
	d.open(1, workers)
	d.send(step(1, 0, 0, run(20, 44)))
	_, err := d.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT)
	if err.Subject.GetIndex() != 1 || err.Subject.GetWorkerId() != "w2" || err.Recovery != workerpb.Recovery_RECOVERY_REPLAY {
		t.Errorf("%v about %v, %v", err, err.Subject, err.Recovery)
	}
	ready(t, workers[1])
	d = dialTo(t, workers[0])
	d.open(2, workers)
	d.send(step(1, 0, 0, run(20, 44)))
	if text, _, failed := d.answer(1); failed != nil || len(text) != 20 {
		t.Errorf("%q, %v", text, failed)
	}
}

// ready waits until a worker serves again.
func ready(t *testing.T, w *worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for {
		s, changed := w.shard.Watch()
		if s.Ready {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the worker does not come back")
		}
	}
}

// A worker without room says so at once; a cache that only lingers makes room.
func TestCapacity(t *testing.T) {
	workers := route(t, setting{sessions: 1})
	a := dialTo(t, workers[0])
	m := openOf(1, workers)
	m.GetOpen().Linger = durationpb.New(time.Minute)
	a.send(m)
	a.receive()
	a.send(step(1, 0, 0, prompt(5, 6)))
	a.answer(1)
	b := dialTo(t, workers[0])
	b.send(openOf(2, workers))
	_, err := b.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY)
	if err.RetryAfter == 0 {
		t.Error("retry_after is missing")
	}
	a.cancel() // the link breaks: the cache lingers
	lingering(t, workers[0])
	dialTo(t, workers[0]).open(3, workers)
	if n := workers[0].dir.Sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// lingering waits until a session lingers.
func lingering(t *testing.T, w *worker) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		for _, i := range w.dir.List() {
			if i.State == "LINGERING" {
				return
			}
		}
		waitABit()
	}
	t.Fatal("no session lingers")
}

// After a broken link the next attempt finds the cache.
func TestNewerAttemptAdoptsTheCache(t *testing.T) {
	workers := route(t, setting{}, 2)
	m := openOf(1, workers)
	m.GetOpen().Linger = durationpb.New(time.Minute)
	a := dialTo(t, workers[0])
	a.send(m)
	a.receive()
	a.send(step(1, 0, 0, prompt(5, 6, 7)))
	a.answer(1)

	stale := dialTo(t, workers[0])
	stale.send(m)
	_, err := stale.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_STALE_ATTEMPT)

	thief := dialTo(t, workers[0])
	wrong := proto.Clone(m).(*workerpb.SessionRequest)
	wrong.GetOpen().Attempt, wrong.GetOpen().SessionKey = 2, []byte(strings.Repeat("x", 32))
	thief.send(wrong)
	_, err = thief.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)

	m.GetOpen().Attempt = 2
	b := dialTo(t, workers[0])
	b.send(m)
	if o := b.receive().GetOpened(); o.GetCache().GetLength() != 3 {
		t.Fatalf("opened %v", o)
	}
	closed, err := a.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_SUPERSEDED)
	if closed.GetReason() != workerpb.CloseReason_CLOSE_REASON_SUPERSEDED {
		t.Errorf("closed %v", closed)
	}
	b.send(step(1, 0, 3, run(5, 8)))
	if text, _, failed := b.answer(1); failed != nil || len(text) != 5 {
		t.Errorf("%q, %v", text, failed)
	}
}

// Drain tells every driver, refuses new sessions, and ends what is left when the time is over.
func TestDrain(t *testing.T) {
	workers := route(t, setting{}, 2)
	d := dialTo(t, workers[0])
	d.open(1, workers)
	client := workerpb.NewShardServiceClient(connect(t, workers[1]))
	answer, err := client.Drain(context.Background(), &workerpb.DrainRequest{Budget: durationpb.New(500 * time.Millisecond)})
	if err != nil || answer.GetState() != workerpb.ShardState_SHARD_STATE_DRAINING || answer.GetSessions() != 1 {
		t.Fatalf("%v, %v", answer, err)
	}
	if m := d.receive().GetDraining(); m.GetHop().GetIndex() != 1 || m.GetHop().GetWorkerId() != "w2" {
		t.Errorf("draining %v", m)
	}
	late := dialTo(t, workers[0])
	late.send(openOf(2, workers))
	_, refused := late.end()
	is(t, refused, workerpb.ErrorCode_ERROR_CODE_DRAINING)
	closed, ended := d.end()
	is(t, ended, workerpb.ErrorCode_ERROR_CODE_DRAINING)
	if closed.GetReason() != workerpb.CloseReason_CLOSE_REASON_DRAINED || ended.Subject.GetIndex() != 1 {
		t.Errorf("closed %v", closed)
	}
}

// CancelSession ends a session from beside it, for who has the key.
func TestCancelSession(t *testing.T) {
	workers := route(t, setting{model: slow}, 2)
	d := dialTo(t, workers[0])
	d.open(1, workers)
	d.send(step(1, 0, 0, run(100, 44)))
	d.firstToken()
	client := workerpb.NewWorkerServiceClient(connect(t, workers[0]))
	r := &workerpb.CancelSessionRequest{SessionId: append(make([]byte, 15), 1), SessionKey: []byte(strings.Repeat("x", 32))}
	if _, err := client.CancelSession(context.Background(), r); !errors.Is(fault.FromStatus(err), fault.Code(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)) {
		t.Errorf("with a wrong key: %v", err)
	}
	r.SessionKey = make([]byte, 32)
	for range 2 { // idempotent
		if _, err := client.CancelSession(context.Background(), r); err != nil {
			t.Error(err)
		}
	}
	closed, err := d.end()
	if closed.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED || err != nil {
		t.Errorf("closed %v, %v", closed, err)
	}
	for i, w := range workers {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if w.dir.Empty(ctx) != nil {
			t.Errorf("worker %d keeps the session", i)
		}
		cancel()
	}
}

// A hop that comes back at its address is reached again by the next session.
func TestRestartedHopIsReachedAgain(t *testing.T) {
	workers := route(t, setting{}, 2)
	d := dialTo(t, workers[0])
	d.open(1, workers)
	workers[1].kill()
	if _, err := d.end(); err == nil {
		t.Fatal("the loss is not told")
	}
	other := start(t, engine.LayerRange{First: 2, End: 4}, setting{address: workers[1].address})
	d = dialTo(t, workers[0])
	d.open(2, []*worker{workers[0], other})
	d.send(step(1, 0, 0, run(5, 44)))
	if text, _, failed := d.answer(1); failed != nil || len(text) != 5 {
		t.Errorf("%q, %v", text, failed)
	}
}

// Many sessions leave nothing behind.
func TestSessionsLeaveNothing(t *testing.T) {
	workers := route(t, setting{}, 2)
	for n := range byte(40) {
		d := dialTo(t, workers[0])
		d.open(n, workers)
		d.send(step(1, 0, 0, run(3, 44)))
		d.answer(1)
		if n%2 == 0 {
			d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
		} else {
			d.cancel() // the link breaks, and nothing lingers
		}
		_, _ = d.end()
		_ = d.conn.Close()
	}
	for i, w := range workers {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if w.dir.Empty(ctx) != nil {
			t.Errorf("worker %d holds %v", i, w.dir.List())
		}
		cancel()
		m := w.dir.Metrics()
		if m.GetSessionsOpened() != 40 || m.GetTotal().GetTokensEvaluated() != 120 || m.GetImpossibleTransitions() != 0 {
			t.Errorf("worker %d: %v", i, m)
		}
	}
}

// A caller that does not read keeps no stream alive beyond a bound.
func TestCallerThatDoesNotRead(t *testing.T) {
	returned := make(chan error, 1)
	watch := grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		err := handle(srv, stream)
		returned <- err
		return err
	})
	workers := route(t, setting{model: "fake:vocab=4096", sendWait: 100 * time.Millisecond, server: []grpc.ServerOption{watch}})
	d := dialTo(t, workers[0])
	d.open(1, workers)
	for id := uint64(1); id <= 2; id++ { // logits of 32 tokens, 512 KiB each: more than the stream's buffers hold
		s := step(id, id-1, uint32(32*(id-1)), nil)
		s.GetStep().Kind = &workerpb.Step_Decode{Decode: &workerpb.Decode{
			Tokens: slices.Repeat([]uint32{40}, 32), Want: workerpb.Want_WANT_LOGITS_ALL,
		}}
		d.send(s)
	}
	client := workerpb.NewWorkerServiceClient(connect(t, workers[0]))
	for deadline := time.Now().Add(5 * time.Second); workers[0].dir.List()[0].CacheLength < 64; waitABit() {
		if time.Now().After(deadline) {
			t.Fatalf("the steps do not run: %+v", workers[0].dir.List())
		}
	}
	r := &workerpb.CancelSessionRequest{SessionId: append(make([]byte, 15), 1), SessionKey: make([]byte, 32)}
	if _, err := client.CancelSession(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	select {
	case <-returned:
	case <-time.After(5 * time.Second):
		t.Error("the stream does not end")
	}
}
