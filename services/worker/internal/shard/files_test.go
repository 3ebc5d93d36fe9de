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
