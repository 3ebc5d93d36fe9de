// Package weights keeps a trained model in a GGUF file that llama.cpp reads: architecture llama, matrices in F16, norms in
// F32, the tokenizer in the header.
//
// What must stay out: training, and any other file.
package weights

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
)

const (
	architecture = "llama"
	mostlyF16    = 1 // general.file_type
)

// Keys of the header that Read needs again.
const (
	keyLayers   = "llama.block_count"
	keyContext  = "llama.context_length"
	keyWidth    = "llama.embedding_length"
	keyFeedFwd  = "llama.feed_forward_length"
	keyHeads    = "llama.attention.head_count"
	keyKVHeads  = "llama.attention.head_count_kv"
	keyRopeBase = "llama.rope.freq_base"
	keyNormEps  = "llama.attention.layer_norm_rms_epsilon"
	keyTokens   = "tokenizer.ggml.tokens"
)

// Write writes the model under a name for people. The file appears at path when it is complete; a file that is there is
// replaced. Equal models give equal files.
func Write(ctx context.Context, path, name string, m *nn.Model[float32], v *bpe.Vocab) error {
	var tensors []gguf.TensorData
	for _, t := range m.Tensors {
		data := gguf.TensorData{Name: t.Name}
		if t.Norm {
			data.Dims, data.Type = []uint64{uint64(t.In)}, gguf.F32
			data.Write = func(w io.Writer) error { return gguf.Bytes(gguf.AppendFloat32s(nil, t.Data))(w) }
		} else {
			data.Dims, data.Type = []uint64{uint64(t.In), uint64(t.Out)}, gguf.F16
			data.Write = func(w io.Writer) error { return gguf.Bytes(gguf.AppendFloat16s(nil, t.Data))(w) }
		}
		tensors = append(tensors, data)
	}
	return gguf.Writer{}.Write(ctx, path, header(name, m.Config, v), tensors)
}

func header(name string, c nn.Config, v *bpe.Vocab) []gguf.KeyValue {
	scores, types := make([]float32, len(v.Tokens)), make([]int32, len(v.Tokens))
	for id := range v.Tokens {
		scores[id], types[id] = v.Score(id), int32(v.Type(id))
	}
	number := func(key string, n int) gguf.KeyValue { return gguf.KeyValue{Key: key, Value: gguf.Uint32(uint32(n))} }
	return []gguf.KeyValue{
		{Key: "general.architecture", Value: gguf.String(architecture)},
		{Key: "general.name", Value: gguf.String(name)},
		number("general.file_type", mostlyF16),
		number(keyLayers, c.Layers),
		number(keyContext, c.Context),
		number(keyWidth, c.Width),
		number(keyFeedFwd, c.FeedFwd),
		number(keyHeads, c.Heads),
		number(keyKVHeads, c.KVHeads),
		number("llama.rope.dimension_count", c.HeadWidth()),
		{Key: keyRopeBase, Value: gguf.Float32(float32(c.RopeBase))},
		{Key: keyNormEps, Value: gguf.Float32(float32(c.NormEps))},
		number("llama.vocab_size", c.Vocab),
		{Key: "tokenizer.ggml.model", Value: gguf.String("llama")},
		{Key: "tokenizer.ggml.pre", Value: gguf.String("default")},
		{Key: keyTokens, Value: gguf.Strings(v.Tokens)},
		{Key: "tokenizer.ggml.scores", Value: gguf.Float32s(scores)},
		{Key: "tokenizer.ggml.token_type", Value: gguf.Int32s(types)},
		number("tokenizer.ggml.bos_token_id", bpe.BOS),
		number("tokenizer.ggml.eos_token_id", bpe.EOS),
		number("tokenizer.ggml.unknown_token_id", bpe.UnknownID),
		{Key: "tokenizer.ggml.add_bos_token", Value: gguf.Bool(true)},
		{Key: "tokenizer.ggml.add_eos_token", Value: gguf.Bool(false)},
		// a space before the text would come back with it
		{Key: "tokenizer.ggml.add_space_prefix", Value: gguf.Bool(false)},
	}
}

// Read reads a file that Write wrote, with the weights as F16 left them. Errors: those of gguf.Open, and a file of
// another shape.
func Read(path string) (*nn.Model[float32], *bpe.Vocab, error) {
	file, err := gguf.Open(path)
	if err != nil {
		return nil, nil, err
	}
	m, v, err := read(path, file)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return m, v, nil
}

func read(path string, file *gguf.Model) (*nn.Model[float32], *bpe.Vocab, error) {
	if got := file.Architecture(); got != architecture {
		return nil, nil, fmt.Errorf("architecture is %q; only models of this tool can be read", got)
	}
	tokens, _ := file.KV.Get(keyTokens)
	texts, _ := tokens.Texts()
	v, err := bpe.New(texts)
	if err != nil {
		return nil, nil, err
	}
	c, err := shape(file, len(texts))
	if err != nil {
		return nil, nil, err
	}
	m, err := nn.New[float32](c)
	if err != nil {
		return nil, nil, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	stored := map[string]gguf.Tensor{}
	for _, t := range file.Tensors {
		stored[t.Name] = t
	}
	for _, t := range m.Tensors {
		s, ok := stored[t.Name]
		if !ok || s.Elements() != uint64(len(t.Data)) || s.Offset+s.Size > uint64(len(raw)) {
			return nil, nil, fmt.Errorf("tensor %q is missing or not %d × %d", t.Name, t.In, t.Out)
		}
		if err := decode(t.Data, raw[s.Offset:s.Offset+s.Size], s.Type); err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	m.Sync()
	return m, v, nil
}

func shape(file *gguf.Model, vocab int) (nn.Config, error) {
	c := nn.Config{Vocab: vocab}
	var faults []error
	for key, field := range map[string]*int{
		keyLayers: &c.Layers, keyContext: &c.Context, keyWidth: &c.Width,
		keyFeedFwd: &c.FeedFwd, keyHeads: &c.Heads, keyKVHeads: &c.KVHeads,
	} {
		n, ok := file.KV.Uint(key)
		if !ok || n > 1<<16 {
			faults = append(faults, fmt.Errorf("key %q is missing or too great", key))
		}
		*field = int(n)
	}
	for key, field := range map[string]*float64{keyRopeBase: &c.RopeBase, keyNormEps: &c.NormEps} {
		v, _ := file.KV.Get(key)
		x, ok := v.Float()
		if !ok {
			faults = append(faults, fmt.Errorf("key %q is missing", key))
		}
		*field = x
	}
	return c, errors.Join(faults...)
}

// decode fills dst from raw, which holds as many values.
func decode(dst []float32, raw []byte, kind gguf.Type) error {
	for i := range dst {
		switch kind {
		case gguf.F32:
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		case gguf.F16:
			dst[i] = float16(binary.LittleEndian.Uint16(raw[2*i:]))
		default:
			return fmt.Errorf("type %s is not F32 or F16", kind)
		}
	}
	return nil
}

// float16 is the value of an IEEE half.
func float16(h uint16) float32 {
	sign, exp, frac := 1.0, int(h>>10&0x1f), float64(h&0x3ff)
	if h&0x8000 != 0 {
		sign = -1
	}
	switch {
	case exp == 0:
		return float32(sign * math.Ldexp(frac, -24))
	case exp == 31 && frac == 0:
		return float32(math.Inf(int(sign)))
	case exp == 31:
		return float32(math.NaN())
	}
	return float32(sign * math.Ldexp(1024+frac, exp-25))
}
