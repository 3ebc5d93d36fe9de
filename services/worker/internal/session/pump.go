package session

import (
	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// job is what the engine does for a session.
type job struct {
	step    *step // whose tokens are evaluated, or whose Truncate is done; nil: another matter
	tokens  []uint32
	iterate bool   // an iteration, not the step's own tokens
	undo    bool   // a truncation that takes failed steps back
	stopped bool   // StopWork was asked for
	prefill bool   // the step is a Prefill
	context uint32 // tokens that are reserved
	unmark  []uint32
	mark    *mark // is taken before the step; nil: none
}

// pump begins whatever can begin now, until nothing more can.
func (c *Core) pump() {
	for c.advance() {
	}
	c.flushCancel()
}

func (c *Core) advance() bool {
	switch c.state {
	case tables.SessionOpening:
		return c.advanceOpening()
	case tables.SessionUnwinding:
		return c.resolve()
	case tables.SessionActive:
		return c.dispatch()
	}
	return false
}

func (c *Core) submit(j *job, w Work) {
	c.job = j
	c.emit(Submit{w})
}

// dispatch gives the engine the next thing whose turn has come.
func (c *Core) dispatch() bool {
	if c.job != nil {
		return false
	}
	for _, s := range c.steps.open {
		switch {
		case s.answer != nil:
			return c.settle(s)
		case s.run != nil && s.state == tables.StepForwarded:
			return c.iterate(s)
		case s.state == tables.StepHeld:
			return c.beginStep(s)
		}
	}
	return false
}

// beginStep begins a held step that is the first of the held ones.
func (c *Core) beginStep(s *step) bool {
	if s.frames != nil || s.truncate() != nil && c.steps.open[0] != s {
		return false
	}
	if err := c.fence(s); err != nil {
		if c.immune(s) { // the hop before cannot take it back
			err = sessionScope(err)
		}
		c.failHere(s, c.mine(err))
		return true
	}
	unmark, mark, ok := c.markFor(s)
	if !ok || !c.roomFor(s) {
		return false
	}
	s.start, s.sampled = c.cache.length(), 0
	if t := s.truncate(); t != nil {
		if t.GetLength() >= c.cache.length() {
			c.refund(s)
			c.truncated(s)
			return true
		}
		c.submit(&job{step: s}, Work{Kind: WorkTruncate, Session: c.seat, Length: engine.Pos(t.GetLength())})
		return true
	}
	j := &job{step: s, tokens: tokensOf(s.message), prefill: s.message.GetPrefill() != nil, unmark: unmark, mark: mark}
	w := c.work(s, s.tokens, s.data)
	w.Unmark, w.Mark = positions(unmark), mark != nil
	c.submit(j, w)
	return true
}

// work is a call of the engine for a step or an iteration of it.
func (c *Core) work(s *step, tokens []engine.TokenID, boundary []byte) Work {
	w := engine.Step{Session: c.seat, Start: engine.Pos(c.cache.length()), Tokens: tokens}
	if width := c.hop.widthIn(); width > 0 {
		w.Boundary = engine.Rows{N: uint32(len(tokens)), Width: width, Data: boundary}
	}
	if c.hop.Shard.Tail() {
		w.Want, w.Sampling = s.want, s.sampling
		if w.Want != engine.WantSample {
			w.Sampling = nil
		}
	}
	hops := 0
	if c.place.first {
		hops = 1 + c.place.below
	}
	return Work{Kind: WorkStep, Session: c.seat, Step: w, Hops: hops}
}

// fence is the rules that a step must keep when its turn comes.
func (c *Core) fence(s *step) *fault.Error {
	length := c.cache.length()
	expect := s.message.GetExpectCache()
	switch {
	case s.after != c.steps.top() && c.steps.hasFailed(s.after):
		return predecessorFailed(s.after)
	case s.after != c.steps.top():
		return c.mismatch("the step builds on step %d, the last one here is %d", s.after, c.steps.top())
	case expect.GetLength() != length && expect != nil && expect.Length != nil:
		return c.mismatch("the step expects %d tokens, there are %d", expect.GetLength(), length)
	case len(expect.GetChainHash()) > 0 && !c.cache.at(length, expect.GetChainHash()):
		return c.mismatch("the step expects other tokens than the %d that are there", length)
	}
	if t := s.truncate(); t != nil {
		if to := t.GetLength(); to > 0 && to < length && !(c.cache.canBe(to) && (c.place.last || holds(c.belowReach, to))) {
			return c.mismatch("the cache of %d tokens cannot go back to %d", length, t.GetLength())
		}
		return nil
	}
	need := uint64(length) + uint64(len(s.tokens))
	if s.run != nil {
		need += uint64(s.run.max) - 1
	}
	if need > uint64(c.open.GetContextTokens()) {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW, "it needs %d tokens, %d are reserved",
			need, c.open.GetContextTokens()).With(func(e *fault.Error) { e.Detail = c.cache.detail() })
	}
	return nil
}

func predecessorFailed(id uint64) *fault.Error {
	return fault.New(workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED, "step %d", id)
}

func (c *Core) mismatch(format string, args ...any) *fault.Error {
	return fault.New(workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH, format, args...).
		With(func(e *fault.Error) { e.Detail = c.cache.detail() })
}

// roomFor says whether there is room downstream for all that a step makes, here for what waits to be sent, and above for its
// responses; the latter two are set aside.
func (c *Core) roomFor(s *step) bool {
	out := int64(c.sizeOut(len(s.tokens)))
	if !c.place.last && (!c.flow.out.has(1, out) || c.flow.down < out) {
		return false
	}
	need := c.responses(s)
	if !c.hasRoom(need) {
		return false
	}
	if c.place.first {
		c.flow.receive.take(need.steps, need.bytes)
	}
	c.flow.up -= need.bytes
	s.reserved = need
	return true
}

// hasRoom says whether the driver has room for responses, and this hop for those that the upstream has not taken.
func (c *Core) hasRoom(need credit) bool {
	return (!c.place.first || c.flow.receive.has(need.steps, need.bytes)) && c.flow.up >= need.bytes
}

// sizeOut is the bytes of the boundary of rows tokens that this hop makes.
func (c *Core) sizeOut(rows int) uint64 {
	return uint64(rows) * uint64(c.hop.widthOut()) * float
}

// responses is what the first answer to a step takes of the room above. Only the first hop looks at the driver's.
func (c *Core) responses(s *step) credit {
	row := int64(c.hop.Shard.Vocab) * float
	switch {
	case c.place.hub && !c.hop.Shard.Tail():
		return credit{0, int64(c.sizeOut(len(s.tokens)))}
	case s.want == engine.WantSample:
		return credit{1, 0}
	case s.want == engine.WantLogitsLast:
		return credit{0, row}
	case s.want == engine.WantLogitsAll:
		return credit{0, row * int64(len(s.tokens))}
	}
	return credit{}
}

// iterate begins the next iteration of a run, where one is due; nothing else runs before the run ends.
func (c *Core) iterate(s *step) bool {
	r := s.run
	if r.next == nil || r.next.frame != nil {
		return false
	}
	if c.place.first {
		if !c.flow.receive.has(1, 0) {
			return false
		}
		c.flow.receive.take(1, 0)
		s.reserved.steps++
		r.begun++
	}
	it := r.next
	r.now, r.next = it, nil
	c.submit(&job{step: s, tokens: []uint32{it.token}, iterate: true},
		c.work(s, []engine.TokenID{engine.TokenID(it.token)}, it.data))
	return true
}
