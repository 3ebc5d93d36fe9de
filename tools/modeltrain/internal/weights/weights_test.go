package weights

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
)

func model(t *testing.T) (*nn.Model[float32], *bpe.Vocab) {
	t.Helper()
	v := bpe.Train("A shard is a run of layers.", 270)
	m, err := nn.New[float32](nn.Config{
		Layers: 2, Width: 32, Heads: 4, KVHeads: 2, FeedFwd: 48, Vocab: len(v.Tokens), Context: 16,
		RopeBase: 10000, NormEps: 1e-5, Seed: 5, InitEmbed: 0.1, InitOutput: 0.1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, v
}

func TestModelComesBackRoundedToHalves(t *testing.T) {
	m, v := model(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := Write(t.Context(), path, "test", m, v); err != nil {
		t.Fatal(err)
	}
	back, vocab, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(vocab.Tokens, v.Tokens) {
		t.Error("the vocabulary came back changed")
	}
	for i, w := range m.Tensors {
		got := back.Tensors[i]
		for j, x := range w.Data {
			if math.Abs(float64(got.Data[j]-x)) > math.Abs(float64(x))/2048+1e-7 || w.Norm && got.Data[j] != x {
				t.Fatalf("%s[%d] is %g, was %g", w.Name, j, got.Data[j], x)
			}
		}
	}
	again := filepath.Join(t.TempDir(), "again.gguf")
	if err := Write(t.Context(), again, "test", back, vocab); err != nil {
		t.Fatal(err)
	}
	a, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(again)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("read and written again, the file differs")
	}
}

func TestReadRefusesOtherModels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.gguf")
	kv := []gguf.KeyValue{
		{Key: "general.architecture", Value: gguf.String("llama")},
		{Key: keyLayers, Value: gguf.Uint32(1)},
		{Key: keyTokens, Value: gguf.Strings([]string{"a", "b"})},
	}
	tensor := gguf.TensorData{Name: "token_embd.weight", Dims: []uint64{32, 2}, Type: gguf.F32, Write: gguf.Bytes(make([]byte, 256))}
	if err := gguf.Write(path, kv, []gguf.TensorData{tensor}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Read(path); err == nil || !strings.Contains(err.Error(), "other.gguf") {
		t.Errorf("a model of another vocabulary gave %v, want an error that names the file", err)
	}
}

func TestEveryHalfSurvives(t *testing.T) {
	for h := range 1 << 16 {
		x := float16(uint16(h))
		if math.IsNaN(float64(x)) {
			continue
		}
		if back := gguf.Float16(x); back != uint16(h) {
			t.Fatalf("half %#04x is %g and goes back to %#04x", h, x, back)
		}
	}
}

func TestReadNamesAMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.gguf")
	if _, _, err := Read(path); err == nil || !strings.Contains(err.Error(), "none.gguf") {
		t.Errorf("a missing file gave %v, want an error that names it", err)
	}
}
