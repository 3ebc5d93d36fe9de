package fake

import (
	"slices"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// cache is one session: its tokens, and for each the state of every own layer after it.
type cache struct {
	reserved uint32
	tokens   []engine.TokenID
	states   []uint64   // len(tokens) × depth
	kept     engine.Pos // with TruncateWindow: the first position that the window still holds
	marks    []mark     // ascending, at most Options.Marks
}

// mark is a checkpoint: what the window held at a length.
type mark struct{ at, kept engine.Pos }

func (c *cache) length() engine.Pos { return engine.Pos(len(c.tokens)) }

// last is the states after the last token, nil when there is none.
func (c *cache) last(depth int) []uint64 {
	if len(c.tokens) == 0 {
		return nil
	}
	return c.states[len(c.states)-depth:]
}

// apply takes over what a step computed.
func (c *cache) apply(options Options, tokens []engine.TokenID, states []uint64) {
	c.tokens = append(c.tokens, tokens...)
	c.states = append(c.states, states...)
	// Like a real sliding-window cache it keeps a little more than it sees.
	if options.Truncate == engine.TruncateWindow && c.length() > 2*engine.Pos(options.Window) {
		c.kept = max(c.kept, c.length()-2*engine.Pos(options.Window))
	}
}

// markHere keeps a checkpoint; false means that limit are kept already.
func (c *cache) markHere(limit uint32) bool {
	at := c.length()
	if at == 0 || c.marked(at) != nil {
		return true
	}
	if len(c.marks) >= int(limit) {
		return false
	}
	c.marks = append(c.marks, mark{at: at, kept: c.kept})
	return true
}

// marked is the checkpoint at a length, or nil.
func (c *cache) marked(at engine.Pos) *mark {
	for i := range c.marks {
		if c.marks[i].at == at {
			return &c.marks[i]
		}
	}
	return nil
}

func (c *cache) unmark(at engine.Pos) {
	c.marks = slices.DeleteFunc(c.marks, func(m mark) bool { return m.at == at })
}

// first is a cache of the first length tokens of c.
func (c *cache) first(depth int, length engine.Pos, reserved uint32) *cache {
	copied := &cache{
		reserved: reserved, tokens: slices.Clone(c.tokens), states: slices.Clone(c.states), kept: c.kept, marks: slices.Clone(c.marks),
	}
	if length < copied.length() {
		copied.truncate(depth, length)
	}
	return copied
}

// state is what the cache is and where it can go back to.
func (c *cache) state(options Options) engine.CacheState {
	length := c.length()
	spans := []engine.Span{{From: 0, To: 0}}
	for _, m := range c.marks {
		spans = append(spans, engine.Span{From: m.at, To: m.at})
	}
	from := length
	switch {
	case options.Truncate == engine.TruncateAny, options.Truncate == engine.TruncateWindow && c.kept == 0:
		from = 0
	case options.Truncate == engine.TruncateWindow:
		from = c.kept + engine.Pos(options.Window)
	}
	spans = append(spans, engine.Span{From: min(from, length), To: length})
	return engine.CacheState{Length: length, Reach: union(spans)}
}

// union sorts spans and joins those that touch.
func union(spans []engine.Span) []engine.Span {
	slices.SortFunc(spans, func(a, b engine.Span) int { return int(a.From) - int(b.From) })
	joined := spans[:1]
	for _, span := range spans[1:] {
		if last := &joined[len(joined)-1]; span.From <= last.To+1 {
			last.To = max(last.To, span.To)
			continue
		}
		joined = append(joined, span)
	}
	return joined
}

// truncate goes back to length, which state's reach holds: to a checkpoint where there is one.
func (c *cache) truncate(depth int, length engine.Pos) {
	c.tokens = c.tokens[:length]
	c.states = c.states[:int(length)*depth]
	if m := c.marked(length); m != nil {
		c.kept = m.kept
	}
	c.marks = slices.DeleteFunc(c.marks, func(m mark) bool { return m.at > length })
	if length == 0 {
		c.kept = 0
	}
}

func reaches(spans []engine.Span, length engine.Pos) bool {
	return slices.ContainsFunc(spans, func(s engine.Span) bool { return s.From <= length && length <= s.To })
}
