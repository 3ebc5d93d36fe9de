package shard

import (
	"errors"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Restart bounds how often a lost engine is replaced.
type Restart struct {
	First time.Duration // wait before the second restart in a row; it doubles with each further one
	Most  time.Duration // longest wait
	Calm  time.Duration // an engine that served so long begins a new row
	Tries int           // further tries to make one engine, before the shard is FAILED
}

// DefaultRestart replaces a first loss at once, and further ones ever later.
func DefaultRestart() Restart {
	return Restart{First: 50 * time.Millisecond, Most: 30 * time.Second, Calm: time.Minute, Tries: 8}
}

// delay is the wait before the restart that has n before it in its row.
func (r Restart) delay(n int) time.Duration {
	if n == 0 {
		return 0
	}
	d := r.First
	for ; n > 1 && d < r.Most; n-- {
		d *= 2
	}
	return min(d, r.Most)
}

// nextRestart is the wait before the restart that is due now. The caller holds mu.
func (s *Shard) nextRestart() time.Duration {
	if time.Since(s.served) >= s.options.Restart.Calm {
		s.restarts = 0
	}
	s.restarts++
	return s.options.Restart.delay(s.restarts - 1)
}

// passing says whether another try may go better: what is wrong is the engine or the machine, not the model.
func passing(err error) bool {
	return errors.Is(err, engine.EngineFault) || errors.Is(err, engine.EngineOutOfMemory)
}

// wait waits until the load is due, or stopped.
func (l *load) wait() error {
	if l.after == 0 {
		return nil
	}
	timer := time.NewTimer(l.after)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-l.ctx.Done():
		return cancelled()
	}
}
