package gguf

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
)

// manifestFile is the form of a kept manifest. A form that is not understood is not used.
type manifestFile struct {
	Form        string         `json:"form"` // manifestForm
	Fingerprint string         `json:"fingerprint"`
	Files       []manifestPart `json:"files"`
	Tensors     []manifestSum  `json:"tensors"`
}

type manifestPart struct {
	Name string `json:"name"`
	FileState
}

type manifestSum struct {
	Name string `json:"name"`
	Sum  string `json:"sha256"`
}

const (
	manifestForm   = "dgr manifest 1"
	manifestSuffix = ".dgr-manifest.json"
	maxManifest    = 64 << 20 // bytes; a manifest takes about 120 a tensor
)

// cachePaths are the places of a model's manifest, the preferred one first.
func (m *Model) cachePaths() []string {
	paths := []string{m.Paths[0] + manifestSuffix}
	dir, err := os.UserCacheDir()
	if err != nil {
		return paths
	}
	abs, err := filepath.Abs(m.Paths[0])
	if err != nil {
		return paths
	}
	sum := sha256.Sum256([]byte(abs))
	return append(paths, filepath.Join(dir, "dgr", "manifests", hex.EncodeToString(sum[:16])+manifestSuffix))
}

// cached returns a kept manifest that still holds, or nil.
func (m *Model) cached() *Manifest {
	for _, path := range m.cachePaths() {
		if info, err := os.Stat(path); err != nil || info.Size() > maxManifest {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if man := m.decodeManifest(b); man != nil {
			man.CachePath, man.FromCache = path, true
			return man
		}
	}
	return nil
}

// decodeManifest returns nil for whatever is not the manifest of these very files.
func (m *Model) decodeManifest(b []byte) *Manifest {
	var f manifestFile
	if json.Unmarshal(b, &f) != nil || f.Form != manifestForm || len(f.Files) != len(m.Parts) {
		return nil
	}
	for i, p := range m.Parts {
		if f.Files[i] != (manifestPart{filepath.Base(p.Path), p.State}) {
			return nil
		}
	}
	man := &Manifest{Sums: make(map[string][sha256.Size]byte, len(f.Tensors))}
	for _, t := range f.Tensors {
		sum, ok := decodeSum(t.Sum)
		if !ok {
			return nil
		}
		man.Sums[t.Name] = sum
	}
	sum, ok := decodeSum(f.Fingerprint)
	man.Fingerprint = sum
	if !ok || !man.covers(m) {
		return nil
	}
	return man
}

func decodeSum(s string) (sum [sha256.Size]byte, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(sum) {
		return sum, false
	}
	return [sha256.Size]byte(b), true
}

// keep writes the manifest to the first place that takes it and returns that place, or "".
func (m *Model) keep(man *Manifest) string {
	f := manifestFile{Form: manifestForm, Fingerprint: man.Fingerprint.String()}
	for _, p := range m.Parts {
		f.Files = append(f.Files, manifestPart{filepath.Base(p.Path), p.State})
	}
	for _, t := range m.Tensors {
		sum := man.Sums[t.Name]
		f.Tensors = append(f.Tensors, manifestSum{t.Name, hex.EncodeToString(sum[:])})
	}
	b, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return ""
	}
	for i, path := range m.cachePaths() {
		if i > 0 && os.MkdirAll(filepath.Dir(path), 0o755) != nil {
			continue
		}
		if replace(path, append(b, '\n')) == nil {
			return path
		}
	}
	return ""
}

// replace puts a file in its place at once, so that a reader never sees half of it.
func replace(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// readers are the open files of a model by part, nil where not needed.
type readers []*os.File

func (r readers) open(m *Model, part int) error {
	if r[part] != nil {
		return nil
	}
	f, err := m.Parts[part].open()
	r[part] = f
	return err
}

// check makes sure that no file changed while it was read.
func (r readers) check(m *Model) error {
	for i, f := range r {
		if f == nil {
			continue
		}
		if err := m.Parts[i].check(f); err != nil {
			return err
		}
	}
	return nil
}

func (r readers) close() {
	for _, f := range r {
		if f != nil {
			f.Close()
		}
	}
}
