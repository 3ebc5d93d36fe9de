package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// orphanPatience is what sessions get when the parent is gone: whoever opened them is most likely gone too.
const orphanPatience = time.Second

// errSecondSignal ends the worker before its drain does.
var errSecondSignal = errors.New("a second signal came before the drain was over; open sessions were cut off")

// ending is who may ask the worker to end.
type ending struct {
	asked chan time.Duration // once: how patient to be with open sessions; negative: as configured
	now   context.Context    // ends with the second signal
}

// watchEnd listens to signals and, if stdin is not nil, for its end, until ctx ends.
func watchEnd(ctx context.Context, signals <-chan os.Signal, stdin io.Reader) ending {
	now, hurry := context.WithCancelCause(ctx)
	e := ending{asked: make(chan time.Duration, 1), now: now}
	ask := func(patience time.Duration) {
		select {
		case e.asked <- patience:
		default: // asked already
		}
	}
	go func() {
		for n := 1; ; n++ {
			select {
			case <-signals:
			case <-ctx.Done():
				hurry(nil)
				return
			}
			if n == 1 {
				ask(-1)
				continue
			}
			hurry(errSecondSignal)
			return
		}
	}()
	if stdin != nil {
		go func() { // a read of standard input cannot be interrupted; it ends with the process
			_, _ = io.Copy(io.Discard, stdin) // its end is all that matters, however it comes
			ask(orphanPatience)
		}()
	}
	return e
}
