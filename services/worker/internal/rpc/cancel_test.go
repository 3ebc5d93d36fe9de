package rpc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// A step that hangs in the engine of each hop of three, with another one queued behind it, is ended by CancelStep, by CancelSession
// and by the end of the stream, whatever kind it is: nothing of it stays on any hop, and another session is given what it is given
// where nobody hangs.
func TestCancelAtEveryHop(t *testing.T) {
	want := ""
	for hop := -1; hop < 3; hop++ {
		var workers []*worker
		for i, l := range []engine.LayerRange{{First: 0, End: 1}, {First: 1, End: 3}, {First: 3, End: 4}} {
			s := setting{sessions: 2}
			if i == hop {
				s.model = "fake:script=step with 9,9 stuck"
			}
			workers = append(workers, start(t, l, s))
		}
		if hop < 0 {
			d := dialTo(t, workers[0])
			d.open(1, workers)
			want = d.says(t, 1, 0)
			continue
		}
		id := byte(2)
		for name, hanging := range map[string]*workerpb.Step{
			"prefill":  {Kind: &workerpb.Step_Prefill{Prefill: prompt(9, 9)}},
			"decode":   {Kind: &workerpb.Step_Decode{Decode: &workerpb.Decode{Tokens: []uint32{9, 9}, Want: workerpb.Want_WANT_NONE}}},
			"generate": {Kind: &workerpb.Step_Generate{Generate: func() *workerpb.Generate { g := run(5, 9); g.Tokens = []uint32{9, 9}; return g }()}},
		} {
			for way, end := range ways {
				id++
				t.Run(fmt.Sprintf("hop %d %s %s", hop, name, way), func(t *testing.T) {
					other := dialTo(t, workers[0])
					other.open(1, workers)
					d := dialTo(t, workers[0])
					d.open(id, workers)
					d.send(step(1, 0, 0, prompt(40, 41)))
					if _, _, failed := d.answer(1); failed != nil {
						t.Fatal(failed)
					}
					m := step(2, 1, 2, nil)
					m.GetStep().Kind = hanging.GetKind()
					d.send(m)
					queued := step(3, 2, 4, prompt(50))
					if name == "generate" { // nobody knows how long it gets
						queued.GetStep().ExpectCache = nil
					}
					d.send(queued)
					end(t, d, id)
					if text := other.says(t, 1, 0); text != want {
						t.Errorf("another session is given %q, %q where nobody hangs", text, want)
					}
					other.cancel()
					d.cancel()
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					defer cancel()
					for i, w := range workers {
						if err := w.dir.Empty(ctx); err != nil {
							t.Errorf("hop %d keeps %d sessions", i, w.dir.Sessions())
						}
					}
				})
			}
		}
	}
}

// says is the text of a run that begins with step id on an empty cache.
func (d *driver) says(t *testing.T, id, after uint64) string {
	t.Helper()
	d.send(step(id, after, 0, run(12, 44)))
	text, _, failed := d.answer(id)
	if failed != nil {
		t.Errorf("a run failed: %v", failed)
	}
	return text
}

// ways are those in which a driver ends what it began.
var ways = map[string]func(t *testing.T, d *driver, id byte){
	"CancelStep": func(t *testing.T, d *driver, _ byte) {
		d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{CancelStep: &workerpb.CancelStep{StepId: 2, Through: 3, Undo: true}}})
		for _, step := range []uint64{2, 3} {
			_, _, failed := d.answer(step)
			if failed.GetError().GetCode() != workerpb.ErrorCode_ERROR_CODE_CANCELLED || failed.GetCache().GetLength() != 2 {
				t.Errorf("step %d: %v", step, failed)
			}
		}
		d.send(step(4, 1, 2, run(4, 44))) // the session lives, on every hop
		if _, result, failed := d.answer(4); result.GetCache().GetLength() != 6 {
			t.Errorf("%v, %v", result, failed)
		}
	},
	"CancelSession": func(t *testing.T, d *driver, id byte) {
		_, err := workerpb.NewWorkerServiceClient(d.conn).CancelSession(context.Background(), &workerpb.CancelSessionRequest{
			SessionId: append(make([]byte, 15), id), SessionKey: make([]byte, 32),
		})
		if err != nil {
			t.Error(err)
		}
		if closed, err := d.end(); err != nil || closed.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED {
			t.Errorf("%v, %v", closed, err)
		}
	},
	"end of the stream": func(_ *testing.T, d *driver, _ byte) { d.cancel() },
}

// A next hop that is another model than before, on the port of before, is refused by a hop and by a driver whose connections were
// there before.
func TestAnotherModelOnTheSamePort(t *testing.T) {
	workers := route(t, setting{}, 2)
	d := dialTo(t, workers[0])
	d.open(1, workers)
	tail := connect(t, workers[1])
	if _, err := workerpb.NewWorkerServiceClient(tail).GetHealth(t.Context(), &workerpb.GetHealthRequest{}); err != nil {
		t.Fatal(err)
	}
	workers[1].kill()
	if _, err := d.end(); err == nil {
		t.Fatal("the loss is not told")
	}
	start(t, engine.LayerRange{First: 2, End: 4}, setting{model: "fake:seed=77", address: workers[1].address})
	d = dialTo(t, workers[0])
	d.send(openOf(2, workers))
	_, err := d.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH)
	if err.Subject.GetIndex() != 1 {
		t.Errorf("the subject is %v", err.Subject)
	}
	m := openOf(3, workers[1:])
	m.GetOpen().Egress, m.GetOpen().Linger = workerpb.Egress_EGRESS_RETURN, durationpb.New(0)
	_, fingerprint, _ := workers[0].shard.Info()
	m.GetOpen().Expect.Fingerprint = fingerprint[:]
	direct := &driver{t: t, conn: tail}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var streamErr error
	for direct.stream == nil { // until the connection of before has found the new worker
		if direct.stream, streamErr = workerpb.NewWorkerServiceClient(tail).Session(ctx); streamErr != nil && ctx.Err() != nil {
			t.Fatal(streamErr)
		}
	}
	direct.send(m)
	_, err = direct.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH)
}
