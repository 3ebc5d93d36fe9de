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

// echo is how soon after the first signal another one counts as the same: a terminal, a shell and timeout(1) may each pass
// on one press of a key.
const echo = 300 * time.Millisecond

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
		var first time.Time
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				hurry(nil)
				return
			}
			switch {
			case first.IsZero():
				first = time.Now()
				ask(-1)
			case time.Since(first) >= echo:
				hurry(errSecondSignal)
				return
			}
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
