package shard

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// fire takes the table's row for an event. If it leads on, prepare runs first, then the state changes, then the row's
// effects happen in order. A refusal is the row's error. The caller holds mu.
func (s *Shard) fire(event tables.ShardEvent, prepare func()) error {
	row := tables.ShardTransition(s.state, event)
	s.options.Observer.Transition("shard", row.State.String(), row.Event.String())
	switch row.Outcome {
	case tables.OutcomeNext:
		if prepare != nil {
			prepare()
		}
		if row.Next != s.state {
			s.log.Debug("shard", "from", s.state.String(), "event", event.String(), "to", row.Next.String())
			s.state = row.Next
			s.options.Observer.ShardState(row.Next)
		}
	case tables.OutcomeImpossible:
		s.log.Error("an event came that cannot", "state", s.state.String(), "event", event.String())
	}
	for _, effect := range row.Effects {
		s.perform(effect, event)
	}
	if row.Outcome == tables.OutcomeNext {
		return nil
	}
	f := fault.New(row.Error, "%s while the shard is %s", event, s.state)
	return f.With(func(f *fault.Error) {
		f.Detail = &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Lifecycle{Lifecycle: &workerpb.LifecycleDetail{
			Table: "shard", State: s.state.String(), Event: event.String(),
		}}}
	})
}

// perform does one effect of a row. What waits becomes an errand. The caller holds mu.
func (s *Shard) perform(effect tables.ShardEffect, event tables.ShardEvent) {
	switch effect {
	case tables.ShardEffectStartLoad:
		l := s.load
		s.why = nil
		s.errand(func() { s.runLoad(l) })
	case tables.ShardEffectStopLoad:
		s.load.stop()
		s.load = nil
	case tables.ShardEffectFreeShard:
		s.freeShard()
	case tables.ShardEffectFailSessionsEngineFault:
		s.errand(s.evictor(s.loss()))
	case tables.ShardEffectRestartEngine:
		s.restartEngine()
	case tables.ShardEffectRefuseNew:
		s.drain = s.newDrain()
	case tables.ShardEffectTellSessions:
		s.options.Residents.Drain(s.drain.left())
	case tables.ShardEffectStartDrainTimer:
		s.drain.start(s)
	case tables.ShardEffectShortenDrain, tables.ShardEffectDrainDeadlineNow:
		s.shortenDrain()
	case tables.ShardEffectCountImpossible:
		s.impossible++
		s.options.Observer.ShardImpossible(s.state, event)
	case tables.ShardEffectNewInstance:
		s.newInstance()
	case tables.ShardEffectAnnounce:
		s.announce()
	case tables.ShardEffectKeepError, tables.ShardEffectAnswerOk:
		// The error is kept by whoever fires, with the event; an answer is the return of nil.
	}
}

// newInstance begins the service of the engine in s.loaded.
func (s *Shard) newInstance() {
	if s.loaded == nil {
		rand.Read(s.instance[:])
		return
	}
	s.instance, s.served = s.loaded.Instance, time.Now()
	s.why, s.load = nil, nil
	s.probe = s.startProbe(*s.loaded)
}

// freeShard gives up the engine: residents leave, then it is closed.
func (s *Shard) freeShard() {
	s.forget()
	s.load = nil
	s.why = nil
}

// restartEngine closes the lost engine; while LOADING it then loads the same shard again.
func (s *Shard) restartEngine() {
	order := s.order
	if s.loaded != nil {
		fingerprint := s.loaded.Fingerprint
		order.Fingerprint = &fingerprint
	}
	s.forget()
	s.load = nil
	if s.state != tables.ShardLoading {
		return // the next Load makes the engine
	}
	s.options.Observer.ShardRestart()
	l := newLoad(s.life, order)
	l.restart, l.after = true, s.nextRestart()
	s.load = l
	s.errand(func() { s.runLoad(l) })
}

// forget ends what belongs to the present engine and closes it.
func (s *Shard) forget() {
	if s.drain != nil {
		s.drain.stop()
		s.drain = nil
	}
	if s.probe != nil {
		s.probe.stop()
		s.probe = nil
	}
	if s.loaded == nil {
		return
	}
	gone := *s.loaded
	s.loaded = nil
	s.errand(func() {
		s.evictor(fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, ""))()
		s.closeEngine(gone.Engine)
	})
}

// loss is what sessions hear when the engine is lost.
func (s *Shard) loss() *fault.Error {
	if s.why != nil {
		return s.why
	}
	return fault.New(workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT, "")
}

// announce tells watchers that the status changed. The caller holds mu.
func (s *Shard) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// status is the present status. The caller holds mu.
func (s *Shard) status() Status {
	st := Status{State: s.state, Instance: s.instance, Order: s.order, Impossible: s.impossible}
	if s.loaded != nil {
		l := *s.loaded
		st.Loaded = &l
	}
	if s.load != nil {
		st.Progress = s.load.progress
	}
	if s.drain != nil {
		st.DrainLeft = s.drain.left()
	}
	if s.probe != nil {
		st.Probed, st.ProbeAge, st.ProbeTook = true, time.Since(s.probe.passed), s.probe.took
	}
	st.Err = s.obstacle()
	st.Ready = st.Err == nil
	return st
}

// obstacle is why the shard is not ready, or nil.
func (s *Shard) obstacle() *fault.Error {
	notReady := func(format string, args ...any) *fault.Error {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, format, args...)
	}
	switch s.state {
	case tables.ShardReady:
		return s.probe.obstacle(s.options)
	case tables.ShardDraining:
		return fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, "")
	case tables.ShardLoading:
		if s.why != nil {
			return notReady("the engine was lost and loads again (%s)", s.why.Message)
		}
		return notReady("it is being loaded")
	case tables.ShardFailed:
		if s.why != nil {
			return s.why
		}
		return notReady("the last load failed")
	}
	return notReady("no model is loaded; load one")
}

// asEngineFault makes ENGINE_FAULT of any error.
func asEngineFault(err error) error {
	if errors.Is(err, engine.EngineFault) {
		return err
	}
	return engine.Errorf(engine.EngineFault, "%w", err)
}

func hexed(instance [16]byte) string { return hex.EncodeToString(instance[:]) }
