package gguf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// FuzzOpen feeds any bytes: they are refused with BAD_MODEL_FILE, or everything that the model says about itself holds
// within the file.
func FuzzOpen(f *testing.F) {
	for _, seed := range fuzzSeeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHeader("fuzz.gguf", bytes.NewReader(b), uint64(len(b)))
		if err != nil {
			require.ErrorIs(t, err, engine.BadModelFile)
			return
		}
		if _, err := splitOf(h); err != nil {
			require.ErrorIs(t, err, engine.BadModelFile)
			return
		}
		m, err := assemble([]*header{h}, []Part{{Path: h.path}})
		if err != nil {
			require.ErrorIs(t, err, engine.BadModelFile)
			return
		}
		walk(t, m, uint64(len(b)))
	})
}

// walk uses whatever a caller may use.
func walk(t *testing.T, m *Model, size uint64) {
	require.NotEmpty(t, m.Architecture())
	require.GreaterOrEqual(t, m.NLayer(), uint32(1))
	require.LessOrEqual(t, m.NLayer(), uint32(maxLayers))
	var total uint64
	for _, x := range m.Tensors {
		require.LessOrEqual(t, x.Offset+x.Size, size)
		require.NotZero(t, m.Role(x))
		total += x.Size
	}
	require.Equal(t, total, m.Bytes())
	half := m.OwnBytes(engine.LayerRange{End: (m.NLayer() + 1) / 2})
	require.LessOrEqual(t, half, total)
	for il := range m.NLayer() {
		m.CacheRow(il)
		m.Sliding(il)
	}
	m.fingerprint(nil)
	_ = m.Parameters()
}

func fuzzSeeds(f *testing.F) [][]byte {
	dir := f.TempDir()
	path := filepath.Join(dir, "small.gguf")
	require.NoError(f, Write(path, smallKeys(), smallTensors()))
	paths, err := Writer{}.WriteParts(f.Context(), filepath.Join(dir, "m.gguf"), 2, true, smallKeys(), smallTensors())
	require.NoError(f, err)
	var seeds [][]byte
	for _, p := range append(paths, path) {
		b, err := os.ReadFile(p)
		require.NoError(f, err)
		seeds = append(seeds, b, b[:len(b)/2])
	}
	minimal := []KeyValue{{"general.architecture", String("x")}, {"x.block_count", Uint32(1)}, {"x.embedding_length", Uint32(1)}}
	return append(seeds,
		newRaw(3, 1, 3).keys(minimal).tensor("blk.0.a", F32, 0, 1).fill(4).Bytes(),
		newRaw(2, 1, 3).keys(minimal).tensor("blk.0.a", Q4K, 0, 256).fill(144).Bytes(),
		newRaw(3, 0, 1).str("a").u32(9).u32(8).u64(1<<60).Bytes(),
		newRaw(3, 1<<62, 1<<62).Bytes())
}
