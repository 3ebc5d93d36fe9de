package gguf

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func open(t *testing.T, path string) *Model {
	t.Helper()
	m, err := Open(path)
	require.NoError(t, err)
	return m
}

func fingerprint(t *testing.T, path string) Fingerprint {
	t.Helper()
	man, err := HashModel(t.Context(), open(t, path), nil)
	require.NoError(t, err)
	return man.Fingerprint
}

// The value pins the encoding that the package comment documents: it must never change for these bytes.
func TestFingerprintIsPinned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	x := TensorData{Name: "blk.0.x.weight", Dims: []uint64{2}, Type: F32, Write: Bytes([]byte{1, 2, 3, 4, 5, 6, 7, 8})}
	kv := []KeyValue{{"general.architecture", String("other")}, {"other.embedding_length", Uint32(2)}, {"other.block_count", Uint32(1)}}
	require.NoError(t, Write(path, kv, []TensorData{x}))

	// by hand, from the comment
	var b []byte
	le := func(n int, x uint64) {
		for i := range n {
			b = append(b, byte(x>>(8*i)))
		}
	}
	str := func(s string) { le(8, uint64(len(s))); b = append(b, s...) }
	b = append(b, "dgr model 1\n"...)
	le(8, 3)
	str("general.architecture")
	le(4, 8)
	str("other")
	str("other.block_count")
	le(4, 4)
	le(4, 1)
	str("other.embedding_length")
	le(4, 4)
	le(4, 2)
	le(8, 1)
	str("blk.0.x.weight")
	le(4, 0)
	le(8, 2)
	le(8, 1)
	le(8, 1)
	le(8, 1)
	sum := sha256.Sum256([]byte{1, 2, 3, 4, 5, 6, 7, 8})
	b = append(b, sum[:]...)

	require.Equal(t, Fingerprint(sha256.Sum256(b)), fingerprint(t, path))
}

func TestFingerprintIgnoresTheLayout(t *testing.T) {
	want := fingerprint(t, writeSmall(t))
	for _, parts := range []int{2, 3, 7} {
		for _, headerFirst := range []bool{false, true} {
			paths, err := Writer{}.WriteParts(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), parts, headerFirst, smallKeys(), smallTensors())
			require.NoError(t, err)
			require.Equal(t, want, fingerprint(t, paths[parts-1]))
		}
	}
	reversed := filepath.Join(t.TempDir(), "m.gguf")
	kv, tensors := smallKeys(), smallTensors()
	slices.Reverse(kv)
	slices.Reverse(tensors)
	require.NoError(t, Write(reversed, kv, tensors))
	require.Equal(t, want, fingerprint(t, reversed))
}

func TestFingerprintSeesEveryChange(t *testing.T) {
	seen := map[Fingerprint]string{fingerprint(t, writeSmall(t)): "small"}
	add := func(name string, kv []KeyValue, tensors []TensorData) {
		path := filepath.Join(t.TempDir(), "m.gguf")
		require.NoError(t, Write(path, kv, tensors))
		f := fingerprint(t, path)
		require.Empty(t, seen[f], name)
		seen[f] = name
	}
	kv := smallKeys()
	kv[1].Value = String("smalm")
	add("value", kv, smallTensors())
	add("key", append(smallKeys(), KeyValue{"general.author", String("")}), smallTensors())
	kv = smallKeys()
	kv[3].Value = Int32(128)
	add("value type", kv, smallTensors())
	tensors := smallTensors()
	tensors[1].Name = "blk.0.attn_norm.bias"
	add("tensor name", smallKeys(), tensors)
	tensors = smallTensors()
	tensors[2].Dims = []uint64{64, 16}
	add("tensor shape", smallKeys(), tensors)
	tensors = smallTensors()
	tensors[2].Type = BF16
	add("tensor type", smallKeys(), tensors)
	tensors = smallTensors()
	tensors[2].Write = Bytes(make([]byte, 2*32*32))
	add("tensor data", smallKeys(), tensors)
}

// withCacheDir sends the user's cache directory to a fresh one.
func withCacheDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir)
	t.Setenv("LocalAppData", dir)
	return dir
}

func TestManifestIsKeptBesideTheFile(t *testing.T) {
	withCacheDir(t)
	path := writeSmall(t)
	m := open(t, path)
	first, err := BuildManifest(t.Context(), m, nil, nil)
	require.NoError(t, err)
	require.False(t, first.FromCache)
	require.Equal(t, path+".dgr-manifest.json", first.CachePath)

	own := m.Own(engine.LayerRange{First: 1, End: 2})
	var read, total uint64
	again, err := BuildManifest(t.Context(), open(t, path), own, func(done, of uint64) {
		require.GreaterOrEqual(t, done, read)
		read, total = done, of
	})
	require.NoError(t, err)
	require.True(t, again.FromCache)
	require.Equal(t, first.Fingerprint, again.Fingerprint)
	require.Equal(t, m.OwnBytes(engine.LayerRange{First: 1}), read, "only own tensors are read")
	require.Equal(t, read, total)
}

func TestManifestOfPartsIsKeptBesideTheFirst(t *testing.T) {
	withCacheDir(t)
	paths, err := Writer{}.WriteParts(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), 3, false, smallKeys(), smallTensors())
	require.NoError(t, err)
	man, err := BuildManifest(t.Context(), open(t, paths[2]), nil, nil)
	require.NoError(t, err)
	require.Equal(t, paths[0]+".dgr-manifest.json", man.CachePath)
	again, err := BuildManifest(t.Context(), open(t, paths[1]), nil, nil)
	require.NoError(t, err)
	require.True(t, again.FromCache)
	// a change of the last part alone is seen
	require.NoError(t, os.Chtimes(paths[2], time.Time{}, time.Unix(1, 0)))
	again, err = BuildManifest(t.Context(), open(t, paths[0]), nil, nil)
	require.NoError(t, err)
	require.False(t, again.FromCache)
}

func TestManifestInTheUsersCache(t *testing.T) {
	if os.Getuid() == 0 {
		// root may write anywhere, so a directory in the manifest's place stands in for a directory without permission
		cache := withCacheDir(t)
		path := writeSmall(t)
		require.NoError(t, os.MkdirAll(filepath.Join(path+".dgr-manifest.json", "x"), 0o755))
		requireCachedIn(t, cache, path)
		return
	}
	cache := withCacheDir(t)
	path := writeSmall(t)
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o555))
	t.Cleanup(func() { _ = os.Chmod(filepath.Dir(path), 0o755) })
	requireCachedIn(t, cache, path)
}

func requireCachedIn(t *testing.T, cache, path string) {
	t.Helper()
	man, err := BuildManifest(t.Context(), open(t, path), nil, nil)
	require.NoError(t, err)
	rel, err := filepath.Rel(cache, man.CachePath)
	require.NoError(t, err)
	require.True(t, filepath.IsLocal(rel), man.CachePath)
	again, err := BuildManifest(t.Context(), open(t, path), nil, nil)
	require.NoError(t, err)
	require.True(t, again.FromCache)
}

func TestStaleManifestIsMadeAnew(t *testing.T) {
	withCacheDir(t)
	stale := map[string]func(t *testing.T, path string){
		"other time": func(t *testing.T, path string) { require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(1, 0))) },
		"other file": func(t *testing.T, path string) { // same bytes, same time, another inode
			info, err := os.Stat(path)
			require.NoError(t, err)
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path+"2", b, 0o644))
			require.NoError(t, os.Chtimes(path+"2", time.Time{}, info.ModTime()))
			require.NoError(t, os.Rename(path+"2", path))
		},
		"other size": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.Write(make([]byte, 32))
			require.NoError(t, err)
			require.NoError(t, f.Close())
			require.NoError(t, os.Chtimes(path, time.Time{}, info.ModTime()))
		},
		"no JSON": func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path+".dgr-manifest.json", []byte("{"), 0o644))
		},
		"another form": func(t *testing.T, path string) {
			edit(t, path, func(f *manifestFile) { f.Form = "dgr manifest 2" })
		},
		"a sum changed": func(t *testing.T, path string) {
			edit(t, path, func(f *manifestFile) { f.Tensors[0].Sum = f.Tensors[1].Sum })
		},
		"a tensor lost": func(t *testing.T, path string) {
			edit(t, path, func(f *manifestFile) { f.Tensors = f.Tensors[1:] })
		},
		"fingerprint changed": func(t *testing.T, path string) {
			edit(t, path, func(f *manifestFile) { f.Fingerprint = f.Tensors[1].Sum })
		},
	}
	for name, change := range stale {
		t.Run(name, func(t *testing.T) {
			path := writeSmall(t)
			first, err := BuildManifest(t.Context(), open(t, path), nil, nil)
			require.NoError(t, err)
			change(t, path)
			again, err := BuildManifest(t.Context(), open(t, path), nil, nil)
			require.NoError(t, err)
			require.False(t, again.FromCache)
			require.Equal(t, first.Fingerprint, again.Fingerprint)
			third, err := BuildManifest(t.Context(), open(t, path), nil, nil)
			require.NoError(t, err)
			require.True(t, third.FromCache)
		})
	}
}

func edit(t *testing.T, path string, change func(*manifestFile)) {
	t.Helper()
	b, err := os.ReadFile(path + ".dgr-manifest.json")
	require.NoError(t, err)
	var f manifestFile
	require.NoError(t, json.Unmarshal(b, &f))
	change(&f)
	b, err = json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path+".dgr-manifest.json", b, 0o644))
}

// spoil changes one byte of a tensor and makes the file look untouched.
func spoil(t *testing.T, m *Model, name string) {
	t.Helper()
	i := slices.IndexFunc(m.Tensors, func(t Tensor) bool { return t.Name == name })
	path := m.Paths[m.Tensors[i].Part]
	info, err := os.Stat(path)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	var b [1]byte
	off := int64(m.Tensors[i].Offset + m.Tensors[i].Size - 1)
	_, err = f.ReadAt(b[:], off)
	require.NoError(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b[:], off)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(path, time.Time{}, info.ModTime()))
}

func TestVerifyFindsASpoiledTensor(t *testing.T) {
	withCacheDir(t)
	path := writeSmall(t)
	m := open(t, path)
	_, err := BuildManifest(t.Context(), m, nil, nil)
	require.NoError(t, err)
	spoil(t, m, "blk.0.attn_q.weight")

	_, err = BuildManifest(t.Context(), open(t, path), m.Own(engine.LayerRange{First: 1, End: 2}), nil)
	require.NoError(t, err, "another shard's tensor is none of this one's business")
	_, err = BuildManifest(t.Context(), open(t, path), m.Own(engine.LayerRange{First: 0, End: 1}), nil)
	requireBad(t, err, path, `"blk.0.attn_q.weight"`)
}

func TestManifestOfAFileThatChangesMeanwhile(t *testing.T) {
	withCacheDir(t)
	path := writeSmall(t)
	m := open(t, path)
	require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(1, 0)))
	_, err := BuildManifest(t.Context(), m, nil, nil)
	requireBad(t, err, path, "changed while it was read")

	m = open(t, path)
	_, err = HashModel(t.Context(), m, func(done, total uint64) {
		if done == total {
			_ = os.Chtimes(path, time.Time{}, time.Unix(2, 0))
		}
	})
	requireBad(t, err, path, "changed while it was read")

	m = open(t, path)
	require.NoError(t, os.Remove(path))
	_, err = BuildManifest(t.Context(), m, nil, nil)
	requireBad(t, err, path, "does not exist")
}

func TestManifestStopsWithItsContext(t *testing.T) {
	withCacheDir(t)
	path := writeSmall(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := BuildManifest(ctx, open(t, path), nil, func(done, _ uint64) {
		if done == 0 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, path+".dgr-manifest.json")
}

// TestManifestIsMadeOnce starts several makers at once: one reads the whole model, the others only their own tensors.
func TestManifestIsMadeOnce(t *testing.T) {
	skipWithoutLocks(t)
	withCacheDir(t)
	path := writeSmall(t)
	m := open(t, path)
	own := m.Own(engine.LayerRange{First: 1, End: 2})
	const makers = 5
	var whole, read atomic.Uint64
	var g errgroup.Group
	for range makers {
		g.Go(func() error {
			var last uint64
			man, err := BuildManifest(t.Context(), m, own, func(done, _ uint64) { last = done })
			if err == nil && !man.FromCache {
				whole.Add(1)
			}
			read.Add(last)
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.EqualValues(t, 1, whole.Load())
	require.Equal(t, m.Bytes()+(makers-1)*m.OwnBytes(engine.LayerRange{First: 1, End: 2}), read.Load())
}

func TestWaitingForAManifestEndsWithTheContext(t *testing.T) {
	skipWithoutLocks(t)
	withCacheDir(t)
	m := open(t, writeSmall(t))
	unlock, err := m.lockManifest(t.Context())
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = BuildManifest(ctx, m, nil, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestManifestWithoutACacheDirectory(t *testing.T) {
	file := filepath.Join(withCacheDir(t), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	t.Setenv("XDG_CACHE_HOME", file)
	t.Setenv("HOME", file)
	t.Setenv("LocalAppData", file)
	man, err := BuildManifest(t.Context(), open(t, writeSmall(t)), nil, nil)
	require.NoError(t, err)
	require.NotEmpty(t, man.CachePath, "beside the file")
}

func skipWithoutLocks(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("no advisory locks here")
	}
}
