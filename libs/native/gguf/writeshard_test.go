package gguf

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// cut writes the shards of a model, cut at the layers, and returns their paths.
func cut(t *testing.T, m *Model, dir string, cuts ...uint32) []string {
	t.Helper()
	man, err := BuildManifest(t.Context(), m, nil, nil)
	require.NoError(t, err)
	var paths []string
	first := m.Held().First
	for i := range len(cuts) + 1 {
		end := m.Held().End
		if i < len(cuts) {
			end = cuts[i]
		}
		path := filepath.Join(dir, string(rune('a'+i))+".gguf")
		w, err := m.WriteShard(t.Context(), man, Shard{path, engine.LayerRange{First: first, End: end}}, nil)
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.EqualValues(t, info.Size(), w.Size)
		require.NoFileExists(t, path+partialSuffix)
		paths, first = append(paths, path), end
	}
	return paths
}

func openAll(t *testing.T, paths []string) (all []*Model) {
	for _, p := range paths {
		all = append(all, open(t, p))
	}
	return all
}

func TestShardsHaveTheModelsFingerprint(t *testing.T) {
	tied := append([]TensorData(nil), smallTensors()[:len(smallTensors())-1]...)
	for name, tensors := range map[string][]TensorData{"untied": smallTensors(), "tied": tied} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			require.NoError(t, Write(path, smallKeys(), tensors))
			m := open(t, path)
			want := fingerprint(t, path)
			shards := openAll(t, cut(t, m, t.TempDir(), 1))
			for i, s := range shards {
				require.True(t, s.IsShard())
				require.Equal(t, engine.LayerRange{First: uint32(i), End: uint32(i + 1)}, s.Held())
				require.Equal(t, m.Tied(), s.Tied())
				require.Equal(t, m.NLayer(), s.NLayer())
				require.Equal(t, m.OwnBytes(s.Held()), s.Bytes(), "it holds its own tensors and no others")
				var read uint64
				man, err := BuildManifest(t.Context(), s, s.Own(s.Held()), func(done, _ uint64) { read = done })
				require.NoError(t, err)
				require.Equal(t, want, man.Fingerprint)
				require.Equal(t, s.Bytes(), read)
				require.NoFileExists(t, s.Paths[0]+manifestSuffix)
			}
			got, err := VerifyShards(t.Context(), []*Model{shards[1], shards[0]}, &want, nil)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

// Shards of a model in parts, and shards of shards, are the same files.
func TestShardsDoNotDependOnTheirSource(t *testing.T) {
	dir := t.TempDir()
	whole := open(t, writeSmall(t))
	want := cut(t, whole, t.TempDir(), 1)
	parts, err := Writer{}.WriteParts(t.Context(), filepath.Join(dir, "p.gguf"), 3, true, smallKeys(), smallTensors())
	require.NoError(t, err)
	again := cut(t, open(t, cut(t, whole, t.TempDir())[0]), t.TempDir(), 1)
	for name, got := range map[string][]string{"parts": cut(t, open(t, parts[1]), t.TempDir(), 1), "a shard": again} {
		for i := range want {
			require.Equal(t, read(t, want[i]), read(t, got[i]), "%s, shard %d", name, i)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func TestWriteShardGoesOnWhereItWasStopped(t *testing.T) {
	m := open(t, writeSmall(t))
	man, err := BuildManifest(t.Context(), m, nil, nil)
	require.NoError(t, err)
	want := read(t, cut(t, m, t.TempDir())[0])
	for name, partial := range map[string][]byte{
		"nothing": nil, "half of the head": want[:100], "the head": want[:len(want)-int(m.Bytes())], "half of the data": want[:len(want)-int(m.Bytes())/2],
		"all": want, "more": append(append([]byte(nil), want...), 1, 2, 3), "another file": make([]byte, len(want)),
	} {
		path := filepath.Join(t.TempDir(), "s.gguf")
		require.NoError(t, os.WriteFile(path+partialSuffix, partial, 0o600))
		w, err := m.WriteShard(t.Context(), man, Shard{Path: path}, nil)
		require.NoError(t, err, name)
		require.Equal(t, want, read(t, path), name)
		require.Equal(t, name == "half of the data" || name == "all" || name == "more", w.Kept > 0, "%s: %d bytes were kept", name, w.Kept)
	}

	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "s.gguf")
	_, err = m.WriteShard(ctx, man, Shard{Path: path}, func(done, total uint64) {
		if done > total/2 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, path)
	w, err := m.WriteShard(t.Context(), man, Shard{Path: path}, nil)
	require.NoError(t, err)
	require.NotZero(t, w.Kept)
	require.Equal(t, want, read(t, path))
	w, err = m.WriteShard(t.Context(), man, Shard{Path: path}, nil)
	require.NoError(t, err, "the same again")
	require.Equal(t, m.Bytes(), w.Kept)
}

func TestWriteShardRefuses(t *testing.T) {
	m := open(t, writeSmall(t))
	man, err := BuildManifest(t.Context(), m, nil, nil)
	require.NoError(t, err)
	write := func(path string, first, end uint32) error {
		_, err := m.WriteShard(t.Context(), man, Shard{path, engine.LayerRange{First: first, End: end}}, nil)
		return err
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "s.gguf")
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	require.ErrorIs(t, write(path, 0, 1), ErrExists)
	require.Equal(t, "mine", string(read(t, path)))
	good := cut(t, m, t.TempDir(), 1)
	require.ErrorIs(t, write(good[0], 1, 2), ErrExists, "another shard")
	require.ErrorContains(t, write(filepath.Join(dir, "none", "s.gguf"), 0, 1), "none")
	for _, layers := range [][2]uint32{{1, 1}, {0, 3}, {2, 0}} {
		require.ErrorIs(t, write(filepath.Join(dir, "x.gguf"), layers[0], layers[1]), engine.ShardMismatch)
	}
	head := open(t, good[0])
	_, err = head.WriteShard(t.Context(), man, Shard{Path: filepath.Join(dir, "x.gguf"), Layers: engine.LayerRange{First: 1, End: 2}}, nil)
	require.ErrorIs(t, err, engine.ShardMismatch, "a shard holds no other layers")

	// the source changes its mind
	data := read(t, m.Paths[0])
	data[len(data)-40] ^= 1
	require.NoError(t, os.WriteFile(m.Paths[0], data, 0o600))
	err = write(filepath.Join(dir, "y.gguf"), 0, 2)
	require.ErrorIs(t, err, engine.BadModelFile)
	require.NoFileExists(t, filepath.Join(dir, "y.gguf"))
}

func TestBrokenShardsAreRefused(t *testing.T) {
	m := open(t, writeSmall(t))
	paths := cut(t, m, t.TempDir(), 1)
	head := open(t, paths[0])
	keys := head.KV.All()
	var tensors []TensorData
	for _, d := range smallTensors() {
		if head.Own(head.Held())(Tensor{Name: d.Name}) {
			tensors = append(tensors, d)
		}
	}
	with := func(key string, v Value) []KeyValue {
		var out []KeyValue
		for _, kv := range keys {
			if kv.Key == key {
				kv.Value = v
			}
			out = append(out, kv)
		}
		return out
	}
	get := func(key string) []string {
		v, _ := head.KV.Get(key)
		s, _ := v.Texts()
		return append([]string(nil), s...)
	}
	names, sums := get(keyShardTensors), get(keyShardSums)
	swapped := append([]string{names[1], names[0]}, names[2:]...)
	wrongSum := append([]string(nil), sums...)
	wrongSum[0] = wrongSum[1]
	path := filepath.Join(t.TempDir(), "x.gguf")
	for name, c := range map[string]struct {
		keys    []KeyValue
		tensors []TensorData
		late    bool // only the fingerprint shows it
	}{
		"as it was":               {keys, tensors, true},
		"range of no layers":      {with(keyShardEnd, Uint32(0)), tensors, false},
		"range beyond the model":  {with(keyShardEnd, Uint32(3)), tensors, false},
		"range of another shard":  {with(keyShardFirst, Uint32(1)), tensors, false},
		"range of another type":   {with(keyShardFirst, Uint64(0)), tensors, false},
		"fingerprint of no model": {with(keyShardFingerprint, String("abc")), tensors, false},
		"another fingerprint":     {with(keyShardFingerprint, String(sums[0])), tensors, true},
		"names out of order":      {with(keyShardTensors, Strings(swapped)), tensors, false},
		"too few names":           {with(keyShardTensors, Strings(names[1:])), tensors, false},
		"sum of another tensor":   {with(keyShardSums, Strings(wrongSum)), tensors, true},
		"no dimensions":           {with(keyShardDims, Uint64s(nil)), tensors, false},
		"metadata of another":     {with("general.name", String("other")), tensors, true},
		"a tensor is missing":     {keys, tensors[1:], false},
		"a tensor too many":       {keys, append(tensors[:len(tensors):len(tensors)], tensorOf("blk.0.more.weight", F32, 4)), false},
	} {
		require.NoError(t, writeFile(t.Context(), path, c.keys, c.tensors, &progress{}))
		got, err := Open(path)
		if c.late {
			require.NoError(t, err, name)
			_, err = BuildManifest(t.Context(), got, nil, nil)
		}
		if name == "as it was" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, engine.BadModelFile, name)
		}
	}

	// one bit of the data
	data := read(t, paths[0])
	data[len(data)-40] ^= 1
	require.NoError(t, os.WriteFile(path, data, 0o600))
	broken := open(t, path)
	_, err := BuildManifest(t.Context(), broken, broken.Own(broken.Held()), nil)
	require.ErrorContains(t, err, "than the model that it is a shard of")
}

func TestVerifyShardsRefuses(t *testing.T) {
	m := open(t, writeSmall(t))
	shards := openAll(t, cut(t, m, t.TempDir(), 1))
	whole := open(t, cut(t, m, t.TempDir())[0])
	other := smallKeys()
	other[1].Value = String("other")
	path := filepath.Join(t.TempDir(), "o.gguf")
	require.NoError(t, Write(path, other, smallTensors()))
	foreign := openAll(t, cut(t, open(t, path), t.TempDir(), 1))
	for name, set := range map[string][]*Model{
		"none": nil, "no head": shards[1:], "no tail": shards[:1], "twice": {shards[0], shards[0], shards[1]},
		"overlap": {shards[0], whole}, "two models": {shards[0], foreign[1]},
	} {
		_, err := VerifyShards(t.Context(), set, nil, nil)
		require.ErrorIs(t, err, engine.ShardMismatch, name)
	}
	want := fingerprint(t, path)
	_, err := VerifyShards(t.Context(), shards, &want, nil)
	require.ErrorIs(t, err, engine.ShardMismatch, "the shards of another model")
}
