package remote

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Open opens a session on the worker, in hub mode.
func (e *Engine) Open(ctx context.Context, session engine.SessionID, contextTokens uint32) error {
	e.mu.Lock()
	err := e.in(loaded)
	var info engine.ShardInfo
	if err == nil {
		info = *e.able.Shard
		if e.sessions[session] != nil {
			err = engine.Errorf(engine.LifecycleViolation, "session %s is open; release it first", session)
		}
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if contextTokens > info.ContextLimit {
		return engine.Errorf(engine.ContextOverflow, "%d tokens of context were asked for, and worker %s has %d at most", contextTokens, e.client.Address(), info.ContextLimit)
	}
	l, f := e.dial(ctx, session, contextTokens, info)
	if f != nil {
		return e.judge(f)
	}
	e.mu.Lock()
	err = e.in(loaded)
	if err == nil {
		e.sessions[session] = l
		e.metrics.SessionsOpen++
		e.metrics.CacheReserved += uint64(contextTokens)
	}
	e.mu.Unlock()
	if err != nil {
		l.hangUp()
	}
	return err
}

// judge is what a fault means to the caller: the loss of the engine, where it is one, or the fault alone.
func (e *Engine) judge(f *fault.Error) error {
	err := translate(f)
	if err.Code == engine.EngineFault {
		e.lose(f)
		if lost := e.lossOf(); lost != nil {
			return lost
		}
	}
	return err
}

// sessionEnded forgets a session whose stream ended. If the reason concerns all of them, the engine is lost.
func (e *Engine) sessionEnded(l *link, why *fault.Error) {
	e.mu.Lock()
	if e.sessions[l.id] == l {
		delete(e.sessions, l.id)
		e.metrics.SessionsOpen--
		e.metrics.CacheReserved -= uint64(l.context)
	}
	e.mu.Unlock()
	if translate(why).Code == engine.EngineFault {
		e.lose(why)
	}
}

// session finds one.
func (e *Engine) session(id engine.SessionID) (*link, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.in(loaded); err != nil {
		return nil, err
	}
	l := e.sessions[id]
	if l == nil {
		return nil, engine.Errorf(engine.SessionUnknown, "session %s is not open on worker %s; open it", id, e.client.Address())
	}
	return l, nil
}

// Truncate is a truncate step.
func (e *Engine) Truncate(ctx context.Context, session engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	l, err := e.session(session)
	if err != nil {
		return engine.CacheState{}, err
	}
	m := &workerpb.Step{
		ExpectCache: &workerpb.ExpectCache{Length: proto.Uint32(uint32(l.state().Length))},
		Kind:        &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: proto.Uint32(uint32(length))}},
	}
	x, f := l.begin(ctx, m, nil, 0)
	if f == nil {
		f = l.wait(ctx, x)
	}
	if f != nil {
		return l.state(), e.judge(f)
	}
	return l.state(), nil
}

// Mark takes none but at length 0, where none is needed: NO_CAPACITY. The worker's own are in the reach of the cache.
func (e *Engine) Mark(_ context.Context, session engine.SessionID) (engine.CacheState, error) {
	l, err := e.session(session)
	if err != nil {
		return engine.CacheState{}, err
	}
	state := l.state()
	if state.Length != 0 {
		err = engine.Errorf(engine.NoCapacity, "worker %s takes marks by itself, none for its driver; go back to a length in reach", e.client.Address())
	}
	return state, err
}

// Unmark has nothing to drop.
func (e *Engine) Unmark(_ context.Context, session engine.SessionID, _ engine.Pos) (engine.CacheState, error) {
	l, err := e.session(session)
	if err != nil {
		return engine.CacheState{}, err
	}
	return l.state(), nil
}

// Copy is UNSUPPORTED_FEATURE: a worker copies only what a session that was closed has left, into one that is opened.
func (e *Engine) Copy(_ context.Context, from, to engine.SessionID, _ engine.Pos) (engine.CacheState, error) {
	for _, session := range []engine.SessionID{from, to} {
		if _, err := e.session(session); err != nil {
			return engine.CacheState{}, err
		}
	}
	return engine.CacheState{}, engine.Errorf(engine.UnsupportedFeature, "worker %s copies no cache of an open session; prefill the other one", e.client.Address())
}

// Cancel asks the worker to stop the session's step.
func (e *Engine) Cancel(session engine.SessionID) {
	if l, err := e.session(session); err == nil {
		l.stop()
	}
}

// Release closes the session on the worker.
func (e *Engine) Release(ctx context.Context, session engine.SessionID) error {
	l, err := e.session(session)
	if err != nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, e.options.RestBudget)
	defer cancel()
	l.close(bounded)
	return nil
}
