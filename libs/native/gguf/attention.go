package gguf

// Heads is the number of attention heads and of KV heads of a layer; 0 where it has no attention or the header does not say.
func (m *Model) Heads(layer uint32) (heads, kv uint32) {
	at := func(name string) (uint32, bool) {
		v, ok := m.KV.Get(m.key(name))
		if !ok {
			return 0, false
		}
		n, _ := v.UintAt(int(layer))
		return uint32(min(n, 1<<32-1)), true
	}
	heads, _ = at("attention.head_count")
	kv, ok := at("attention.head_count_kv")
	if !ok {
		kv = heads
	}
	return heads, kv
}

// HeadLength is the length of a key and of a value of one head, in elements; 0 where the header does not say.
func (m *Model) HeadLength(layer uint32) (key, value uint32) {
	first, _ := m.Heads(0) // llama.cpp divides by those of layer 0
	if first > 0 {
		key = m.Embedding() / first
		value = key
	}
	if n, ok := m.KV.Uint(m.key("attention.key_length")); ok {
		key = uint32(min(n, 1<<32-1))
	}
	if n, ok := m.KV.Uint(m.key("attention.value_length")); ok {
		value = uint32(min(n, 1<<32-1))
	}
	if m.Sliding(layer) {
		if n, ok := m.KV.Uint(m.key("attention.key_length_swa")); ok {
			key = uint32(min(n, 1<<32-1))
		}
		if n, ok := m.KV.Uint(m.key("attention.value_length_swa")); ok {
			value = uint32(min(n, 1<<32-1))
		}
	}
	return key, value
}

// swaPeriod is the default pattern of sliding layers by architecture, as the pinned llama.cpp has it: of period layers
// all slide but one, the last or, where first is set, the first.
var swaPeriod = map[string]struct {
	period uint64
	first  bool
}{
	"afmoe": {4, false}, "cohere2": {4, false}, "cohere2moe": {4, true}, "exaone-moe": {4, false}, "exaone4": {4, false},
	"gemma2": {2, false}, "gemma3": {6, false}, "gemma3n": {5, false}, "laguna": {4, true}, "llama4": {4, false},
	"mellum": {4, false}, "muse-glimmer": {4, false}, "olmo2": {4, false}, "gpt-oss": {2, false}, "plamo3": {8, false},
	"smallthinker": {4, true},
}

// Window is the width of the sliding window, in tokens, of the layers that have one; 0 where none has.
func (m *Model) Window() uint32 {
	if _, ok := swaPeriod[m.arch]; !ok {
		return 0 // as in phi3, where llama.cpp ignores the key
	}
	return m.number("attention.sliding_window")
}

// Sliding says whether a layer keeps only the last Window tokens. Where the pattern of an architecture is not known here
// it says no.
func (m *Model) Sliding(layer uint32) bool {
	if m.Window() == 0 || layer >= m.NLayer() {
		return false
	}
	p := swaPeriod[m.arch]
	if v, ok := m.KV.Get(m.key("attention.sliding_window_pattern")); ok {
		n, ok := v.UintAt(int(layer))
		if v.Type() == TypeArray {
			return ok && n != 0
		}
		if ok {
			p.period = n
		}
	}
	switch {
	case p.period == 0:
		return true
	case p.first:
		return uint64(layer)%p.period != 0
	}
	return uint64(layer)%p.period < p.period-1
}

// CacheRow is the elements that one token takes in the caches of keys and values of a layer; (0, 0) for a layer without
// attention. Layers of recurrent architectures keep a fixed state instead, which is not counted here.
func (m *Model) CacheRow(layer uint32) (keys, values uint64) {
	_, kv := m.Heads(layer)
	k, v := m.HeadLength(layer)
	if m.KV.Has(m.key("attention.key_length_mla")) {
		v = 0 // latent attention reads values out of the keys
	}
	return uint64(kv) * uint64(k), uint64(kv) * uint64(v)
}
