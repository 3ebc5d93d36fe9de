// Package workspace knows where the repository is, which modules it has, and how to run a program in it.
//
// What is run, and in which order, is decided elsewhere.
package workspace

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
)

// grace is how long an interrupted program may take to end before it is killed.
const grace = 10 * time.Second

// Module is one Go module of go.work.
type Module struct {
	Dir  string // from the root, with slashes, as `libs/engine`
	Path string // as in its go.mod
	// Replaced are the siblings that its go.mod replaces by folders: module path to folder as written there.
	Replaced map[string]string
	Required []string // module paths that it requires, directly or not
}

// Workspace is the repository.
type Workspace struct {
	Root    string // absolute
	Modules []Module
}

// Open finds the workspace that holds dir, by its go.work, and reads every go.mod it names.
func Open(dir string) (*Workspace, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find the workspace: %w", err)
	}
	for !exists(filepath.Join(root, "go.work")) {
		if filepath.Dir(root) == root {
			return nil, fmt.Errorf("no go.work in %s or above it; run this inside the repository", dir)
		}
		root = filepath.Dir(root)
	}
	w := &Workspace{Root: root}
	data, err := os.ReadFile(w.Path("go.work"))
	if err != nil {
		return nil, fmt.Errorf("read the workspace file: %w", err)
	}
	file, err := modfile.ParseWork("go.work", data, nil)
	if err != nil {
		return nil, fmt.Errorf("parse the workspace file: %w", err)
	}
	for _, use := range file.Use {
		m, err := w.readModule(strings.TrimPrefix(filepath.ToSlash(use.Path), "./"))
		if err != nil {
			return nil, err
		}
		w.Modules = append(w.Modules, m)
	}
	return w, nil
}

func (w *Workspace) readModule(dir string) (Module, error) {
	name := dir + "/go.mod"
	data, err := os.ReadFile(w.Path(name))
	if err != nil {
		return Module{}, fmt.Errorf("read a module that go.work names: %w", err)
	}
	file, err := modfile.Parse(name, data, nil)
	if err != nil {
		return Module{}, fmt.Errorf("parse a module file: %w", err)
	}
	if file.Module == nil {
		return Module{}, fmt.Errorf("%s has no module line", name)
	}
	m := Module{Dir: dir, Path: file.Module.Mod.Path, Replaced: map[string]string{}}
	for _, r := range file.Replace {
		if r.New.Version == "" {
			m.Replaced[r.Old.Path] = r.New.Path
		}
	}
	for _, r := range file.Require {
		m.Required = append(m.Required, r.Mod.Path)
	}
	return m, nil
}

// Path joins elements, with slashes, to the root.
func (w *Workspace) Path(elem ...string) string {
	return filepath.Join(w.Root, filepath.FromSlash(strings.Join(elem, "/")))
}

// Command prepares a program in folder dir, from the root, with extra environment as KEY=VALUE. Its output goes where
// ours goes. The end of ctx interrupts it, and kills it after a grace.
func (w *Workspace) Command(ctx context.Context, dir string, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = w.Path(dir)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = grace
	return cmd
}

// Run runs a program as Command prepares it.
func (w *Workspace) Run(ctx context.Context, dir string, env []string, name string, args ...string) error {
	if err := w.Command(ctx, dir, env, name, args...).Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return nil
}

// Output runs a program as Command prepares it and returns what it wrote to its standard output.
func (w *Workspace) Output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := w.Command(ctx, dir, env, name, args...)
	cmd.Stdout = nil
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return string(out), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
