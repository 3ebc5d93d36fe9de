// Package plan is `dgr plan`: which layers of a model go to which machine, from the memory of the machines and the header
// of the model, before anything is started.
//
// It estimates what a worker needs as
//
//	weights   the own tensors, to the byte
//	cache     Σ own layers (keys + values) × element × cells × slots
//	overhead  96 MiB + 256 bytes × vocabulary + micro-batch × 4 bytes × the largest of
//	            vocabulary + 2 × width                (the tail's logits)
//	            3 × feed-forward + 3 × width
//	            7 × width + cells × (1 + heads)       (with flash attention: cells × 1.5 in place of it)
//
// where cells is the context rounded up to 256 and slots is the sessions and one more for the probe; keys and values are the
// KV heads times the length of a head, and an element takes 2 bytes with f16, 4 with f32 and 34/32 with q8_0. Layers
// with a sliding window keep the whole context, since the engine goes back to any length. The last summand was measured
// on llama.cpp's CPU backend and holds for it within some MiB; 96 MiB is room for the process itself.
//
// What must stay out: starting workers, and measured speed.
package plan

import (
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Options say what the workers shall be able to do.
type Options struct {
	Context        uint32 // longest context of a session, tokens
	Sessions       uint32 // at once
	CacheType      string // f16, f32 or q8_0
	MicroBatch     uint32 // tokens of one native micro-batch
	FlashAttention bool
	Fewest         bool // leave machines unused where the others suffice
}

const (
	processBytes = 96 << 20
	tokenBytes   = 256 // of a worker's own tables, for each token of the vocabulary
	cellStep     = 256 // a cache is a multiple of this many tokens long
)

// cacheElement is the bytes of an element, as a fraction.
var cacheElement = map[string][2]uint64{"f32": {4, 1}, "f16": {2, 1}, "q8_0": {34, 32}}

// Need is what a shard takes, in bytes.
type Need struct {
	Weights  uint64 `json:"weights"`
	Cache    uint64 `json:"cache"`
	Overhead uint64 `json:"overhead"`
}

// Total is the sum.
func (n Need) Total() uint64 { return n.Weights + n.Cache + n.Overhead }

func (n Need) plus(o Need) Need {
	return Need{n.Weights + o.Weights, n.Cache + o.Cache, n.Overhead + o.Overhead}
}

// costs answers what any shard of a model needs, in constant time.
type costs struct {
	layers             int
	weights, cache     []uint64 // of the layers before i, i from 0 to layers
	head, tail, shared uint64   // weights outside the layers
	tied               uint64   // the tail's copy of the token embedding, if it is no head
	inner, last        uint64   // overhead of a shard that is no tail, and of the tail
}

func newCosts(m *gguf.Model, o Options) *costs {
	n := int(m.NLayer())
	c := &costs{layers: n, weights: make([]uint64, n+1), cache: make([]uint64, n+1)}
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
func (c *costs) addTensor(m *gguf.Model, t gguf.Tensor) {
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
func cells(o Options) uint64 { return (uint64(o.Context) + cellStep - 1) / cellStep * cellStep }

func cacheOf(m *gguf.Model, il uint32, o Options) uint64 {
	keys, values := m.CacheRow(il)
	e := cacheElement[o.CacheType]
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

// need is what the shard [first, end) takes.
func (c *costs) need(first, end int) Need {
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

// layerRange names a shard as the rest of the system does.
func layerRange(first, end int) engine.LayerRange {
	return engine.LayerRange{First: uint32(first), End: uint32(end)}
}
