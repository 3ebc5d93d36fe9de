package rpc_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const (
	inFlight = 4   // steps
	failing  = 200 // twice in a row: the engine of the hop in turn fails the step
	stuck    = 201 // twice in a row: it does not end by itself
)

// With several steps in flight over three hops, step k fails, is late or is cancelled at each hop in turn: what is before it
// stands, it and all behind it get one terminal reply each, every hop's cache is at its start, and the session goes on.
func TestAnyStepGoesWrongAtAnyHop(t *testing.T) {
	t.Parallel()
	for hop := range 3 {
		for how, token := range map[string]uint32{"fails": failing, "is late": stuck, "is cancelled": stuck} {
			t.Run(fmt.Sprintf("it %s at hop %d", how, hop), func(t *testing.T) {
				t.Parallel()
				workers := wrongAt(t, hop)
				for k := uint64(1); k <= inFlight; k++ {
					goWrong(t, workers, hop, how, token, k)
				}
			})
		}
	}
}

// wrongAt is a route of three whose given hop meets the tokens.
func wrongAt(t *testing.T, hop int) (workers []*worker) {
	for i, l := range []engine.LayerRange{{First: 0, End: 1}, {First: 1, End: 3}, {First: 3, End: 4}} {
		s := setting{sessions: 8}
		if i == hop {
			s.model = fmt.Sprintf("fake:script=step with %[1]d,%[1]d fail NUMERIC_FAULT; step with %[2]d,%[2]d stuck", failing, stuck)
		}
		workers = append(workers, start(t, l, s))
	}
	return workers
}

func goWrong(t *testing.T, workers []*worker, hop int, how string, token uint32, k uint64) {
	d := dialTo(t, workers[0])
	d.open(byte(k), workers)
	start := uint32(2 * (k - 1))
	for id := uint64(1); id <= inFlight; id++ {
		m := step(id, id-1, uint32(2*(id-1)), prompt(30+uint32(id), 40))
		if id == k {
			m = step(id, id-1, start, prompt(token, token))
			if how == "is late" {
				m.GetStep().Budget = durationpb.New(500 * time.Millisecond)
			}
		}
		d.send(m)
	}
	code := workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT
	behind := workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED
	switch how {
	case "is late":
		code = workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED
	case "is cancelled":
		code = workerpb.ErrorCode_ERROR_CODE_CANCELLED
		behind = code
		reached(t, workers, hop, byte(k), start)
		d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{CancelStep: &workerpb.CancelStep{StepId: k, Through: inFlight, Undo: true}}})
	}
	replies := map[uint64]int{}
	for len(replies) < inFlight {
		m := d.receive()
		switch {
		case m.GetStepResult() != nil:
			id := m.GetStepResult().GetStepId()
			if replies[id]++; id >= k || m.GetStepResult().GetCache().GetLength() != uint32(2*id) {
				t.Errorf("step %d of %d: %v", id, k, m)
			}
		case m.GetStepFailed() != nil:
			id, err := m.GetStepFailed().GetStepId(), fault.FromProto(m.GetStepFailed().GetError())
			replies[id]++
			want := code
			if id > k {
				want = behind
			}
			if id < k || err.Code != want || m.GetStepFailed().GetCache().GetLength() != start {
				t.Errorf("step %d of %d: %v", id, k, m)
			}
			if id == k && how != "is cancelled" && err.Subject.GetIndex() != uint32(hop) {
				t.Errorf("step %d went wrong at hop %d, the subject is %v", k, hop, err.Subject)
			}
			for i, w := range workers { // the answers of steps before it may still be on their way
				if n := cached(w, byte(k)); n > start {
					t.Errorf("step %d of %d has failed and hop %d holds %d tokens of %d", id, k, i, n, start)
				}
			}
		case m.GetClosed() != nil:
			t.Fatalf("closed: %v", m.GetClosed())
		}
	}
	hold(t, workers, byte(k), start)
	const next = inFlight + 1
	d.send(step(next, k-1, start, run(3, 44)))
	text, result, failed := d.answer(next)
	if failed != nil || result.GetCache().GetLength() != start+3 {
		t.Fatalf("the next step: %v, %v", result, failed)
	}
	hold(t, workers, byte(k), start+3)
	if want := alone(t, workers, k, start); text != want {
		t.Errorf("the session goes on with %q, one that nothing happened to with %q", text, want)
	}
	d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
	for { // no step gets a second reply
		m := d.receive()
		if m.GetClosed() != nil {
			return
		}
		if m.GetStepResult() != nil || m.GetStepFailed() != nil {
			t.Errorf("a further reply: %v", m)
		}
	}
}

// reached waits until a step is where it gets stuck: the hop before holds it, or all before it is done.
func reached(t *testing.T, workers []*worker, hop int, id byte, start uint32) {
	t.Helper()
	want, at := start+2, hop-1
	if hop == 0 {
		want, at = start, 0
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); cached(workers[at], id) < want; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("hop %d holds %d tokens, %d are due", at, cached(workers[at], id), want)
		}
	}
}

func cached(w *worker, id byte) uint32 {
	for _, s := range w.dir.List() {
		if s.ID[15] == id {
			return s.CacheLength
		}
	}
	return 0
}

// hold checks the cache of every hop.
func hold(t *testing.T, workers []*worker, id byte, want uint32) {
	t.Helper()
	for i, w := range workers {
		if got := cached(w, id); got != want {
			t.Errorf("hop %d holds %d tokens, %d are due", i, got, want)
		}
	}
}

// alone is what a session says that has the steps before k only.
func alone(t *testing.T, workers []*worker, k uint64, start uint32) string {
	t.Helper()
	d := dialTo(t, workers[0])
	d.open(100+byte(k), workers)
	for id := uint64(1); id < k; id++ {
		d.send(step(id, id-1, uint32(2*(id-1)), prompt(30+uint32(id), 40)))
	}
	m := step(k, k-1, start, run(3, 44))
	m.GetStep().After = proto.Uint64(k - 1)
	d.send(m)
	text, _, failed := d.answer(k)
	if failed != nil {
		t.Fatal(failed)
	}
	d.cancel()
	return text
}
