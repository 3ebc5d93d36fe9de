package tiny

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// write writes a model into a fresh directory and opens it.
func write(t *testing.T, s Spec, o Options) *gguf.Model {
	t.Helper()
	paths, err := WriteWith(t.Context(), filepath.Join(t.TempDir(), s.Arch+".gguf"), s, o)
	require.NoError(t, err)
	m, err := gguf.Open(paths[len(paths)-1])
	require.NoError(t, err)
	require.Equal(t, paths, m.Paths)
	return m
}

func spec(t *testing.T, arch string) Spec {
	t.Helper()
	s, err := Default(arch)
	require.NoError(t, err)
	return s
}

func names(m *gguf.Model, prefix string) string {
	var list []string
	for _, x := range m.Tensors {
		if name, ok := strings.CutPrefix(x.Name, prefix); ok {
			list = append(list, name)
		}
	}
	return strings.Join(list, " ")
}

// TestLayers pins which tensors llama.cpp finds in a layer of each architecture.
func TestLayers(t *testing.T) {
	ffn := "ffn_norm.weight ffn_gate.weight ffn_up.weight ffn_down.weight"
	want := map[string]string{
		"llama": "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_output.weight " + ffn,
		"qwen2": "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_q.bias attn_k.bias attn_v.bias attn_output.weight " + ffn,
		"qwen3": "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_q_norm.weight attn_k_norm.weight attn_output.weight " + ffn,
		"gemma3": "attn_norm.weight attn_q.weight attn_k.weight attn_v.weight attn_q_norm.weight attn_k_norm.weight attn_output.weight " +
			"post_attention_norm.weight " + ffn + " post_ffw_norm.weight",
		"phi3": "attn_norm.weight attn_qkv.weight attn_output.weight ffn_norm.weight ffn_up.weight ffn_down.weight",
	}
	for _, arch := range Archs() {
		for _, tied := range []bool{false, true} {
			s := spec(t, arch)
			s.Tied = tied
			m := write(t, s, Options{})
			require.Equal(t, arch, m.Architecture())
			require.Equal(t, tied, m.Tied())
			require.EqualValues(t, s.Layers, m.NLayer())
			require.EqualValues(t, s.Vocab, m.Vocab())
			require.Equal(t, s.Size(), m.Bytes())
			for il := range s.Layers {
				require.Equal(t, want[arch], names(m, "blk."+string(rune('0'+il))+"."), arch)
			}
		}
	}
}

// TestBytesArePinned compares with hashes taken once: every machine must write the same model.
func TestBytesArePinned(t *testing.T) {
	pins := map[string]map[gguf.Type]string{
		"gemma3": {gguf.F32: "0af1b643d46559e9ec9e11ee50972198d214f13c6d4040cfe1a9ea71cd3128bf"},
		"llama":  {gguf.F32: "896bfe9973b868fea8e396853195d468852664beb06683193cd6f25ddecf63b3", gguf.F16: "b79316b8292349c21a6de0fab3c919709f037490923483d1e1dc3ad2d76514d6", gguf.Q8_0: "cd878c700a02a6e4ab07b18711485d2d261157a87a05ce01db2f10a1e0d24eaa"},
		"phi3":   {gguf.F32: "11f30720866b2211197a4066ace08e974a770551bcc5167dcdeb36d983ecff4f"},
		"qwen2":  {gguf.F32: "40952db0f73bd81fca04d20932fdd6f8516f8fd00a26a7389ff19c02dd7579c4"},
		"qwen3":  {gguf.F32: "835a176393df2b62777bf6a8cd3ad2af024d268947c3b5d550c857074e780b59"},
	}
	for arch, types := range pins {
		for typ, pin := range types {
			s := spec(t, arch)
			s.Type = typ
			b, err := os.ReadFile(write(t, s, Options{}).Paths[0])
			require.NoError(t, err)
			sum := sha256.Sum256(b)
			require.Equal(t, pin, hex.EncodeToString(sum[:]), "%s %s", arch, typ)
		}
	}
}

func TestSeedAndTypeMatter(t *testing.T) {
	seen := map[gguf.Fingerprint]bool{}
	for _, change := range []func(*Spec){
		func(*Spec) {}, func(s *Spec) { s.Seed = 2 }, func(s *Spec) { s.Type = gguf.F16 }, func(s *Spec) { s.Type = gguf.Q8_0 },
		func(s *Spec) { s.Tied = true }, func(s *Spec) { s.Vocab = MinVocab }, func(s *Spec) { s.Name = "other" },
	} {
		s := spec(t, "llama")
		change(&s)
		man, err := gguf.HashModel(t.Context(), write(t, s, Options{}), nil)
		require.NoError(t, err)
		require.False(t, seen[man.Fingerprint])
		seen[man.Fingerprint] = true
	}
}

func TestPartsAreTheSameModel(t *testing.T) {
	s := spec(t, "qwen3")
	whole, err := gguf.HashModel(t.Context(), write(t, s, Options{}), nil)
	require.NoError(t, err)
	for _, o := range []Options{{Parts: 2}, {Parts: 3, HeaderFirst: true}} {
		m := write(t, s, o)
		require.Len(t, m.Paths, o.Parts)
		man, err := gguf.HashModel(t.Context(), m, nil)
		require.NoError(t, err)
		require.Equal(t, whole.Fingerprint, man.Fingerprint)
	}
}

func TestGemmaHasBothKindsOfLayers(t *testing.T) {
	m := write(t, spec(t, "gemma3"), Options{})
	require.True(t, m.Sliding(0))
	require.False(t, m.Sliding(5))
	require.True(t, m.Sliding(6))
	require.EqualValues(t, 32, m.Window())
}

func TestClaim(t *testing.T) {
	s := spec(t, "llama")
	s.Claim = "martian"
	require.Equal(t, "martian", write(t, s, Options{}).Architecture())
}

func TestValidateReportsAll(t *testing.T) {
	err := Spec{Arch: "x", Embd: 33, FF: 1, Heads: 3, KVHeads: 2, HeadLength: 3, Vocab: 2, SlidingWindow: -1, Type: gguf.Q4K}.Validate()
	for _, want := range []string{"architecture", "0 layers", "width 33", "feed-forward width 1", "3 heads and 2", "head length 3", "vocabulary of 2", "context of 0", "window of -1", "type q4_K"} {
		require.ErrorContains(t, err, want)
	}
	_, err = WriteWith(t.Context(), "x.gguf", Spec{}, Options{})
	require.Error(t, err)
	_, err = Default("x")
	require.ErrorContains(t, err, "gemma3")
	for _, arch := range Archs() {
		require.NoError(t, spec(t, arch).Validate())
	}
	s := spec(t, "llama")
	s.HeadLength = 64
	require.ErrorContains(t, s.Validate(), "add up")
}

func TestVocabulary(t *testing.T) {
	s := spec(t, "llama")
	s.Vocab = 30_000
	m := write(t, s, Options{})
	v, _ := m.KV.Get("tokenizer.ggml.tokens")
	tokens, _ := v.Texts()
	require.Len(t, tokens, s.Vocab)
	require.Equal(t, []string{"<unk>", "<s>", "</s>", "<0x00>"}, tokens[:4])
	require.Equal(t, []string{"<0xFF>", "▁", "!", "\""}, tokens[258:262])
	require.Equal(t, []string{"~", "aa", "ab"}, tokens[353:356])
	require.Equal(t, "aaa", tokens[354+26*26])
}

func TestDrawIsSpreadAsAsked(t *testing.T) {
	x := make([]float32, 200_000)
	draw(rand.NewPCG(1, 2), x, 0.5, 0.25)
	var sum, square float64
	for _, v := range x {
		sum += float64(v)
		square += float64(v) * float64(v)
	}
	mean := sum / float64(len(x))
	require.InDelta(t, 0.5, mean, 0.003)
	require.InDelta(t, 0.25, math.Sqrt(square/float64(len(x))-mean*mean), 0.003)
}

func TestQ8IsClose(t *testing.T) {
	x := make([]float32, 64)
	draw(rand.NewPCG(3, 4), x[:32], 0, 1)
	b := appendQ8(nil, x)
	require.Len(t, b, 2*34)
	scale := halfToFloat(binary.LittleEndian.Uint16(b))
	for i, v := range x[:32] {
		require.InDelta(t, v, scale*float64(int8(b[2+i])), scale*0.6)
	}
	require.Equal(t, make([]byte, 34), b[34:], "a block of zeros")
}

// halfToFloat decodes a normal, positive half.
func halfToFloat(h uint16) float64 { return math.Ldexp(1+float64(h&0x3ff)/1024, int(h>>10)-15) }

func TestShardsOfATiedModelBothHoldTheEmbedding(t *testing.T) {
	s := spec(t, "gemma3")
	m := write(t, s, Options{})
	embd := uint64(s.Embd * s.Vocab * 4)
	head, tail := m.OwnBytes(engine.LayerRange{End: 3}), m.OwnBytes(engine.LayerRange{First: 3})
	require.Equal(t, m.Bytes()+embd, head+tail)
}

func TestHollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	s := spec(t, "phi3")
	require.NoError(t, WriteHollow(path, s))
	m, err := gguf.Open(path)
	require.NoError(t, err)
	require.Equal(t, s.Size(), m.Bytes())
	require.Error(t, WriteHollow(path, Spec{}))
}
