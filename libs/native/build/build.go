package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/native/source"
)

// Options say where things are. The zero value is right inside the repository.
type Options struct {
	Module string            // directory of libs/native; empty: looked for from the working directory upward
	Cache  string            // root of the cache; empty: see source.CacheVariable
	Report func(line string) // progress for a person, one line a call; nil: none
}

// Builder builds the native library of one module into one cache. Its methods may be called from several goroutines and
// processes at once.
type Builder struct {
	store  *source.Store
	finder finder
	report func(string)
}

// New reads the pin. It touches neither cache nor network.
func New(o Options) (*Builder, error) {
	store, err := source.Open(source.Options{Module: o.Module, Cache: o.Cache, Report: o.Report})
	if err != nil {
		return nil, err
	}
	report := o.Report
	if report == nil {
		report = func(string) {}
	}
	return &Builder{store: store, report: report, finder: finder{getenv: os.Getenv, lookPath: exec.LookPath}}, nil
}

// Env builds where needed and gives the environment, as NAME=VALUE, that the Go tool needs with -tags llama. Progress
// goes to standard error.
func Env(ctx context.Context) ([]string, error) {
	b, err := New(Options{Report: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	if err != nil {
		return nil, err
	}
	result, err := b.Build(ctx)
	if err != nil {
		return nil, err
	}
	return result.Env(), nil
}

// CTest builds where needed and runs the native tests. Progress and the tests' output go to standard error.
func CTest(ctx context.Context) error {
	b, err := New(Options{Report: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	if err != nil {
		return err
	}
	return b.Test(ctx, os.Stderr)
}

// Build gives the library of the present pin, patches, shim, compiler and flags: from the cache, or by building it.
func (b *Builder) Build(ctx context.Context) (Result, error) {
	started := time.Now()
	r, err := b.recipe(ctx)
	if err != nil {
		return Result{}, err
	}
	dir := filepath.Join(b.store.Cache(), "build", r.key())
	if result, err := open(dir); err == nil {
		used(dir)
		b.report(fmt.Sprintf("native: %s is built (%s)", r.key()[:12], since(started)))
		return result, nil
	} else if !os.IsNotExist(err) {
		b.report(fmt.Sprintf("native: %v; building it anew", err))
	}
	t, err := b.tools(ctx, r)
	if err != nil {
		return Result{}, err
	}
	unlock, err := b.store.Lock(ctx, "build-"+r.base()[:32])
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	if result, err := open(dir); err == nil { // made while we waited
		return result, nil
	}
	if err := b.compile(ctx, t, r, libraryTargets); err != nil {
		return Result{}, err
	}
	if err := b.publish(r, dir); err != nil {
		return Result{}, fmt.Errorf("keep the build: %w", err)
	}
	result, err := open(dir)
	if err != nil {
		return Result{}, err
	}
	b.report(fmt.Sprintf("native: built %s in %s", r.key()[:12], since(started)))
	b.prune()
	return result, nil
}

func since(t time.Time) time.Duration { return time.Since(t).Round(100 * time.Millisecond) }

// compileTree is the directory that cmake works in.
func (b *Builder) compileTree(r recipe) string {
	return filepath.Join(b.store.Cache(), "work", r.base()[:32])
}
