//go:build llama && cgo

package llama

import (
	"context"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// session is one sequence and the slot that it holds.
type session struct {
	slot     uint32
	reserved uint32 // tokens
	tokens   []engine.TokenID
	least    engine.Pos // the cache goes back to lengths from here on, and to 0
	marks    []mark     // ascending
	poisoned bool       // a NUMERIC_FAULT may have left NaN in the slot's memory
	grammar  *grammar   // of the last step that had one; how far the answer is in it, it finds out by itself
}

func (s *session) length() engine.Pos { return engine.Pos(len(s.tokens)) }

// state is what the cache is.
func (s *session) state() engine.CacheState {
	length := s.length()
	state := engine.CacheState{Length: length, Reach: []engine.Span{{From: 0, To: 0}}}
	add := func(from, to engine.Pos) {
		if last := &state.Reach[len(state.Reach)-1]; from <= last.To+1 {
			last.To = max(last.To, to)
		} else {
			state.Reach = append(state.Reach, engine.Span{From: from, To: to})
		}
	}
	for _, m := range s.marks {
		if m.at < s.least {
			add(m.at, m.at)
		}
	}
	if length > 0 {
		add(max(s.least, 1), length)
	}
	return state
}

// slots hands out slots, the lowest free one first: llama.cpp is fastest with slots without gaps.
type slots struct {
	taken    []bool
	poisoned int // taken slots that no session holds
}

func (s *slots) reset(n uint32) { *s = slots{taken: make([]bool, n)} }

func (s *slots) take() (slot uint32, ok bool) {
	for i, taken := range s.taken {
		if !taken {
			s.taken[i] = true
			return uint32(i), true
		}
	}
	return 0, false
}

// Open reserves a session.
func (e *shardEngine) Open(ctx context.Context, id engine.SessionID, contextTokens uint32) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	_, open := e.sessions[id]
	switch {
	case contextTokens == 0:
		return engine.Errorf(engine.Malformed, "session %s asks for a context of 0 tokens; ask for 1 or more", id)
	case contextTokens > e.request.ContextLimit:
		return engine.Errorf(engine.ContextOverflow, "session %s asks for %d tokens and the limit is %d", id, contextTokens, e.request.ContextLimit)
	case open:
		return engine.Errorf(engine.LifecycleViolation, "session %s is open already; release it first", id)
	}
	slot, ok := e.slots.take()
	if !ok {
		return engine.Errorf(engine.NoCapacity, "all %d sessions are taken; release one", e.request.Sessions)
	}
	e.sessions[id] = &session{slot: slot, reserved: contextTokens}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.metrics.SessionsOpen++
	e.metrics.CacheReserved += uint64(contextTokens)
	return nil
}

// Truncate makes a cache shorter.
func (e *shardEngine) Truncate(ctx context.Context, id engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	if err := e.enter(ctx); err != nil {
		return engine.CacheState{}, err
	}
	defer e.leave()
	s, open := e.sessions[id]
	if !open {
		return engine.CacheState{}, unknown(id)
	}
	state := s.state()
	if length >= s.length() {
		return state, nil
	}
	if !reaches(state.Reach, length) {
		return state, engine.Errorf(engine.CacheMismatch, "session %s cannot go back from %d to %d tokens; it reaches %v", id, state.Length, length, state.Reach)
	}
	if err := e.goBack(s, length); err != nil {
		return engine.CacheState{}, e.lose(err)
	}
	return s.state(), nil
}

func unknown(id engine.SessionID) error {
	return engine.Errorf(engine.SessionUnknown, "session %s is not open; open it and prefill again", id)
}

// Release frees a session.
func (e *shardEngine) Release(ctx context.Context, id engine.SessionID) error {
	e.mu.Lock()
	state := e.state
	e.mu.Unlock()
	if state != stateLoaded && state != stateLost {
		return nil
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, open := e.sessions[id]
	if !open {
		return nil
	}
	if err := e.native.truncate(s.slot, 0); err != nil {
		return e.lose(err)
	}
	delete(e.sessions, id)
	s.grammar.free()
	if s.poisoned {
		e.slots.poisoned++
	} else {
		e.slots.taken[s.slot] = false
	}
	e.mu.Lock()
	e.metrics.SessionsOpen--
	e.metrics.CacheReserved -= uint64(s.reserved)
	e.mu.Unlock()
	return e.clean()
}

// clean zeroes the caches and takes poisoned slots back into use as soon as no session holds any.
func (e *shardEngine) clean() error {
	if e.slots.poisoned == 0 || len(e.sessions) > 0 {
		return nil
	}
	if err := e.native.clear(); err != nil {
		return e.lose(err)
	}
	e.slots.reset(e.request.Sessions)
	return nil
}
