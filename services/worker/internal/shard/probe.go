package shard

import (
	"context"
	"errors"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// firstProbe is the least bound of the probe that ends a load: it may have to fault weights in.
const firstProbe = 60 * time.Second

// probe is what is known of the present engine. Its fields are guarded by Shard.mu.
type probe struct {
	passed time.Time // when one last passed
	took   time.Duration
	failed error // the last one failed so, and not for want of time
	stop   context.CancelFunc
	stale  *time.Timer // tells watchers when no probe passed for too long
}

// staleAfter is the age from which the last pass no longer speaks for the engine; one missed probe drops nothing.
func staleAfter(o Options) time.Duration { return 2*o.ProbeInterval + o.ProbeTimeout }

// obstacle is why the engine does not count as working, or nil.
func (p *probe) obstacle(o Options) *fault.Error {
	if p.failed != nil {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "the last probe of the engine failed (%w)", p.failed)
	}
	if age := time.Since(p.passed); age >= staleAfter(o) {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "no probe went through the engine for %s; if this stays, restart the worker", age.Round(time.Millisecond))
	}
	return nil
}

// startProbe begins regular probing of an engine whose first probe has passed. The caller holds mu.
func (s *Shard) startProbe(l Loaded) *probe {
	p := s.probe
	ctx, cancel := context.WithCancel(s.life)
	p.stale = time.AfterFunc(staleAfter(s.options), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.probe == p {
			s.log.Warn("no probe went through the engine", "for", staleAfter(s.options))
			s.announce()
		}
	})
	p.stop = func() {
		cancel()
		p.stale.Stop()
	}
	s.all.Add(1)
	go func() {
		defer s.all.Done()
		s.runProbes(ctx, l, p)
	}()
	return p
}

func (s *Shard) runProbes(ctx context.Context, l Loaded, p *probe) {
	tick := time.NewTicker(s.options.ProbeInterval)
	defer tick.Stop()
	var lost <-chan struct{} // never, of an engine in this process
	if mortal, ok := l.Engine.(engine.Mortal); ok {
		lost = mortal.Lost()
	}
	for {
		select {
		case <-tick.C:
		case <-lost: // the probe says why
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, s.options.ProbeTimeout)
		var health engine.Health
		var err error
		apart(func() { health, err = l.Engine.Health(bounded, true) })
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.options.Observer.ShardProbe(health.Took, err)
		s.judge(l, p, health, err)
		if errors.Is(err, engine.EngineFault) {
			return
		}
	}
}

// judge notes the outcome of a probe and tells watchers when readiness changed.
func (s *Shard) judge(l Loaded, p *probe, health engine.Health, err error) {
	if errors.Is(err, engine.EngineFault) {
		l.Lost(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probe != p {
		return
	}
	before := p.obstacle(s.options) == nil
	switch {
	case err == nil:
		p.passed, p.took, p.failed = time.Now(), health.Took, nil
		p.stale.Reset(staleAfter(s.options))
	case errors.Is(err, engine.DeadlineExceeded):
		s.log.Warn("a probe did not get through in time", "timeout", s.options.ProbeTimeout)
	default:
		s.log.Error("a probe failed", "cause", err)
		p.failed = err
	}
	if after := p.obstacle(s.options) == nil; before != after {
		s.announce()
	}
}
