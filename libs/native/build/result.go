package build

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	manifestFile  = "build.json"
	headerPattern = "dgr_*.h" // the headers of the ABI
	benchProgram  = "dgr-native-bench"
)

// archives is the link order of the static libraries; each needs what comes after it.
var archives = []string{"libdgr_shim.a", "libdgr_chat.a", "libllama.a", "libggml.a", "libggml-cpu.a", "libggml-base.a"}

// Result is a finished build in the cache.
type Result struct {
	Dir  string // with lib/, include/ and bin/
	Key  string // identity of the build, 64 hexadecimal digits
	Hash string // SHA-256 over the archives, 64 hexadecimal digits

	libs []string // linker arguments behind the archives
}

// manifest is build.json: the last file that a build writes.
type manifest struct {
	Key      string            `json:"key"`
	Archives map[string]string `json:"archives"` // SHA-256 by name
	Libs     []string          `json:"libs"`
}

// Bench is the program that measures unsplit llama.cpp, and whether the build has it.
func (r Result) Bench() (path string, ok bool) {
	path = filepath.Join(r.Dir, "bin", benchProgram)
	_, err := os.Stat(path)
	return path, err == nil
}

// Env is the environment, as NAME=VALUE, that the Go tool needs with -tags llama. The hash of the archives is in it, for
// the Go tool would not see by itself that they changed.
func (r Result) Env() []string {
	link := make([]string, 0, len(archives)+len(r.libs))
	for _, a := range archives {
		link = append(link, quote(filepath.Join(r.Dir, "lib", a)))
	}
	for _, l := range r.libs {
		link = append(link, quote(l))
	}
	return []string{
		"CGO_ENABLED=1",
		fmt.Sprintf("CGO_CFLAGS=-O2 -g %s -DSHIM_LIB=x%s", quote("-I"+filepath.Join(r.Dir, "include")), r.Hash),
		"CGO_LDFLAGS=" + strings.Join(link, " "),
	}
}

// quote protects an argument from the Go tool's splitting at blanks.
func quote(arg string) string {
	if strings.ContainsAny(arg, " \t") {
		return "'" + arg + "'"
	}
	return arg
}

// open reads a build of the cache and checks its archives. The error is fs.ErrNotExist where there is none.
func open(dir string) (Result, error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return Result{}, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return Result{}, fmt.Errorf("%s in %s is not valid: %w", manifestFile, dir, err)
	}
	var sums []string
	for _, a := range archives {
		path := filepath.Join(dir, "lib", a)
		sum, err := hashFile(path)
		if err != nil {
			return Result{}, fmt.Errorf("the built library is not whole: %w", err)
		}
		if sum != m.Archives[a] {
			return Result{}, fmt.Errorf("%s was changed after it was built", path)
		}
		sums = append(sums, sum)
	}
	return Result{Dir: dir, Key: m.Key, Hash: hashOf(sums...), libs: m.Libs}, nil
}

// publish copies what was compiled into the cache, whole or not at all.
func (b *Builder) publish(r recipe, dir string) error {
	tree := b.compileTree(r)
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	found, err := locate(tree, append([]string{benchProgram}, archives...))
	if err != nil {
		return err
	}
	m := manifest{Key: r.key(), Archives: map[string]string{}}
	for _, a := range archives {
		if found[a] == "" {
			return fmt.Errorf("the build made no %s", a)
		}
		to := filepath.Join(tmp, "lib", a)
		if err := copyFile(found[a], to, 0o644); err != nil {
			return err
		}
		if m.Archives[a], err = hashFile(to); err != nil {
			return err
		}
	}
	if from := found[benchProgram]; from != "" {
		if err := copyFile(from, filepath.Join(tmp, "bin", benchProgram), 0o755); err != nil {
			return err
		}
	}
	headers, err := filepath.Glob(filepath.Join(b.compileTree(r), shimCopy, headerPattern))
	if err != nil {
		return err
	}
	for _, header := range headers {
		if err := copyFile(header, filepath.Join(tmp, "include", filepath.Base(header)), 0o644); err != nil {
			return err
		}
	}
	entries, err := cacheEntries(tree)
	if err != nil {
		return err
	}
	if m.Libs, err = b.systemLibs(entries); err != nil {
		return err
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, manifestFile), append(data, '\n'), 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// systemLibs are the linker arguments for what the archives need of the system.
func (b *Builder) systemLibs(entries map[string]string) ([]string, error) {
	libs := []string{"-lstdc++"}
	if runtime.GOOS == "darwin" {
		libs = []string{"-lc++"}
	}
	openmp := entries["OpenMP_CXX_LIB_NAMES"]
	if openmp == "" || strings.HasSuffix(openmp, "NOTFOUND") {
		b.report("native: OpenMP not found: workers that share a machine will slow each other down; install libomp (apt install libomp-dev, brew install libomp)")
	} else {
		for _, name := range strings.Split(openmp, ";") {
			path := entries["OpenMP_"+name+"_LIBRARY"]
			if path == "" || strings.HasSuffix(path, "NOTFOUND") {
				path = "-l" + name
			}
			libs = append(libs, path)
		}
	}
	if runtime.GOOS != "darwin" {
		libs = append(libs, "-lpthread", "-ldl")
	}
	return append(libs, "-lm"), nil
}

// locate finds files by name below a directory.
func locate(dir string, names []string) (map[string]string, error) {
	want := map[string]bool{}
	for _, n := range names {
		want[n] = true
	}
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && want[d.Name()] {
			found[d.Name()] = path
		}
		return err
	})
	return found, err
}

func copyFile(from, to string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
