package session

import (
	"slices"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/cachehash"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// FeaturePrefix is the feature's name in Capability.
const FeaturePrefix = "cache.prefix"

// Kept is a cache that outlived its session, for others of the same cache domain to begin with a copy of it.
type Kept struct {
	Seat     engine.SessionID // in the engine
	Chain    *cachehash.Chain
	Reserved uint32        // tokens
	Reach    []engine.Span // lengths that it can go back to
	marks    []mark
}

// kept is the cache as somebody else may keep it.
func (c *cache) kept(seat engine.SessionID) Kept {
	return Kept{Seat: seat, Chain: c.chain, Reserved: c.reserved, Reach: c.reach, marks: c.marks}
}

// Offered is the longest of the offers that a copy of k can be, of at most most tokens; 0: none.
func (k *Kept) Offered(copies engine.CopyAbility, offers []*workerpb.PrefixOffer, most uint32) uint32 {
	longest := uint32(0)
	for _, o := range offers {
		n := o.GetLength()
		h, ok := k.Chain.At(n)
		copied := copies == engine.CopyPrefix || n == k.Chain.Len() || holds(k.Reach, n)
		if ok && copied && string(h[:]) == string(o.GetChainHash()) && n <= most {
			longest = max(longest, n)
		}
	}
	return longest
}

// Covers says whether all that other has, and can go back to, k has as well.
func (k *Kept) Covers(other *Kept) bool {
	n := other.Chain.Len()
	h, ok := k.Chain.At(n)
	if !ok || h != other.Chain.Last() || n != k.Chain.Len() && !holds(k.Reach, n) {
		return false
	}
	return !slices.ContainsFunc(other.marks, func(m mark) bool { return !holds(k.Reach, m.at) })
}

// adopt looks for a kept prefix to begin with, where the session holds nothing of its own. It is copied at once, so that
// nobody has to keep it in place until all hops have opened.
func (c *Core) adopt() {
	c.opening.found = c.cache.state()
	if c.cache.length() > 0 || len(c.open.GetPrefix()) == 0 || !c.hop.on(FeaturePrefix) {
		c.passOpenOn()
		return
	}
	c.opening.stage = stageAdopt
	c.submit(&job{}, Work{Kind: WorkAdopt, Session: c.seat, Context: c.cache.reserved, Offers: c.open.GetPrefix()})
}

// adopted goes on with the copy, or with nothing: no kept prefix makes an opening fail.
func (c *Core) adopted(o Outcome) {
	if c.engineLost(o.Err) {
		return
	}
	if k := o.Kept; o.Err == nil && k != nil && o.Cache.Length > 0 {
		c.opening.adopted = c.opening.stage == stageAdopt
		c.cache.chain = k.Chain.Clone(uint32(o.Cache.Length))
		c.cache.marks = slices.Clone(k.marks)
		c.cache.now(o.Cache)
	}
	if c.state == tables.SessionOpening && c.opening.stage == stageAdopt {
		c.passOpenOn()
	}
}

// offers is the prefixes that this hop can be, for the next one to strike those that it cannot.
func (c *Core) offers() []*workerpb.PrefixOffer {
	var left []*workerpb.PrefixOffer
	for _, o := range c.open.GetPrefix() {
		if c.cache.canBe(o.GetLength()) && c.cache.at(o.GetLength(), o.GetChainHash()) {
			left = append(left, o)
		}
	}
	return left
}
