package gguf

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func ownNames(m *Model, first, end uint32) []string {
	var names []string
	own := m.Own(engine.LayerRange{First: first, End: end})
	for _, t := range m.Tensors {
		if own(t) {
			names = append(names, t.Name)
		}
	}
	return names
}

func layerNames(blk string) []string {
	return []string{blk + "attn_norm.weight", blk + "attn_q.weight", blk + "attn_k.weight", blk + "ffn_up.weight"}
}

func TestOwnTensors(t *testing.T) {
	m := open(t, writeSmall(t))
	require.Equal(t, append(append([]string{"token_embd.weight"}, layerNames("blk.0.")...), "rope_freqs.weight"), ownNames(m, 0, 1))
	require.Equal(t, append(layerNames("blk.1."), "rope_freqs.weight", "output_norm.weight", "output.weight"), ownNames(m, 1, 2))
	require.Equal(t, ownNames(m, 1, 2), ownNames(m, 1, 0), "end 0 is the last layer")
	require.Len(t, ownNames(m, 0, 2), len(m.Tensors))
	require.Equal(t, m.Bytes(), m.OwnBytes(engine.LayerRange{}))
}

func TestOwnTensorsTied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tied.gguf")
	tensors := smallTensors()
	require.NoError(t, Write(path, smallKeys(), tensors[:len(tensors)-1]))
	m := open(t, path)
	require.True(t, m.Tied())
	require.Contains(t, ownNames(m, 0, 1), "token_embd.weight")
	require.Contains(t, ownNames(m, 1, 2), "token_embd.weight")
	require.NotContains(t, ownNames(m, 0, 1), "output_norm.weight")
}

// Layers for multi-token prediction are no layers to divide; they go with the tail.
func TestOwnTensorsOfPrediction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mtp.gguf")
	kv := append(smallKeys(), KeyValue{"llama.nextn_predict_layers", Uint32(1)})
	kv[2].Value = Uint32(3)
	require.NoError(t, Write(path, kv, append(smallTensors(), tensorOf("blk.2.nextn.eh_proj.weight", F32, 32))))
	m := open(t, path)
	require.EqualValues(t, 2, m.NLayer())
	require.Contains(t, ownNames(m, 1, 2), "blk.2.nextn.eh_proj.weight")
	require.NotContains(t, ownNames(m, 0, 1), "blk.2.nextn.eh_proj.weight")
}

func TestRoles(t *testing.T) {
	m := &Model{arch: "bloom"}
	for name, want := range map[string]Role{
		"blk.0.attn_q.weight":         RoleLayer,
		"blk.11.ffn_up_exps.scale":    RoleLayer,
		"token_embd.weight":           RoleHead,
		"token_embd_norm.bias":        RoleHead,
		"position_embd.weight":        RoleHead,
		"per_layer_token_embd.weight": RoleHead,
		"output.weight":               RoleTail,
		"output.bias":                 RoleTail,
		"output_norm.weight":          RoleTail,
		"output_hc_fn.weight":         RoleTail,
		"cls.output.bias":             RoleTail,
		"rope_freqs.weight":           RoleShared,
		"rope_factors_long.weight":    RoleShared,
		"blk.x.attn_q.weight":         RoleShared,
	} {
		require.Equal(t, want, m.Role(Tensor{Name: name}), name)
	}
	m.arch = "lfm2"
	require.Equal(t, RoleTail, m.Role(Tensor{Name: "token_embd_norm.weight"}))
}

func TestLayer(t *testing.T) {
	m := &Model{}
	for name, want := range map[string]int{"blk.0.a": 0, "blk.17.b.c": 17, "blk.511.x": 511} {
		il, ok := m.Layer(Tensor{Name: name})
		require.True(t, ok, name)
		require.Equal(t, want, il)
	}
	for _, name := range []string{"output.weight", "blk.a.b", "blk.-1.b", "blk.1", "xblk.1.b", "blk..b"} {
		_, ok := m.Layer(Tensor{Name: name})
		require.False(t, ok, name)
	}
}

func TestSlidingLayers(t *testing.T) {
	model := func(arch string, kv ...KeyValue) *Model {
		m := &Model{arch: arch, blocks: 7}
		for _, k := range append([]KeyValue{{arch + ".embedding_length", Uint32(128)}, {arch + ".attention.head_count", Uint32(4)},
			{arch + ".attention.head_count_kv", Uint32(2)}}, kv...) {
			require.True(t, m.KV.add(k.Key, k.Value))
		}
		return m
	}
	sliding := func(m *Model) (s string) {
		for il := range m.NLayer() {
			s += map[bool]string{true: "s", false: "-"}[m.Sliding(il)]
		}
		return s
	}
	window := func(arch string) KeyValue { return KeyValue{arch + ".attention.sliding_window", Uint32(32)} }
	require.Equal(t, "sssss-s", sliding(model("gemma3", window("gemma3"))))
	require.Equal(t, "s-s-s-s", sliding(model("gemma3", window("gemma3"), KeyValue{"gemma3.attention.sliding_window_pattern", Uint32(2)})))
	require.Equal(t, "ss--sss", sliding(model("gemma3", window("gemma3"),
		KeyValue{"gemma3.attention.sliding_window_pattern", Bools([]bool{true, true, false, false, true, true, true})})))
	require.Equal(t, "-------", sliding(model("gemma3")))
	require.Equal(t, "-------", sliding(model("phi3", window("phi3"))))
	require.Equal(t, "-sss-ss", sliding(model("smallthinker", window("smallthinker"))))

	k, v := model("llama").CacheRow(0)
	require.Equal(t, []uint64{64, 64}, []uint64{k, v})
	k, v = model("llama", KeyValue{"llama.attention.key_length", Uint32(48)}, KeyValue{"llama.attention.value_length", Uint32(16)}).CacheRow(0)
	require.Equal(t, []uint64{96, 32}, []uint64{k, v})
	m := model("gemma3", window("gemma3"), KeyValue{"gemma3.attention.key_length_swa", Uint32(8)})
	k, _ = m.CacheRow(0)
	require.EqualValues(t, 16, k)
	k, _ = m.CacheRow(5)
	require.EqualValues(t, 64, k)
	m = &Model{arch: "jamba", blocks: 2}
	m.KV.add("jamba.embedding_length", Uint32(64))
	m.KV.add("jamba.attention.head_count", Uint32(4))
	m.KV.add("jamba.attention.head_count_kv", Int32s([]int32{0, 2}))
	k, v = m.CacheRow(0)
	require.Zero(t, k+v)
	k, _ = m.CacheRow(1)
	require.EqualValues(t, 32, k)
}
