package gguf

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func TestOpenReadsWhatWasWritten(t *testing.T) {
	path := writeSmall(t)
	m, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, []string{path}, m.Paths)
	require.Equal(t, "llama", m.Architecture())
	require.Equal(t, "small", m.Name())
	require.EqualValues(t, 2, m.NLayer())
	require.EqualValues(t, 5, m.Vocab())
	require.EqualValues(t, 32, m.Embedding())
	require.EqualValues(t, 128, m.TrainContext())
	require.False(t, m.Tied())
	require.Empty(t, m.ChatTemplate())
	require.Equal(t, len(smallKeys()), m.KV.Len())
	for i, kv := range smallKeys() {
		require.Equal(t, kv.Key, m.KV.All()[i].Key)
		require.True(t, kv.Value.equal(m.KV.All()[i].Value), kv.Key)
	}
	require.Len(t, m.Tensors, len(smallTensors()))
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	for i, want := range smallTensors() {
		got := m.Tensors[i]
		require.Equal(t, want.Name, got.Name)
		require.Equal(t, want.Dims, got.Dims)
		require.Equal(t, want.Type, got.Type)
		var b strings.Builder
		require.NoError(t, want.Write(&b))
		require.Equal(t, b.String(), string(file[got.Offset:got.Offset+got.Size]), want.Name)
	}
}

func TestOpenReadsVersion2(t *testing.T) {
	path := writeSmall(t)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[4] = 2
	require.NoError(t, os.WriteFile(path, b, 0o644))
	_, err = Open(path)
	require.NoError(t, err)
}

// TestOpenRefuses holds a sentence's essential words for each way to be broken.
func TestOpenRefuses(t *testing.T) {
	kv := smallKeys()
	without := func(key string, more ...KeyValue) []KeyValue {
		var list []KeyValue
		for _, k := range smallKeys() {
			if k.Key != key {
				list = append(list, k)
			}
		}
		return append(list, more...)
	}
	with := func(more ...KeyValue) []KeyValue {
		list := smallKeys()
		for _, k := range more {
			list = func() []KeyValue {
				for i := range list {
					if list[i].Key == k.Key {
						list[i] = k
						return list
					}
				}
				return append(list, k)
			}()
		}
		return list
	}
	n := uint64(len(kv))
	head := func(tensors uint64) *raw { return newRaw(3, tensors, n).keys(kv) }
	keysOnly := func(kv []KeyValue) *raw {
		return newRaw(3, 1, uint64(len(kv))).keys(kv).tensor("blk.0.x", F32, 0, 8).fill(32)
	}
	qwen2Heads(t, 4) // is fine
	u32 := func(key string, x uint32) KeyValue { return KeyValue{key, Uint32(x)} }
	tests := []struct {
		name string
		file *raw
		want string
	}{
		{"empty", &raw{}, "is empty"},
		{"other file", func() *raw { r := &raw{}; r.WriteString("hello world"); return r }(), `begins with "hell"`},
		{"lfs pointer", func() *raw { r := &raw{}; r.WriteString("version https://git-lfs"); return r }(), "git lfs pull"},
		{"three bytes", func() *raw { r := &raw{}; r.WriteString("GGU"); return r }(), "truncated"},
		{"no counts", func() *raw { r := &raw{}; r.WriteString("GGUF\x03\x00\x00\x00"); return r }(), "truncated"},
		{"version 0", newRaw(0, 0, 0), "version 0"},
		{"version 1", newRaw(1, 0, 0), "version 1"},
		{"version 4", newRaw(4, 0, 0), "upgrade DGR"},
		{"big-endian", newRaw(0x03000000, 0, 0), "big-endian"},
		{"huge tensor count", newRaw(3, 1<<60, 0), "claims 1152921504606846976 tensors"},
		{"negative key count", newRaw(3, 0, 1<<64-1), "corrupt"},
		{"keys missing", newRaw(3, 0, 5), "inside key 1 of 5"},
		{"key too long", newRaw(3, 0, 1).u64(1 << 40), "65535 are the limit"},
		{"empty key", newRaw(3, 0, 1).str("").u32(4).u32(0), `is ""`},
		{"zero byte in key", newRaw(3, 0, 1).str("a\x00b").u32(4).u32(0), `"a\x00b"`},
		{"key twice", newRaw(3, 0, 2).str("a").u32(4).u32(0).str("a").u32(4).u32(0), `key "a" twice`},
		{"unknown value type", newRaw(3, 0, 1).str("a").u32(13).u32(0), "unknown type 13"},
		{"bool of 2", newRaw(3, 0, 1).str("a").u32(7).u32(2), "neither 0 nor 1"},
		{"huge string", newRaw(3, 0, 1).str("a").u32(8).u64(1 << 62), "limit"},
		{"string past the end", newRaw(3, 0, 1).str("a").u32(8).u64(1000), "truncated"},
		{"huge array", newRaw(3, 0, 1).str("a").u32(9).u32(5).u64(1 << 62), "elements"},
		{"array past the end", newRaw(3, 0, 1).str("a").u32(9).u32(5).u64(1 << 20), "truncated"},
		{"strings past the end", newRaw(3, 0, 1).str("a").u32(9).u32(8).u64(1 << 20), "truncated"},
		{"array of unknown", newRaw(3, 0, 1).str("a").u32(9).u32(77).u64(1), "unknown type 77"},
		{"array of arrays", newRaw(3, 0, 1).str("a").u32(9).u32(9).u64(1).u32(4).u64(0), "array of arrays"},
		{"alignment 24", keysOnly(with(u32("general.alignment", 24))), "power of two"},
		{"alignment of another type", keysOnly(with(KeyValue{"general.alignment", Uint64(32)})), "general.alignment"},
		{"tensor missing", head(1), "inside the entry of tensor 1 of 1"},
		{"tensor name too long", head(1).tensor(strings.Repeat("n", 64), F32, 0, 8).fill(32), "63 are the limit"},
		{"tensor name not UTF-8", head(1).tensor("\xff", F32, 0, 8).fill(32), `"\xff"`},
		{"tensor twice", head(2).tensor("x", F32, 0, 8).tensor("x", F32, 32, 8).fill(64), `tensor "x" twice`},
		{"five dimensions", head(1).tensor("x", F32, 0, 1, 1, 1, 1, 1).fill(32), "5 dimensions"},
		{"too many elements", head(1).tensor("x", F32, 0, 1<<40, 1<<40).fill(32), "more elements than fit"},
		{"negative dimension", head(1).tensor("x", I8, 0, 1<<63).fill(32), "more elements than fit"},
		{"too many bytes", head(1).tensor("x", F64, 0, 1<<61).fill(32), "no multiple"},
		{"removed type", head(1).tensor("x", Type(33), 0, 8).fill(32), "unknown type 33"},
		{"half a block", head(1).tensor("x", Q4K, 0, 128).fill(32), "256 of a block of q4_K"},
		{"misaligned", head(1).tensor("x", F32, 8, 8).fill(64), "multiple of the alignment"},
		{"overlap", head(2).tensor("x", F32, 0, 64).tensor("y", F32, 32, 8).fill(512), `"y" begins at offset 32, inside or before "x"`},
		{"gap", head(2).tensor("x", F32, 0, 8).tensor("y", F32, 64, 8).fill(512), "gap"},
		{"far offset", head(1).tensor("x", F32, 1<<63, 8).fill(32), "gap"},
		{"data truncated", head(1).tensor("x", F32, 0, 64).fill(255), "needs 256 bytes"},
		{"no architecture", keysOnly(without("general.architecture")), "general.architecture"},
		{"architecture of another type", keysOnly(without("general.architecture", u32("general.architecture", 1))), "general.architecture"},
		{"no tensors", head(0), "holds no tensors"},
		{"no layers", keysOnly(without("llama.block_count")), `"llama.block_count"`},
		{"zero layers", keysOnly(with(u32("llama.block_count", 0))), "claims 0 layers"},
		{"513 layers", keysOnly(with(u32("llama.block_count", 513))), "claims 513 layers"},
		{"layers of another type", keysOnly(with(KeyValue{"llama.block_count", Uint64(2)})), "type u64 where u32"},
		{"all layers for prediction", keysOnly(with(u32("llama.nextn_predict_layers", 2))), "multi-token"},
		{"no width", keysOnly(without("llama.embedding_length")), `"llama.embedding_length"`},
		{"tensor beyond the layers", head(1).tensor("blk.2.x", F32, 0, 8).fill(32), "beyond its 2 layers"},
		{"experts none used", keysOnly(with(u32("llama.expert_count", 4))), "experts"},
		{"experts too many", keysOnly(with(u32("llama.expert_count", 2000), u32("llama.expert_used_count", 2))), "2000 experts"},
		{"expert groups of none", keysOnly(with(u32("llama.expert_group_count", 2))), "experts"},
		{"rope scaling", keysOnly(with(KeyValue{"llama.rope.scaling.type", String("cubic")})), `"cubic"`},
		{"vocabulary of numbers", keysOnly(with(KeyValue{"tokenizer.ggml.tokens", Int32s([]int32{1})})), "no list of strings"},
		{"vocabulary empty", keysOnly(with(KeyValue{"tokenizer.ggml.tokens", Strings(nil)})), "empty vocabulary"},
		{"token twice", keysOnly(with(KeyValue{"tokenizer.ggml.tokens", Strings([]string{"a", "b", "a"})})), `token "a" twice`},
		{"token twice up to a zero byte", keysOnly(with(KeyValue{"tokenizer.ggml.tokens", Strings([]string{"a\x00b", "b", "a"})})), `token "a" twice`},
		{"token as llama.cpp names empty ones", keysOnly(with(KeyValue{"tokenizer.ggml.tokens", Strings([]string{"[EMPTY_1]", ""})})), "twice"},
		{"scores too few", keysOnly(with(KeyValue{"tokenizer.ggml.scores", Float32s(nil)})), "tokenizer.ggml.scores"},
		{"token types of floats", keysOnly(with(KeyValue{"tokenizer.ggml.token_type", Float32s(make([]float32, 5))})), "token_type"},
		{"no heads", keysOnly(with(u32("llama.attention.head_count", 0))), "0 attention heads"},
		{"heads not divided", keysOnly(with(u32("llama.attention.head_count_kv", 3))), "3 KV heads"},
		{"heads wider than the state", qwen2Heads(t, 8), "8 attention heads of length 8 in layer 0 and a hidden state of 32"},
		{"rotation too wide", keysOnly(with(u32("llama.rope.dimension_count", 16))), "16 rotated"},
		{"integer weights", head(1).tensor("x", I32, 0, 8).fill(32), "cannot hold weights"},
		{"quantized vector", head(1).tensor("x", Q8_0, 0, 32).fill(64), "vector"},
		{"half vector", head(1).tensor("x", F16, 0, 32).fill(64), "vector"},
		{"heads of several lengths", keysOnly(with(u32("llama.attention.key_length_swa", 4))), "key_length_swa"},
		{"negative epsilon", keysOnly(with(KeyValue{"llama.attention.layer_norm_rms_epsilon", Float32(-1)})), "epsilon"},
		{"epsilon is no number", keysOnly(with(KeyValue{"llama.attention.layer_norm_rms_epsilon", Float32(float32(math.NaN()))})), "epsilon"},
		{"no epsilon", keysOnly(without("llama.attention.layer_norm_rms_epsilon")), "epsilon"},
		{"empty tensor", head(2).tensor("x", F32, 0, 8, 0).tensor("y", F32, 0, 8).fill(32), `empty tensor "x"`},
		{"split type", keysOnly(with(u32("split.count", 2))), `"split.count"`},
		{"split number", keysOnly(with(KeyValue{"split.count", Uint16(2)}, KeyValue{"split.no", Uint16(2)})), "part 3 of a model in 2"},
		{"split name", keysOnly(with(KeyValue{"split.count", Uint16(2)}, KeyValue{"split.no", Uint16(0)})), `does not end in "-00001-of-00002.gguf"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := tt.file.file(t)
			m, err := Open(path)
			require.Nil(t, m)
			requireBad(t, err, path, tt.want)
		})
	}
}

// qwen2Heads is the small model as a qwen2 with that many heads of length 8, where 4 would fit.
func qwen2Heads(t *testing.T, heads uint32) *raw {
	t.Helper()
	var kv []KeyValue
	for _, k := range smallKeys() {
		k.Key = strings.Replace(k.Key, "llama.", "qwen2.", 1)
		switch k.Key {
		case "general.architecture":
			k.Value = String("qwen2")
		case "qwen2.attention.head_count":
			k.Value = Uint32(heads)
		}
		kv = append(kv, k)
	}
	kv = append(kv, KeyValue{"qwen2.attention.key_length", Uint32(8)}, KeyValue{"qwen2.attention.value_length", Uint32(8)})
	r := newRaw(3, 1, uint64(len(kv))).keys(kv).tensor("blk.0.x", F32, 0, 8).fill(32)
	if heads == 4 {
		_, err := Open(r.file(t))
		require.NoError(t, err)
	}
	return r
}

// requireBad wants a BAD_MODEL_FILE of one sentence with the file's name and the given words.
func requireBad(t *testing.T, err error, path, want string) {
	t.Helper()
	require.ErrorIs(t, err, engine.BadModelFile)
	var e *engine.Error
	require.True(t, errors.As(err, &e))
	require.Contains(t, e.Message, `"`+path+`"`)
	require.Contains(t, e.Message, want)
	require.NotContains(t, e.Message, "\n")
}

// TestEveryTruncation cuts a good file anywhere: none is taken, none panics.
func TestEveryTruncation(t *testing.T) {
	whole, err := os.ReadFile(writeSmall(t))
	require.NoError(t, err)
	m, err := readHeader("whole", bytes.NewReader(whole), uint64(len(whole)))
	require.NoError(t, err)
	last := m.tensors[len(m.tensors)-1]
	for n := range last.Offset + last.Size {
		if n > m.data && n%61 != 0 { // the header at every byte, the data in steps
			continue
		}
		_, err := readHeader("cut", bytes.NewReader(whole[:n]), n)
		require.ErrorIs(t, err, engine.BadModelFile, "%d of %d bytes", n, len(whole))
	}
	// a file that shrinks after its size was taken
	_, err = readHeader("shrunk", bytes.NewReader(whole[:300]), uint64(len(whole)))
	requireBad(t, err, "shrunk", "became shorter")
}

func TestOpenMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.gguf")
	_, err := Open(path)
	requireBad(t, err, path, "does not exist: check the path")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestOpenDirectory(t *testing.T) {
	path := t.TempDir()
	_, err := Open(path)
	requireBad(t, err, path, "is a directory")
}

// TestCountsReadNoMoreThanTheyMay lies about counts in front of an endless file of zeros.
func TestCountsReadNoMoreThanTheyMay(t *testing.T) {
	for name, tt := range map[string]struct {
		head *raw
		most int64 // bytes read
	}{
		"strings": {newRaw(3, 0, 2).str("a").u32(9).u32(8).u64(maxElements), 8*maxElements + 1<<20},
		"numbers": {newRaw(3, 0, 2).str("a").u32(9).u32(12).u64(maxElements), 8*maxElements + 1<<20},
		"string":  {newRaw(3, 0, 2).str("a").u32(8).u64(maxString), maxString + 1<<20},
		"keys":    {newRaw(3, 0, maxKeys), 1 << 20},
		"tensors": {newRaw(3, maxTensors, 0), 1 << 20},
		"beyond":  {newRaw(3, 0, 2).str("a").u32(9).u32(8).u64(maxElements + 1), 1 << 20},
	} {
		r := &countingReader{r: io.MultiReader(bytes.NewReader(tt.head.Bytes()), zeroReader{})}
		_, err := readHeader("endless", r, 1<<50)
		requireBad(t, err, "endless", "")
		require.LessOrEqual(t, r.n, tt.most, name)
	}
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

func TestOpenFindsPartsFromAny(t *testing.T) {
	for _, headerFirst := range []bool{false, true} {
		dir := t.TempDir()
		paths, err := Writer{}.WriteParts(t.Context(), filepath.Join(dir, "m.gguf"), 3, headerFirst, smallKeys(), smallTensors())
		require.NoError(t, err)
		require.Equal(t, filepath.Join(dir, "m-00001-of-00003.gguf"), paths[0])
		for _, path := range paths {
			m, err := Open(path)
			require.NoError(t, err)
			require.Equal(t, paths, m.Paths)
			require.Equal(t, "small", m.Name())
			require.Len(t, m.Tensors, len(smallTensors()))
			require.Equal(t, headerFirst, m.Tensors[0].Part == 1)
			require.Equal(t, 2, m.Tensors[len(m.Tensors)-1].Part)
		}
	}
}

func TestOpenMissingPart(t *testing.T) {
	paths, err := Writer{}.WriteParts(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), 3, true, smallKeys(), smallTensors())
	require.NoError(t, err)
	require.NoError(t, os.Remove(paths[1]))
	for _, path := range []string{paths[0], paths[2]} {
		_, err := Open(path)
		requireBad(t, err, path, "m-00002-of-00003.gguf")
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
}

// A name alone makes no part.
func TestOpenNameThatLooksSplit(t *testing.T) {
	dir := t.TempDir()
	for _, kv := range [][]KeyValue{
		smallKeys(),
		append(smallKeys(), KeyValue{"split.count", Uint16(0)}),
		append(smallKeys(), KeyValue{"split.count", Uint16(1)}, KeyValue{"split.no", Uint16(0)}),
	} {
		r := newRaw(3, 1, uint64(len(kv))).keys(kv).tensor("blk.0.x", F32, 0, 8).fill(32)
		path := filepath.Join(dir, "m-00001-of-00003.gguf")
		require.NoError(t, os.WriteFile(path, r.Bytes(), 0o644))
		m, err := Open(path)
		require.NoError(t, err)
		require.Equal(t, []string{path}, m.Paths)
	}
}

func TestOpenPartsInDisagreement(t *testing.T) {
	write := func(t *testing.T, kv []KeyValue, tensors []TensorData) []string {
		paths, err := Writer{}.WriteParts(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), 2, false, kv, tensors)
		require.NoError(t, err)
		return paths
	}
	good := write(t, smallKeys(), smallTensors())
	fewer := write(t, smallKeys(), smallTensors()[:6])
	move := func(t *testing.T, from, to string) {
		b, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, b, 0o644))
	}
	t.Run("second of another model", func(t *testing.T) {
		p := write(t, smallKeys(), smallTensors())
		move(t, fewer[1], p[1])
		_, err := Open(p[0])
		requireBad(t, err, p[1], "disagree about \"split.tensors.count\"")
	})
	t.Run("first twice", func(t *testing.T) {
		p := write(t, smallKeys(), smallTensors())
		move(t, good[0], p[1])
		_, err := Open(p[0])
		requireBad(t, err, p[1], "its header says part 1 of 2")
	})
	rewrite := func(t *testing.T, p []string, kv []KeyValue, tensors ...TensorData) {
		require.NoError(t, writeFile(t.Context(), p[1], kv, tensors, &progress{}))
	}
	part2 := []KeyValue{{"split.no", Uint16(1)}, {"split.count", Uint16(2)}, {"split.tensors.count", Int32(int32(len(smallTensors())))}}
	t.Run("another architecture", func(t *testing.T) {
		p := write(t, smallKeys(), smallTensors())
		rewrite(t, p, append(part2, KeyValue{"general.architecture", String("qwen2")}), tensorOf("blk.1.zz.weight", F32, 8))
		_, err := Open(p[0])
		requireBad(t, err, p[1], "disagree about \"general.architecture\"")
	})
	t.Run("tensor in both", func(t *testing.T) {
		p := write(t, smallKeys(), smallTensors())
		rewrite(t, p, part2, tensorOf("token_embd.weight", F32, 8))
		_, err := Open(p[1])
		requireBad(t, err, p[1], "\"token_embd.weight\"")
	})
	t.Run("too few tensors", func(t *testing.T) {
		p := write(t, smallKeys(), smallTensors())
		rewrite(t, p, part2, tensorOf("blk.1.zz.weight", F32, 8))
		_, err := Open(p[1])
		requireBad(t, err, p[0], "promises 12 tensors")
	})
}

func TestTrainedModelOpens(t *testing.T) {
	path := filepath.Join("..", "..", "..", "..", "shared", "models", "stories260K.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Skip("no ../shared/models beside the repository: ", err)
	}
	m, err := Open(path)
	require.NoError(t, err)
	require.EqualValues(t, 5, m.NLayer())
	require.EqualValues(t, 512, m.Vocab())
	require.EqualValues(t, 292_800, m.Parameters())
}
