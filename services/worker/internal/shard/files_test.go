package shard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

func TestStoreGivesOnlyItsOwn(t *testing.T) {
	top := t.TempDir()
	folder := filepath.Join(top, "store")
	for _, path := range []string{"store/a.gguf", "store/b", "store/.hidden.gguf", "outside.gguf"} {
		path = filepath.Join(top, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(top, "outside.gguf"), filepath.Join(folder, "link.gguf")); err != nil {
		t.Fatal(err)
	}
	s := Store{Folder: folder}
	for name, want := range map[string]string{"a": "a.gguf", "a.gguf": "a.gguf", "b": "b"} {
		if got, err := s.Path(name); err != nil || got != filepath.Join(folder, want) {
			t.Errorf("%q is %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../outside.gguf", "/etc/passwd", `..\outside`, ".hidden", "a\x00", strings.Repeat("a", 257)} {
		if _, err := s.Path(name); !errors.Is(err, code(workerpb.ErrorCode_ERROR_CODE_MALFORMED)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"none", "link"} {
		if _, err := s.Path(name); !errors.Is(err, engine.BadModelFile) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := (Store{}).Path("a"); !errors.Is(err, code(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)) {
		t.Errorf("no store: %v", err)
	}
}

func TestFilesRefuseWhatIsNoModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, []byte("GGUF\x03\x00\x00\x00\x01"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, path + ".none"} {
		_, err := Files{}.Open(context.Background(), p)
		if !errors.Is(err, engine.BadModelFile) || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// written is a tiny model in so many files, and the name of the last one.
func written(t *testing.T, parts int, seed uint64) string {
	t.Helper()
	spec, err := tiny.Default("llama")
	if err != nil {
		t.Fatal(err)
	}
	spec.Seed = seed
	paths, err := tiny.WriteWith(t.Context(), filepath.Join(t.TempDir(), "m.gguf"), spec, tiny.Options{Parts: parts})
	if err != nil {
		t.Fatal(err)
	}
	return paths[len(paths)-1]
}

// loadFile loads layers of a file into the fake engine, which reads none of it, and returns what is loaded.
func loadFile(t *testing.T, path string, layers engine.LayerRange) Loaded {
	t.Helper()
	w := newWorld(t)
	defer w.end(t)
	order := Order{Source: Files{Engines: fake.Factory(fake.Default())}, Model: path, Layers: layers}
	if err := w.Load(t.Context(), order, nil); err != nil {
		t.Fatal(err)
	}
	return *w.Status().Loaded
}

func TestFilesHaveAnIdentity(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	one, parts, other := written(t, 1, 1), written(t, 3, 1), written(t, 1, 2)
	first := loadFile(t, one, engine.LayerRange{})
	again := loadFile(t, one, engine.LayerRange{First: 1, End: 3})
	split := loadFile(t, parts, engine.LayerRange{First: 3})
	foreign := loadFile(t, other, engine.LayerRange{})
	if first.Fingerprint != again.Fingerprint || first.Fingerprint != split.Fingerprint || first.Fingerprint == foreign.Fingerprint {
		t.Errorf("fingerprints: one %x, again %x, in parts %x, another %x", first.Fingerprint, again.Fingerprint, split.Fingerprint, foreign.Fingerprint)
	}
	if first.Verified != workerpb.Verified_VERIFIED_ALL || again.Verified != workerpb.Verified_VERIFIED_OWN {
		t.Errorf("first %v, again %v", first.Verified, again.Verified)
	}
	if split.Info.Layers != (engine.LayerRange{First: 3, End: 4}) {
		t.Errorf("the rest from layer 3 is %v", split.Info.Layers)
	}
}

// A tensor that rots without anything else changing must not be served.
func TestRottenFileIsFound(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path := written(t, 1, 1)
	loadFile(t, path, engine.LayerRange{})
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, info.Size()-5); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, info.Size()-5); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	defer w.end(t)
	order := Order{Source: Files{Engines: fake.Factory(fake.Default())}, Model: path}
	if err := w.Load(t.Context(), order, nil); !errors.Is(err, engine.BadModelFile) || !strings.Contains(err.Error(), path) {
		t.Errorf("error is %v", err)
	}
}

// What others read of a model that cannot be loaded names files, and no folder of this machine.
func TestErrorsForOthersNameNoPaths(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "broken-00001-of-00002.gguf")
	if err := os.WriteFile(path, []byte("GGUF and nothing more"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	defer w.end(t)
	err := w.Load(t.Context(), Order{Source: Files{Engines: fake.Factory(fake.Default())}, Model: path}, nil)
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("who ordered the load reads %v, and no path", err)
	}
	for _, shown := range []error{Named(err, path), w.Status().Err} {
		if text := shown.Error(); strings.Contains(text, folder) || !strings.Contains(text, "broken-00001") || !errors.Is(shown, engine.BadModelFile) {
			t.Errorf("others read %v", shown)
		}
	}
	if _, err := (Store{Folder: filepath.Join(folder, "gone")}).Path("m"); err == nil || strings.Contains(err.Error(), folder) {
		t.Errorf("a store that is gone gives %v", err)
	}
}
