package gguf

import "math"

// dense names the architectures whose attention is checked here in full. The value says whether rotation covers the
// whole of a head.
var dense = map[string]bool{"llama": true, "qwen2": true, "qwen3": true, "gemma3": false, "phi3": false}

// checkDense checks what the graphs of plain transformers assert.
func (m *Model) checkDense() error {
	whole, ok := dense[m.arch]
	if !ok {
		return nil
	}
	for _, step := range []func() error{m.checkHeads, func() error { return m.checkRotation(whole) }, m.checkNorm, m.checkWeights} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) checkHeads() error {
	for il := range m.blocks {
		heads, kv := m.Heads(il)
		if heads == 0 || kv == 0 || heads%kv != 0 {
			return m.bad("has %d attention heads and %d KV heads in layer %d, which cannot be: %s", heads, kv, il, convertAgain)
		}
	}
	return nil
}

func (m *Model) checkRotation(whole bool) error {
	k, v := m.HeadLength(m.blocks) // of layers without a window
	rot := uint64(k)
	if n, ok := m.KV.Uint(m.key("rope.dimension_count")); ok {
		rot = n
	}
	if k == 0 || k != v || rot == 0 || rot > uint64(k) || rot%2 != 0 || whole && rot != uint64(k) {
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
		if e, _ := t.Type.Block(); len(t.Dims) == 1 && e != 1 {
			return m.bad("has the vector %q quantized to %s, which nobody can compute with: %s", t.Name, t.Type, convertAgain)
		}
	}
	return nil
}
