package outbox_test

import (
	"context"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain/outbox"
)

func TestControlOvertakes(t *testing.T) {
	o := outbox.New(outbox.Options[int]{Limit: 4})
	for n, control := range []bool{false, false, true, true} {
		if !o.Put(n, control) {
			t.Fatal("full too early")
		}
	}
	if o.Put(9, true) {
		t.Error("there is no bound")
	}
	for _, want := range []int{2, 3, 0, 1} {
		if got, ok := o.Take(t.Context()); !ok || got != want {
			t.Errorf("took %d, %v; want %d", got, ok, want)
		}
	}
}

func TestFinishSendsTheRest(t *testing.T) {
	o := outbox.New(outbox.Options[int]{Limit: 4})
	o.Put(1, false)
	o.Finish()
	if !o.Put(2, false) {
		t.Error("a message after the end is refused instead of passed over")
	}
	if got, ok := o.Take(t.Context()); !ok || got != 1 {
		t.Errorf("took %d, %v", got, ok)
	}
	if got, ok := o.Take(t.Context()); ok {
		t.Errorf("took %d after the end", got)
	}
}

func TestDropForgets(t *testing.T) {
	o := outbox.New(outbox.Options[int]{Limit: 4})
	o.Put(1, false)
	o.Drop()
	if got, ok := o.Take(t.Context()); ok {
		t.Errorf("took %d", got)
	}
}

// Take waits for a message, and for no longer than its context.
func TestTakeWaits(t *testing.T) {
	o := outbox.New(outbox.Options[int]{Limit: 4})
	took := make(chan int)
	go func() {
		n, _ := o.Take(t.Context())
		took <- n
	}()
	o.Put(7, false)
	if n := <-took; n != 7 {
		t.Errorf("took %d", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := o.Take(ctx); ok {
		t.Error("took something after the end of the context")
	}
}
