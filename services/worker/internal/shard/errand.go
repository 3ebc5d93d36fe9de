package shard

import (
	"context"
	"runtime"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// errand appends to what the shard's goroutine does. The caller holds mu.
func (s *Shard) errand(do func()) {
	s.errands = append(s.errands, do)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// runErrands does one errand after another until Close, then frees what is left.
func (s *Shard) runErrands() {
	defer s.all.Done()
	for {
		s.doErrands()
		select {
		case <-s.wake:
		case <-s.life.Done():
			s.wind()
			s.doErrands()
			return
		}
	}
}

func (s *Shard) doErrands() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.errands) > 0 {
		do := s.errands[0]
		s.mu.Unlock()
		do()
		s.mu.Lock()
		s.errands = s.errands[1:]
		if len(s.errands) == 0 {
			s.announce() // Unloaded waits for this
		}
	}
}

// wind gives up what the shard holds when it is closed.
func (s *Shard) wind() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.load != nil {
		s.load.stop()
	}
	s.forget()
}

// evictor is the errand that ends every session with why.
func (s *Shard) evictor(why *fault.Error) func() {
	return func() {
		// Not under life: Close still has to evict.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), restBound)
		defer cancel()
		s.options.Residents.Evict(ctx, why)
		if ctx.Err() != nil {
			s.log.Error("sessions did not leave the engine in time", "bound", restBound)
		}
	}
}

// closeEngine closes an engine; one that does not come to rest is left behind after a bound.
func (s *Shard) closeEngine(e engine.ShardEngine) {
	done := make(chan error, 1)
	s.all.Add(1)
	go func() {
		defer s.all.Done()
		done <- e.Close()
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), restBound)
	defer cancel()
	select {
	case err := <-done:
		if err != nil {
			s.log.Error("closing the engine failed", "cause", err)
		}
	case <-ctx.Done():
		s.log.Error("the engine does not come to rest and is left behind; restart the worker to get its memory back", "bound", restBound)
	}
}

// apart runs do on an operating system thread that ends with it. A native engine keeps a pool of compute threads for every
// thread that computes: that of the scheduler's shall be the only one that stays.
func apart(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		do()
	}()
	<-done
}

// cancelled is the outcome of a load that was stopped.
func cancelled() *fault.Error {
	return fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED, "the load was stopped")
}
