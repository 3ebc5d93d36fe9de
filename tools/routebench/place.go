package routebench

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Artifact names a file by its content.
type Artifact struct {
	Name   string `json:"name"` // without its folder
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Environment is what the figures depend on beside the model.
type Environment struct {
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	System  string `json:"system"`
	Go      string `json:"go"`
	Pin     string `json:"llama_cpp_tree"`
	Backend string `json:"backend"`
	Network string `json:"network"`
	Commit  string `json:"commit"` // of this repository; ends with `-dirty` when files were changed
}

func look(ctx context.Context, w *workspace.Workspace) (Environment, error) {
	e := Environment{
		CPU: cpu(), Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Backend: "cpu", Network: "loopback",
	}
	data, err := os.ReadFile(w.Path("libs", "native", "pin.json"))
	if err != nil {
		return e, fmt.Errorf("read the pin: %w", err)
	}
	var pin struct {
		Tree string `json:"tree"`
	}
	if err := json.Unmarshal(data, &pin); err != nil {
		return e, fmt.Errorf("parse the pin: %w", err)
	}
	e.Pin = pin.Tree
	commit, err := w.Output(ctx, "", nil, "git", "describe", "--always", "--dirty", "--abbrev=40")
	if err != nil {
		commit = "unknown: not in git"
	}
	e.Commit = strings.TrimSpace(commit)
	return e, nil
}

// cpu is the processor's name where the system tells it.
func cpu() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func hash(path string) (Artifact, error) {
	f, err := os.Open(path)
	if err != nil {
		return Artifact{}, fmt.Errorf("open the model: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return Artifact{}, fmt.Errorf("read the model: %w", err)
	}
	return Artifact{Name: filepath.Base(path), Bytes: n, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// refuseHome refuses a path under /home, also one that leads there by links.
func refuseHome(path string) error {
	full, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("find %s: %w", path, err)
	}
	for _, p := range []string{full, resolved(full)} {
		if p == "/home" || strings.HasPrefix(p, "/home/") {
			return fmt.Errorf("%s is under /home: models of measured runs live in the model store, a mounted drive, so that home folders stay small and runs can be repeated by others; move it there", path)
		}
	}
	return nil
}

// resolved follows links as far as the path exists.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolved(parent), filepath.Base(path))
	}
	return path
}

// store is a folder for a model of one run, and what takes it away again.
func store(base string) (dir string, remove func(), err error) {
	if base == "" {
		base = os.TempDir()
	}
	if err := refuseHome(base); err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp(base, "dgr-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for the model: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil // at the end of the run there is nobody to tell
}
