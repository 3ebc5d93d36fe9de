//go:build llama && cgo

package gguf_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/llama"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

var spoiled = flag.Int("spoiled", 40, "spoiled headers per architecture that TestSpoiledHeadersDoNotAbort loads")

// TestSpoiledHeadersDoNotAbort spoils good headers at random and loads what Open lets through: llama.cpp may refuse it or
// run it, and must not take this process down, which would fail the whole test binary. Run it with -spoiled 2000 after
// every change of the pin.
func TestSpoiledHeadersDoNotAbort(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(arch, func(t *testing.T) {
			s, err := tiny.Default(arch)
			require.NoError(t, err)
			s.Layers, s.Embd, s.Heads, s.KVHeads, s.HeadLength, s.FF, s.Vocab = 2, 32, 2, 1, 16, 32, 300
			path := filepath.Join(t.TempDir(), "good.gguf")
			require.NoError(t, tiny.Write(t.Context(), path, s))
			good, err := os.ReadFile(path)
			require.NoError(t, err)
			m, err := gguf.Open(path)
			require.NoError(t, err)
			header := int(m.Tensors[0].Offset)
			loaded, refused := 0, 0
			rng := rand.New(rand.NewPCG(uint64(len(arch)), 1))
			path = filepath.Join(t.TempDir(), "spoiled.gguf")
			for loaded+refused < *spoiled {
				require.NoError(t, os.WriteFile(path, spoil(rng, good, header), 0o644))
				if _, err := gguf.Open(path); err != nil {
					require.ErrorIs(t, err, engine.BadModelFile)
					continue
				}
				shard := []engine.LayerRange{{First: 0}, {First: 0, End: 1}, {First: 1}}[rng.IntN(3)]
				if load(t, path, shard) {
					loaded++
				} else {
					refused++
				}
			}
			t.Logf("%d ran, %d were refused by llama.cpp", loaded, refused)
			require.NotZero(t, loaded)
		})
	}
}

// spoil changes one or two numbers of a header: in the keys before the vocabulary, or in the directory of tensors.
func spoil(rng *rand.Rand, good []byte, header int) []byte {
	odd := []uint32{0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 128, 255, 300, 512, 513, 65535, 1 << 20, 1<<31 - 1, 1 << 31, 1<<32 - 1, 0x7fc00000, 0xbf800000}
	b := append([]byte(nil), good...)
	for range 1 + rng.IntN(2) {
		at := 24 + rng.IntN(900)
		if rng.IntN(2) == 0 {
			at = header - 8 - rng.IntN(min(2500, header-32))
		}
		switch x := odd[rng.IntN(len(odd))]; rng.IntN(3) {
		case 0:
			b[at] = byte(rng.Uint32())
		case 1:
			b[at], b[at+1], b[at+2], b[at+3] = byte(x), byte(x>>8), byte(x>>16), byte(x>>24)
		default:
			b[at] ^= 1 << rng.IntN(8)
		}
	}
	return b
}

// load loads a shard and runs a probe step, and says whether that worked.
func load(t *testing.T, path string, shard engine.LayerRange) bool {
	t.Helper()
	e, _, err := llama.New()
	require.NoError(t, err)
	_, err = e.Load(t.Context(), engine.LoadRequest{
		Paths: []string{path}, Layers: shard, ContextLimit: 64, Sessions: 1, BatchTokens: 32, MicroBatch: 32, Threads: 1, CacheType: "f16", MemoryMap: true,
	}, nil)
	if err == nil {
		_, err = e.Health(t.Context(), true)
	}
	require.NoError(t, e.Close())
	if err != nil {
		var known *engine.Error
		require.True(t, errors.As(err, &known), "%v", err)
	}
	return err == nil
}
