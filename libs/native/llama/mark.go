//go:build llama && cgo

package llama

import (
	"context"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// maxMarks is how many marks a session may hold: the steps of a first window, and a few that one may want to return to.
const maxMarks = 12

// mark is a checkpoint. Nobody changes data, so that copies of a session share it.
type mark struct {
	at   engine.Pos
	data []byte // what native code gave
}

func reaches(spans []engine.Span, length engine.Pos) bool {
	return slices.ContainsFunc(spans, func(s engine.Span) bool { return s.From <= length && length <= s.To })
}

// marked is the mark at a length, or nil.
func (s *session) marked(at engine.Pos) *mark {
	i := slices.IndexFunc(s.marks, func(m mark) bool { return m.at == at })
	if i < 0 {
		return nil
	}
	return &s.marks[i]
}

// goBack makes a cache length tokens long, which its reach holds. The caller holds the turn; an error is the loss of the
// engine.
func (e *shardEngine) goBack(s *session, length engine.Pos) error {
	var err error
	if m := s.marked(length); m != nil {
		err = e.native.returnTo(s.slot, length, m.data)
	} else {
		err = e.native.truncate(s.slot, length)
	}
	if err != nil {
		return err
	}
	s.tokens = s.tokens[:length]
	s.marks = slices.DeleteFunc(s.marks, func(m mark) bool { return m.at > length })
	return e.measure(s)
}

// measure asks native code how far a cache goes back. The caller holds the turn.
func (e *shardEngine) measure(s *session) (err error) {
	if e.native.info.window > 0 {
		s.least, err = e.native.reach(s.slot)
	}
	return err
}

// Mark keeps a checkpoint.
func (e *shardEngine) Mark(ctx context.Context, id engine.SessionID) (engine.CacheState, error) {
	if err := e.enter(ctx); err != nil {
		return engine.CacheState{}, err
	}
	defer e.leave()
	s, open := e.sessions[id]
	switch {
	case !open:
		return engine.CacheState{}, unknown(id)
	case s.length() == 0 || s.marked(s.length()) != nil:
		return s.state(), nil
	case e.native.info.window == 0:
		return s.state(), engine.Errorf(engine.NoCapacity, "session %s holds no marks: it goes back to any length", id)
	case len(s.marks) >= maxMarks:
		return s.state(), engine.Errorf(engine.NoCapacity, "session %s holds all %d marks that it may; unmark one", id, maxMarks)
	}
	data, err := e.native.mark(s.slot)
	if err != nil {
		return engine.CacheState{}, e.lose(err)
	}
	s.marks = append(s.marks, mark{at: s.length(), data: data})
	return s.state(), nil
}

// Unmark drops a checkpoint.
func (e *shardEngine) Unmark(ctx context.Context, id engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	if err := e.enter(ctx); err != nil {
		return engine.CacheState{}, err
	}
	defer e.leave()
	s, open := e.sessions[id]
	if !open {
		return engine.CacheState{}, unknown(id)
	}
	s.marks = slices.DeleteFunc(s.marks, func(m mark) bool { return m.at == length })
	return s.state(), nil
}

// Copy fills an empty cache: native code copies all of a slot, and what is too much is cut off.
func (e *shardEngine) Copy(ctx context.Context, from, to engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	if err := e.enter(ctx); err != nil {
		return engine.CacheState{}, err
	}
	defer e.leave()
	source, open := e.sessions[from]
	if !open {
		return engine.CacheState{}, unknown(from)
	}
	target, open := e.sessions[to]
	if !open {
		return engine.CacheState{}, unknown(to)
	}
	state := source.state()
	switch {
	case target.length() > 0:
		return target.state(), engine.Errorf(engine.CacheMismatch, "session %s holds %d tokens; only an empty one takes a copy", to, target.length())
	case length > state.Length || !reaches(state.Reach, length):
		return target.state(), engine.Errorf(engine.CacheMismatch, "session %s of %d tokens cannot be copied at %d; it reaches %v", from, state.Length, length, state.Reach)
	case uint64(length) > uint64(target.reserved):
		return target.state(), engine.Errorf(engine.ContextOverflow, "session %s has room for %d tokens; %d do not fit", to, target.reserved, length)
	case length == 0:
		return target.state(), nil
	}
	if err := e.native.copy(source.slot, target.slot); err != nil {
		return engine.CacheState{}, e.lose(err)
	}
	target.tokens, target.marks = slices.Clone(source.tokens), slices.Clone(source.marks)
	target.poisoned = target.poisoned || source.poisoned
	var err error
	if length < state.Length {
		err = e.goBack(target, length)
	} else {
		err = e.measure(target)
	}
	if err != nil {
		return engine.CacheState{}, e.lose(err)
	}
	return target.state(), nil
}
