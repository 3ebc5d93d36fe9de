// Package pinned builds the tools that the repository pins in modules of their own (tools/pins, tools/lint) and keeps
// them by content in the user's cache, so that a fresh clone does not build them again.
//
// Which tool is pinned, and at which version, is in those modules' go.mod.
package pinned

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gofrs/flock"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Bin is the folder, from the root, that holds the tools.
const Bin = ".bin"

// The tool modules.
const (
	Generators = "tools/pins" // buf, the protoc plugins, oapi-codegen, mockgen
	Linters    = "tools/lint" // staticcheck
)

// lockWait bounds the wait for another build of the same tools.
const lockWait = 15 * time.Minute

// Ensure makes every tool of a tool module stand in Bin: from the cache, or built into it.
func Ensure(ctx context.Context, w *workspace.Workspace, module string) error {
	key, err := cacheKey(ctx, w, module)
	if err != nil {
		return err
	}
	stamp := w.Path(Bin, "."+filepath.Base(module)+".key")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == key {
		return nil
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find a cache for the tools: %w", err)
	}
	kept := filepath.Join(user, "dgr", "tools", key)
	if err := build(ctx, w, module, kept); err != nil {
		return err
	}
	if err := place(kept, w.Path(Bin)); err != nil {
		return err
	}
	if err := os.WriteFile(stamp, []byte(key), 0o644); err != nil {
		return fmt.Errorf("note which tools are in place: %w", err)
	}
	return nil
}

// cacheKey is the name of one build: what the module pins, and what builds it.
func cacheKey(ctx context.Context, w *workspace.Workspace, module string) (string, error) {
	version, err := w.Output(ctx, module, []string{"GOWORK=off"}, "go", "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", fmt.Errorf("ask for the version of Go: %w", err)
	}
	h := sha256.New()
	io.WriteString(h, version)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(w.Path(module, name))
		if err != nil {
			return "", fmt.Errorf("read what the tool module pins: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(data), data)
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}

// build fills the kept folder unless it is there. Two builds at once wait for each other.
func build(ctx context.Context, w *workspace.Workspace, module, kept string) error {
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return fmt.Errorf("make the cache of tools: %w", err)
	}
	lock := flock.New(kept + ".lock")
	waiting, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if _, err := lock.TryLockContext(waiting, 200*time.Millisecond); err != nil {
		return fmt.Errorf("wait for another build of %s (lock %s.lock): %w", module, kept, err)
	}
	defer lock.Unlock()
	if _, err := os.Stat(kept); err == nil {
		return nil
	}
	began := time.Now()
	fmt.Printf("building the tools of %s, once for these versions (some minutes)\n", module)
	fresh, err := os.MkdirTemp(filepath.Dir(kept), "new-")
	if err != nil {
		return fmt.Errorf("make a folder for the tools: %w", err)
	}
	defer os.RemoveAll(fresh)
	env := []string{"GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-mod=readonly"}
	if err := w.Run(ctx, module, env, "go", "build", "-o", fresh+string(filepath.Separator), "tool"); err != nil {
		return fmt.Errorf("build the tools of %s: %w", module, err)
	}
	if err := os.Rename(fresh, kept); err != nil {
		return fmt.Errorf("keep the tools of %s: %w", module, err)
	}
	fmt.Printf("built the tools of %s in %s\n", module, time.Since(began).Round(time.Second))
	return nil
}

// place links every kept tool into bin, or copies it where links do not reach.
func place(kept, bin string) error {
	entries, err := os.ReadDir(kept)
	if err != nil {
		return fmt.Errorf("list the tools: %w", err)
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("make the folder of tools: %w", err)
	}
	for _, e := range entries {
		from, to := filepath.Join(kept, e.Name()), filepath.Join(bin, e.Name())
		if err := replace(from, to); err != nil {
			return fmt.Errorf("put %s in place: %w", e.Name(), err)
		}
	}
	return nil
}

// replace makes to the same as from in one move, so that a running tool keeps its file.
func replace(from, to string) error {
	fresh := to + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.Link(from, fresh); err != nil {
		if err := copyFile(from, fresh); err != nil {
			return err
		}
	}
	return os.Rename(fresh, to)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// Tool is the path of a tool in Bin.
func Tool(w *workspace.Workspace, name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return w.Path(Bin, name)
}
