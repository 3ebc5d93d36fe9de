package footprint

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

const mib = 1 << 20

// header writes a file with the header of a model and a hole where its weights would be, and opens it.
func header(t *testing.T, arch string, change func(*tiny.Spec)) *gguf.Model {
	t.Helper()
	s, err := tiny.Default(arch)
	require.NoError(t, err)
	change(&s)
	path := filepath.Join(t.TempDir(), arch+".gguf")
	require.NoError(t, tiny.WriteHollow(path, s))
	m, err := gguf.Open(path)
	require.NoError(t, err)
	return m
}

func options() Options { return Options{Context: 2048, Sessions: 4, CacheType: "f16", MicroBatch: 512} }

func TestWeightsAreThoseOfTheModel(t *testing.T) {
	for _, arch := range tiny.Archs() {
		for _, tied := range []bool{false, true} {
			m := header(t, arch, func(s *tiny.Spec) { s.Tied, s.Layers = tied, 7 })
			c := NewCosts(m, options())
			for first := range 7 {
				for end := first + 1; end <= 7; end++ {
					require.Equal(t, m.OwnBytes(engine.LayerRange{First: uint32(first), End: uint32(end)}), c.Need(first, end).Weights, "%s [%d, %d)", arch, first, end)
				}
			}
		}
	}
}

// TestMeasured compares with what llama.cpp reported for this shape on a CPU: 5 slots of 4096 tokens took 640 MiB of cache
// and 148.9 MiB of compute buffer, 66.5 MiB with flash attention.
func TestMeasured(t *testing.T) {
	m := header(t, "llama", func(s *tiny.Spec) {
		s.Layers, s.Embd, s.Heads, s.KVHeads, s.FF, s.Vocab, s.HeadLength = 16, 1024, 16, 8, 2816, 32000, 64
	})
	o := options()
	o.Context = 4096
	n := NewCosts(m, o).Need(0, 16)
	require.EqualValues(t, 640*mib, n.Cache)
	compute := float64(n.Overhead)/mib - 96 - 32000*256.0/mib
	require.InDelta(t, 148.9, compute, 3)
	o.FlashAttention = true
	compute = float64(NewCosts(m, o).Need(0, 16).Overhead)/mib - 96 - 32000*256.0/mib
	require.InDelta(t, 66.5, compute, 3)
	o.CacheType = "q8_0"
	require.EqualValues(t, 340*mib, NewCosts(m, o).Need(0, 16).Cache)
	o.CacheType = "q4_0"
	require.EqualValues(t, 180*mib, NewCosts(m, o).Need(0, 16).Cache)
	o.CacheType = "q8_0"
	o.Context = 4097
	require.EqualValues(t, 340*mib*17/16, NewCosts(m, o).Need(0, 16).Cache)
}
