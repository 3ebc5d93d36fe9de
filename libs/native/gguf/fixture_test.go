package gguf

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// smallKeys is the metadata of a llama model with two layers of width 32.
func smallKeys() []KeyValue {
	return []KeyValue{
		{"general.architecture", String("llama")},
		{"general.name", String("small")},
		{"llama.block_count", Uint32(2)},
		{"llama.context_length", Uint32(128)},
		{"llama.embedding_length", Uint32(32)},
		{"llama.feed_forward_length", Uint32(64)},
		{"llama.attention.head_count", Uint32(4)},
		{"llama.attention.head_count_kv", Uint32(2)},
		{"llama.attention.layer_norm_rms_epsilon", Float32(1e-5)},
		{"llama.rope.dimension_count", Uint32(8)},
		{"tokenizer.ggml.model", String("llama")},
		{"tokenizer.ggml.tokens", Strings([]string{"<unk>", "<s>", "</s>", "a", "b"})},
		{"tokenizer.ggml.scores", Float32s([]float32{0, 0, 0, -1, -2})},
		{"tokenizer.ggml.token_type", Int32s([]int32{2, 3, 3, 1, 1})},
		{"tokenizer.ggml.add_bos_token", Bool(true)},
	}
}

func tensorOf(name string, typ Type, dims ...uint64) TensorData {
	t := TensorData{Name: name, Dims: dims, Type: typ}
	size, _ := t.Size()
	data := make([]byte, size)
	rng := rand.New(rand.NewPCG(uint64(len(name)), uint64(name[len(name)-8])))
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	t.Write = Bytes(data)
	return t
}

func smallTensors() []TensorData {
	list := []TensorData{tensorOf("token_embd.weight", F32, 32, 5)}
	for _, blk := range []string{"blk.0.", "blk.1."} {
		list = append(list,
			tensorOf(blk+"attn_norm.weight", F32, 32),
			tensorOf(blk+"attn_q.weight", F16, 32, 32),
			tensorOf(blk+"attn_k.weight", Q8_0, 32, 16),
			tensorOf(blk+"ffn_up.weight", Q4_0, 32, 64))
	}
	return append(list, tensorOf("rope_freqs.weight", F32, 4), tensorOf("output_norm.weight", F32, 32), tensorOf("output.weight", F32, 32, 5))
}

// writeSmall writes the small model into a fresh directory.
func writeSmall(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.gguf")
	require.NoError(t, Write(path, smallKeys(), smallTensors()))
	return path
}

// raw builds headers that the writer would refuse.
type raw struct{ bytes.Buffer }

func newRaw(version uint32, tensors, keys uint64) *raw {
	r := &raw{}
	r.WriteString("GGUF")
	return r.u32(version).u64(tensors).u64(keys)
}

func (r *raw) u32(x uint32) *raw { r.Write(binary.LittleEndian.AppendUint32(nil, x)); return r }
func (r *raw) u64(x uint64) *raw { r.Write(binary.LittleEndian.AppendUint64(nil, x)); return r }
func (r *raw) str(s string) *raw { r.u64(uint64(len(s))); r.WriteString(s); return r }

func (r *raw) keys(kv []KeyValue) *raw {
	for _, k := range kv {
		r.Write(k.Value.append(appendString(nil, k.Key)))
	}
	return r
}

func (r *raw) tensor(name string, typ Type, offset uint64, dims ...uint64) *raw {
	r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r.u64(d)
	}
	return r.u32(uint32(typ)).u64(offset)
}

// fill pads to the alignment and adds n bytes of data.
func (r *raw) fill(n int) *raw {
	r.Write(make([]byte, int(pad(uint64(r.Len()), defaultAlignment))-r.Len()+n))
	return r
}

func (r *raw) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bad.gguf")
	require.NoError(t, os.WriteFile(path, r.Bytes(), 0o644))
	return path
}
