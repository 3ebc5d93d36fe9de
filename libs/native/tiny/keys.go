package tiny

import "github.com/distributed-gguf-runtime/dgr/libs/native/gguf"

// epsilon of all norms, and bases of the rotations.
const (
	normEpsilon   = 1e-5
	ropeBase      = 10_000
	ropeBaseLong  = 1_000_000 // gemma3's layers without a window
	ropeBaseShort = 10_000
)

// keys is the model's metadata.
func (s Spec) keys() []gguf.KeyValue {
	arch := s.Arch
	if s.Claim != "" {
		arch = s.Claim
	}
	var kv []gguf.KeyValue
	add := func(key string, v gguf.Value) { kv = append(kv, gguf.KeyValue{Key: key, Value: v}) }
	u32 := func(key string, n int) { add(arch+"."+key, gguf.Uint32(uint32(n))) }
	f32 := func(key string, x float32) { add(arch+"."+key, gguf.Float32(x)) }

	add("general.architecture", gguf.String(arch))
	add("general.name", gguf.String(s.Name))
	add("general.file_type", gguf.Uint32(fileType(s.Type)))
	u32("block_count", s.Layers)
	u32("context_length", s.Context)
	u32("embedding_length", s.Embd)
	u32("feed_forward_length", s.FF)
	u32("attention.head_count", s.Heads)
	u32("attention.head_count_kv", s.KVHeads)
	u32("attention.key_length", s.HeadLength)
	u32("attention.value_length", s.HeadLength)
	u32("rope.dimension_count", s.HeadLength)
	u32("vocab_size", s.Vocab)
	f32("attention.layer_norm_rms_epsilon", normEpsilon)
	switch s.Arch {
	case "gemma3":
		f32("rope.freq_base", ropeBaseLong)
		if s.SlidingWindow > 0 {
			u32("attention.sliding_window", s.SlidingWindow)
			f32("rope.freq_base_swa", ropeBaseShort)
		}
	case "phi3":
		f32("rope.freq_base", ropeBase)
		u32("rope.scaling.original_context_length", max(s.Context/2, 1))
		f32("rope.scaling.attn_factor", 1.1)
	default:
		f32("rope.freq_base", ropeBase)
	}
	return append(kv, s.vocabulary()...)
}

// fileType is general.file_type for matrices of type t.
func fileType(t gguf.Type) uint32 {
	switch t {
	case gguf.F16:
		return 1
	case gguf.Q8_0:
		return 7
	}
	return 0
}
