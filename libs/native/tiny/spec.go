// Package tiny writes random models: the right metadata, the right tensors and a working tokenizer of an architecture, with
// weights drawn from a seed. The bytes depend on the Spec alone, on every machine. Tests prove shards on small ones,
// benchmarks run large ones; nobody trains or downloads anything.
//
// What must stay out: trained weights, and whatever a model would need to speak sense.
package tiny

import (
	"errors"
	"fmt"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Spec says what model to write. All sizes are numbers of elements, layers or tokens.
type Spec struct {
	Arch          string    // one of Archs
	Name          string    // general.name
	Layers        int       // 1 to 512
	Embd          int       // width of the hidden state; a multiple of 32
	Heads         int       // attention heads
	KVHeads       int       // heads of the KV cache; divides Heads
	HeadLength    int       // length of a head, even; must be Embd/Heads except in qwen3 and gemma3
	FF            int       // width of the feed-forward part; a multiple of 32
	Vocab         int       // at least MinVocab
	Context       int       // context_length of the header
	Tied          bool      // no output matrix: the token embedding serves as one
	SlidingWindow int       // gemma3: tokens that five of six layers see; 0: all layers see all
	Type          gguf.Type // of the matrices: F32, F16 or Q8_0; vectors are F32
	Seed          uint64
	ChatTemplate  string // in Jinja; empty: the header has none
	Claim         string // if not empty, the architecture that the header names instead of Arch, for tests of refusals
}

// MinVocab is the smallest vocabulary: three special tokens, the bytes, the space and one more.
const MinVocab = 261

// Archs are the architectures that can be written.
func Archs() []string { return []string{"gemma3", "llama", "phi3", "qwen2", "qwen3"} }

// Default is a Spec that loads in milliseconds: four layers (gemma3: seven, two of them without a window) of width 128.
func Default(arch string) (Spec, error) {
	if !slices.Contains(Archs(), arch) {
		return Spec{}, fmt.Errorf("unknown architecture %q: choose one of %v", arch, Archs())
	}
	s := Spec{
		Arch: arch, Name: "tiny " + arch, Layers: 4, Embd: 128, Heads: 4, KVHeads: 2, HeadLength: 32, FF: 192,
		Vocab: 384, Context: 512, Type: gguf.F32, Seed: 1,
	}
	switch arch {
	case "gemma3":
		s.Layers, s.HeadLength, s.SlidingWindow, s.Tied = 7, 64, 32, true
	case "qwen3":
		s.HeadLength = 64
	}
	return s, nil
}

// Validate reports everything that is wrong with a Spec.
func (s Spec) Validate() error {
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(!slices.Contains(Archs(), s.Arch), "unknown architecture %q: choose one of %v", s.Arch, Archs())
	fault(s.Layers < 1 || s.Layers > 512, "%d layers: choose 1 to 512", s.Layers)
	fault(s.Embd < 32 || s.Embd%32 != 0, "width %d: choose a multiple of 32", s.Embd)
	fault(s.FF < 32 || s.FF%32 != 0, "feed-forward width %d: choose a multiple of 32", s.FF)
	fault(s.Heads < 1 || s.KVHeads < 1 || s.Heads%max(s.KVHeads, 1) != 0, "%d heads and %d KV heads: the latter must divide the former", s.Heads, s.KVHeads)
	free := s.Arch == "qwen3" || s.Arch == "gemma3"
	fault(s.HeadLength < 2 || s.HeadLength%2 != 0 || s.HeadLength*s.Heads%32 != 0,
		"head length %d: choose an even number so that all heads together are a multiple of 32", s.HeadLength)
	fault(!free && s.HeadLength*s.Heads != s.Embd, "%d heads of length %d: in %s they must add up to the width %d", s.Heads, s.HeadLength, s.Arch, s.Embd)
	fault(s.Vocab < MinVocab || s.Vocab > 1<<20, "vocabulary of %d: choose %d to %d", s.Vocab, MinVocab, 1<<20)
	fault(s.Context < 1, "context of %d tokens: choose at least 1", s.Context)
	fault(s.SlidingWindow < 0 || s.SlidingWindow > 0 && s.Arch != "gemma3", "sliding window of %d: only gemma3 has one", s.SlidingWindow)
	fault(s.Type != gguf.F32 && s.Type != gguf.F16 && s.Type != gguf.Q8_0, "type %s: choose f32, f16 or q8_0", s.Type)
	return errors.Join(faults...)
}
