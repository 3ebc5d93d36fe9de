package shard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Files is the Source of GGUF files; a name is the path of the file, or of any of its parts.
type Files struct {
	Engines engine.Factory
}

// Open validates the headers of all parts.
func (f Files) Open(ctx context.Context, path string) (Model, error) {
	if ctx.Err() != nil {
		return nil, cancelled()
	}
	m, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	if arch := m.Architecture(); !gguf.Adapted(arch) { // the engine says so too, but only after all was hashed
		return nil, engine.Errorf(engine.UnsupportedArchitecture, "%s is of the architecture %q, which cannot be cut; use one of %s", path, arch,
			strings.Join(gguf.AdaptedArchitectures(), ", "))
	}
	return file{m, f.Engines}, nil
}

// file is one opened GGUF model.
type file struct {
	model   *gguf.Model
	engines engine.Factory
}

func (f file) Paths() []string { return f.model.Paths }
func (f file) Layers() uint32  { return f.model.NLayer() }

func (f file) Held() engine.LayerRange { return f.model.Held() }

func (f file) Identify(ctx context.Context, layers engine.LayerRange, progress func(done, total uint64)) ([32]byte, workerpb.Verified, error) {
	manifest, err := gguf.BuildManifest(ctx, f.model, f.model.Own(layers), progress)
	if err != nil {
		if ctx.Err() != nil {
			return [32]byte{}, 0, cancelled()
		}
		return [32]byte{}, 0, err
	}
	if manifest.FromCache {
		return manifest.Fingerprint, workerpb.Verified_VERIFIED_OWN, nil
	}
	return manifest.Fingerprint, workerpb.Verified_VERIFIED_ALL, nil
}

func (f file) NewEngine() (engine.ShardEngine, engine.TextEngine, error) { return f.engines() }

// Named is an error about a model as callers from elsewhere may read it: files have their names in the store, and no paths.
func Named(err error, model string) *fault.Error {
	folder := filepath.Dir(model)
	f := fault.Of(err)
	if f == nil || folder == "." {
		return f
	}
	return f.With(func(e *fault.Error) {
		e.Message = strings.ReplaceAll(e.Message, strings.TrimSuffix(folder, string(filepath.Separator))+string(filepath.Separator), "")
	})
}

// Store is the folder of the models that LoadShard may name. The zero Store holds nothing.
type Store struct {
	Folder string
}

// Path returns the path of the model that name means: name itself or with .gguf behind it, a file directly in the folder.
// A name is never a path, so that a caller reaches no other file.
//
// Errors: MALFORMED (no name of a file), PERMISSION_DENIED (there is no store), BAD_MODEL_FILE (no such model).
func (s Store) Path(name string) (string, error) {
	if s.Folder == "" {
		return "", fault.New(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, "this worker has no model store; start it with --store")
	}
	if name == "" || len(name) > 256 || strings.HasPrefix(name, ".") || strings.ContainsAny(name, `/\`+"\x00") {
		return "", fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "%q is no name of a model in the store", name)
	}
	root, err := os.OpenRoot(s.Folder)
	if err != nil {
		var at *os.PathError // where the folder is, is nobody's business
		if errors.As(err, &at) {
			err = at.Err
		}
		return "", fault.New(workerpb.ErrorCode_ERROR_CODE_BAD_MODEL_FILE, "the model store cannot be opened (%w); its operator has to see to it", err)
	}
	defer root.Close()
	for _, candidate := range []string{name, name + ".gguf"} {
		if info, err := root.Stat(candidate); err == nil && info.Mode().IsRegular() {
			return filepath.Join(s.Folder, candidate), nil
		}
	}
	return "", fault.New(workerpb.ErrorCode_ERROR_CODE_BAD_MODEL_FILE, "the store has no model %q", name)
}
