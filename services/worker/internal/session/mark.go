package session

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// mark is a checkpoint that the engine holds: a length that can be returned to where the cache does not go back by itself.
type mark struct {
	at        uint32
	prefilled bool // it is the end of a prefill, which the next turn may want
}

func (c *cache) marked(at uint32) bool {
	return slices.ContainsFunc(c.marks, func(m mark) bool { return m.at == at })
}

// dropBehind forgets the marks behind length, as the engine does when it goes back there.
func (c *cache) dropBehind(length uint32) {
	c.marks = slices.DeleteFunc(c.marks, func(m mark) bool { return m.at > length })
	c.prefilled = false
}

// markFor says which marks the engine is to drop, and which to take, so that a step that begins now can be undone. ok is false
// when all marks are at the starts of steps that have no terminal reply yet: then it waits for one of them.
//
// Every hop of a route sees the same steps with the same starts, so that all mark the same lengths.
func (c *Core) markFor(s *step) (unmark []uint32, take *mark, ok bool) {
	at := c.cache.length()
	if s.truncate() != nil || c.hop.Shard.Cache.Truncate == engine.TruncateAny || at == 0 || c.cache.marked(at) {
		return nil, nil, true
	}
	take = &mark{at: at, prefilled: c.cache.prefilled && s.message.GetPrefill() == nil}
	if uint32(len(c.cache.marks)) < c.hop.Shard.Cache.Marks {
		return nil, take, true
	}
	end := c.newestEnd()
	idle := -1
	for i, m := range c.cache.marks {
		if !c.needs(m) && (idle < 0 || c.cache.marks[idle].at == end) {
			idle = i
		}
	}
	if idle < 0 {
		return nil, nil, false
	}
	return []uint32{c.cache.marks[idle].at}, take, true
}

// needs says whether a step without terminal reply may have to be undone to a mark.
func (c *Core) needs(m mark) bool {
	return slices.ContainsFunc(c.steps.open, func(s *step) bool { return s.applied && s.start == m.at })
}

// newestEnd is the end of the newest prefill that is marked; 0: none.
func (c *Core) newestEnd() uint32 {
	newest := uint32(0)
	for _, m := range c.cache.marks {
		if m.prefilled {
			newest = m.at
		}
	}
	return newest
}

// marked takes over what became of the marks of a job.
func (c *Core) marked(j *job, o Outcome) {
	if at := o.Result.Cache; at.Length == engine.Pos(c.cache.length()) && len(at.Reach) > 0 {
		c.cache.reach = at.Reach // also of a step that failed
	}
	if !o.Marked {
		return
	}
	c.cache.marks = slices.DeleteFunc(c.cache.marks, func(m mark) bool { return slices.Contains(j.unmark, m.at) })
	if j.mark != nil {
		c.cache.marks = append(c.cache.marks, *j.mark)
	}
}

func positions(lengths []uint32) []engine.Pos {
	var out []engine.Pos
	for _, n := range lengths {
		out = append(out, engine.Pos(n))
	}
	return out
}

// ability is how this hop's caches go back.
func (c *Core) ability() *workerpb.CacheAbility {
	a := c.hop.Shard.Cache
	return &workerpb.CacheAbility{
		Truncate: workerpb.TruncateAbility(a.Truncate), Copy: workerpb.CopyAbility(a.Copy), Marks: proto.Uint32(a.Marks),
		Capacity: c.open.GetContextTokens(),
	}
}

// weaker is what both can do. Greater numbers are weaker. A cache that goes back to any length needs no marks: it does not
// count those of others down.
func weaker(a, b *workerpb.CacheAbility) *workerpb.CacheAbility {
	marks := min(a.GetMarks(), b.GetMarks())
	switch anyLength := workerpb.TruncateAbility_TRUNCATE_ABILITY_ANY; {
	case a.GetTruncate() == anyLength && b.GetTruncate() != anyLength:
		marks = b.GetMarks()
	case b.GetTruncate() == anyLength && a.GetTruncate() != anyLength:
		marks = a.GetMarks()
	}
	return &workerpb.CacheAbility{
		Truncate: max(a.GetTruncate(), b.GetTruncate()), Copy: max(a.GetCopy(), b.GetCopy()),
		Marks: proto.Uint32(marks), Capacity: min(a.GetCapacity(), b.GetCapacity()),
	}
}

// WindowSteps is the steps of a window that may be granted where caches go back so: each may need a mark.
func WindowSteps(steps uint32, a *workerpb.CacheAbility) uint32 {
	if a.GetTruncate() == workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE {
		return min(steps, max(a.GetMarks(), 1))
	}
	return steps
}
