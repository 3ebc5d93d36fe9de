package gguf

import "math"

// attention is what the graph of an architecture takes for granted.
type attention struct {
	whole  bool // rotation covers the whole of a head
	square bool // all heads together are as wide as the hidden state
}

// dense names the architectures whose attention is checked here in full.
var dense = map[string]attention{"llama": {whole: true}, "qwen2": {true, true}, "qwen3": {whole: true}, "gemma3": {}, "phi3": {square: true}}

// checkDense checks what the graphs of plain transformers assert.
func (m *Model) checkDense() error {
	a, ok := dense[m.arch]
	if !ok {
		return nil
	}
	for _, step := range []func() error{func() error { return m.checkHeads(a) }, func() error { return m.checkRotation(a) }, m.checkNorm, m.checkWeights} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) checkHeads(a attention) error {
	k, _ := m.HeadLength(m.blocks) // of layers without a window
	for il := range m.blocks {
		heads, kv := m.Heads(il)
		if heads == 0 || kv == 0 || heads%kv != 0 {
			return m.bad("has %d attention heads and %d KV heads in layer %d, which cannot be: %s", heads, kv, il, convertAgain)
		}
		if width := m.Embedding(); a.square && uint64(heads)*uint64(k) != uint64(width) {
			return m.bad("has %d attention heads of length %d in layer %d and a hidden state of %d values, which cannot be: %s", heads, k, il, width, convertAgain)
		}
	}
	return nil
}

func (m *Model) checkRotation(a attention) error {
	k, v := m.HeadLength(m.blocks)
	rot := uint64(k)
	if n, ok := m.KV.Uint(m.key("rope.dimension_count")); ok {
		rot = n
	}
	if k == 0 || k != v || rot == 0 || rot > uint64(k) || rot%2 != 0 || a.whole && rot != uint64(k) {
		return m.bad("has attention heads of key length %d, value length %d and %d rotated, which cannot be: %s", k, v, rot, convertAgain)
	}
	for _, swa := range []struct {
		name string
		want uint64
	}{{"attention.key_length_swa", uint64(k)}, {"attention.value_length_swa", uint64(v)}, {"rope.dimension_count_swa", rot}} {
		if n, ok := m.KV.Uint(m.key(swa.name)); ok && n != swa.want {
			return m.bad("has a key %q of %d, and %d in the layers without a window, which architecture %q cannot compute: %s",
				m.key(swa.name), n, swa.want, m.arch, convertAgain)
		}
	}
	return nil
}

func (m *Model) checkNorm() error {
	key := m.key("attention.layer_norm_rms_epsilon")
	v, ok := m.KV.Get(key)
	if !ok {
		return m.bad("has no key %q: %s", key, convertAgain)
	}
	if x, ok := v.Float(); !ok || !(x >= 0) || math.IsInf(x, 0) {
		return m.bad("has a key %q that is no number of 0 or more: %s", key, convertAgain)
	}
	return nil
}

func (m *Model) checkWeights() error {
	for _, t := range m.Tensors {
		switch t.Type {
		case I8, I16, I32, I64, F64, Q8_1, Q8K:
			return m.bad("has tensor %q of type %s, which cannot hold weights: %s", t.Name, t.Type, convertAgain)
		}
		if t.Elements() == 0 {
			return m.bad("has the empty tensor %q of shape %s: %s", t.Name, t.Shape(), convertAgain)
		}
		if len(t.Dims) == 1 && t.Type != F32 {
			return m.bad("has the vector %q of type %s, and llama.cpp computes with f32 vectors alone: %s", t.Name, t.Type, convertAgain)
		}
	}
	return nil
}
