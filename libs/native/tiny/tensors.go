package tiny

import (
	"fmt"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// tensors is the model's directory, as the pinned llama.cpp asks for it, in the order of evaluation.
func (s Spec) tensors() []gguf.TensorData {
	// small enough for the layers to outweigh it; else a tied model only repeats its input
	embedding := 0.5
	if s.Tied {
		embedding = 0.1
	}
	if s.Arch == "gemma3" { // which multiplies it by √Embd
		embedding /= sqrt(s.Embd)
	}
	list := []gguf.TensorData{s.matrix("token_embd.weight", s.Embd, s.Vocab, embedding)}
	switch s.Arch {
	case "llama":
		list = append(list, s.vector("rope_freqs.weight", s.HeadLength/2, 2, 0.5))
	case "phi3":
		list = append(list, s.vector("rope_factors_long.weight", s.HeadLength/2, 2, 0.5), s.vector("rope_factors_short.weight", s.HeadLength/2, 1, 0.05))
	}
	for il := range s.Layers {
		list = append(list, s.layer(fmt.Sprintf("blk.%d.", il))...)
	}
	list = append(list, s.vector("output_norm.weight", s.Embd, 1, 0.1))
	if !s.Tied {
		list = append(list, s.matrix("output.weight", s.Embd, s.Vocab, s.spread(s.Embd)))
	}
	return list
}

// layer is the tensors of one layer.
func (s Spec) layer(blk string) []gguf.TensorData {
	q, kv := s.Heads*s.HeadLength, s.KVHeads*s.HeadLength
	norm := func(name string, n int) gguf.TensorData { return s.vector(blk+name+".weight", n, 1, 0.1) }
	weight := func(name string, in, out int) gguf.TensorData {
		return s.matrix(blk+name+".weight", in, out, s.spread(in))
	}
	bias := func(name string, n int) gguf.TensorData { return s.vector(blk+name+".bias", n, 0, 0.1) }

	list := []gguf.TensorData{norm("attn_norm", s.Embd)}
	if s.Arch == "phi3" {
		list = append(list, weight("attn_qkv", s.Embd, q+2*kv))
	} else {
		list = append(list, weight("attn_q", s.Embd, q), weight("attn_k", s.Embd, kv), weight("attn_v", s.Embd, kv))
	}
	switch s.Arch {
	case "qwen2":
		list = append(list, bias("attn_q", q), bias("attn_k", kv), bias("attn_v", kv))
	case "qwen3", "gemma3":
		list = append(list, norm("attn_q_norm", s.HeadLength), norm("attn_k_norm", s.HeadLength))
	}
	list = append(list, weight("attn_output", q, s.Embd))
	if s.Arch == "gemma3" {
		list = append(list, norm("post_attention_norm", s.Embd))
	}
	list = append(list, norm("ffn_norm", s.Embd))
	if s.Arch == "phi3" {
		list = append(list, weight("ffn_up", s.Embd, 2*s.FF))
	} else {
		list = append(list, weight("ffn_gate", s.Embd, s.FF), weight("ffn_up", s.Embd, s.FF))
	}
	list = append(list, weight("ffn_down", s.FF, s.Embd))
	if s.Arch == "gemma3" {
		list = append(list, norm("post_ffw_norm", s.Embd))
	}
	return list
}

// spread is the deviation of the weights of a matrix with rows of n, such that what it gives is about as large as what
// it takes.
func (s Spec) spread(n int) float64 { return 1.5 / sqrt(n) }

// matrix is a tensor of out rows of in elements around 0, of the Spec's type.
func (s Spec) matrix(name string, in, out int, spread float64) gguf.TensorData {
	return s.random(name, s.Type, []uint64{uint64(in), uint64(out)}, 0, spread)
}

// vector is an F32 tensor of n elements around mean.
func (s Spec) vector(name string, n int, mean, spread float64) gguf.TensorData {
	return s.random(name, gguf.F32, []uint64{uint64(n)}, mean, spread)
}
