// Package footprint says what a shard takes of a machine's memory, from the header of the model, before anything is loaded:
// dgr plan divides by it, and the engine refuses by it what does not fit, instead of dying later.
//
// It estimates
//
//	weights   the own tensors, to the byte
//	cache     Σ own layers (keys + values) × element × cells × slots
//	overhead  96 MiB + 256 bytes × vocabulary + micro-batch × 4 bytes × the largest of
//	            vocabulary + 2 × width                (the tail's logits)
//	            3 × feed-forward + 3 × width
//	            7 × width + cells × (1 + heads)       (with flash attention: cells × 1.5 in place of it)
//
// where cells is the context rounded up to 256 and slots is the sessions and one more for the probe; keys and values are the
// KV heads times the length of a head, and an element takes 2 bytes with f16, 4 with f32, 34/32 with q8_0 and 18/32 with
// q4_0. Layers with a sliding window keep the whole context, since the engine goes back to any length. The last summand was
// measured on llama.cpp's CPU backend and holds for it within some MiB; 96 MiB is room for the process itself.
//
// What must stay out: which shard goes where, and what the machine has.
package footprint

import (
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Options say what the workers shall be able to do.
type Options struct {
	Context        uint32 // longest context of a session, tokens
	Sessions       uint32 // at once
	CacheType      string // one of CacheTypes
	MicroBatch     uint32 // tokens of one native micro-batch
	FlashAttention bool
}

// CellStep is what the length of a cache is a multiple of, in tokens.
const CellStep = 256

const (
	processBytes = 96 << 20
	tokenBytes   = 256 // of a worker's own tables, for each token of the vocabulary
)

// CacheTypes are the elements that a cache can have.
func CacheTypes() []string { return []string{"f32", "f16", "q8_0", "q4_0"} }

// Quantised says whether a cache of that type needs flash attention.
func Quantised(cacheType string) bool { return cacheType == "q8_0" || cacheType == "q4_0" }

// element is the bytes of an element of the cache, as a fraction.
func element(cacheType string) [2]uint64 {
	switch cacheType {
	case "f32":
		return [2]uint64{4, 1}
	case "q8_0":
		return [2]uint64{34, 32}
	case "q4_0":
		return [2]uint64{18, 32}
	}
	return [2]uint64{2, 1}
}

// Need is what a shard takes, in bytes.
type Need struct {
	Weights  uint64 `json:"weights"`
	Cache    uint64 `json:"cache"`
	Overhead uint64 `json:"overhead"`
}

// Total is the sum.
func (n Need) Total() uint64 { return n.Weights + n.Cache + n.Overhead }

// Plus is both together.
func (n Need) Plus(o Need) Need {
	return Need{n.Weights + o.Weights, n.Cache + o.Cache, n.Overhead + o.Overhead}
}

// Costs answers what any shard of a model needs, in constant time.
type Costs struct {
	layers             int
	weights, cache     []uint64 // of the layers before i, i from 0 to layers
	head, tail, shared uint64   // weights outside the layers
	tied               uint64   // the tail's copy of the token embedding, if it is no head
	inner, last        uint64   // overhead of a shard that is no tail, and of the tail
}

// NewCosts reads a model.
func NewCosts(m *gguf.Model, o Options) *Costs {
	n := int(m.NLayer())
	c := &Costs{layers: n, weights: make([]uint64, n+1), cache: make([]uint64, n+1)}
	for _, t := range m.Tensors {
		c.addTensor(m, t)
	}
	for il := range n {
		c.weights[il+1] += c.weights[il]
		c.cache[il+1] = c.cache[il] + cacheOf(m, uint32(il), o)
	}
	c.inner, c.last = overhead(m, o)
	return c
}

// addTensor counts a tensor where it belongs; weights holds the single layers until they are summed up.
func (c *Costs) addTensor(m *gguf.Model, t gguf.Tensor) {
	switch m.Role(t) {
	case gguf.RoleLayer:
		if il, _ := m.Layer(t); il < c.layers {
			c.weights[il+1] += t.Size
		} else { // a layer for multi-token prediction
			c.tail += t.Size
		}
	case gguf.RoleHead:
		c.head += t.Size
		if m.Tied() && t.Name == "token_embd.weight" {
			c.tied = t.Size
		}
	case gguf.RoleTail:
		c.tail += t.Size
	default:
		c.shared += t.Size
	}
}

// cells is the length of a cache for one session, in tokens.
func cells(o Options) uint64 { return (uint64(o.Context) + CellStep - 1) / CellStep * CellStep }

func cacheOf(m *gguf.Model, il uint32, o Options) uint64 {
	keys, values := m.CacheRow(il)
	e := element(o.CacheType)
	return (keys + values) * e[0] * cells(o) * uint64(o.Sessions+1) / e[1]
}

// overhead is what a shard needs beside weights and caches.
func overhead(m *gguf.Model, o Options) (inner, tail uint64) {
	heads, _ := m.Heads(0)
	ff, _ := m.KV.Uint(m.Architecture() + ".feed_forward_length")
	width, vocab := uint64(m.Embedding()), uint64(m.Vocab())
	mask := cells(o) * (1 + uint64(heads))
	if o.FlashAttention {
		mask = cells(o) * 3 / 2
	}
	row := max(7*width+mask, 3*ff+3*width)
	base := uint64(processBytes) + vocab*tokenBytes
	return base + 4*uint64(o.MicroBatch)*row, base + 4*uint64(o.MicroBatch)*max(row, vocab+2*width)
}

// Layers is how many the model has.
func (c *Costs) Layers() int { return c.layers }

// Least is what any shard takes at least beside its layers: that of a tail.
func (c *Costs) Least() uint64 { return c.last + c.tied }

// Need is what the shard [first, end) takes.
func (c *Costs) Need(first, end int) Need {
	n := Need{
		Weights:  c.weights[end] - c.weights[first] + c.shared,
		Cache:    c.cache[end] - c.cache[first],
		Overhead: c.inner,
	}
	if first == 0 {
		n.Weights += c.head
	}
	if end == c.layers {
		n.Weights += c.tail
		n.Overhead = c.last
		if first > 0 {
			n.Weights += c.tied
		}
	}
	return n
}
