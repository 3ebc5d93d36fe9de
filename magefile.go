//go:build mage

// The targets of DGR: go tool mage -l lists them. The work is in tools.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/magefile/mage/mg"

	"github.com/distributed-gguf-runtime/dgr/tools/generate"
	"github.com/distributed-gguf-runtime/dgr/tools/programs"
	"github.com/distributed-gguf-runtime/dgr/tools/record"
	"github.com/distributed-gguf-runtime/dgr/tools/task"
	"github.com/distributed-gguf-runtime/dgr/tools/verify"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Gen makes everything in gen anew from contracts and libs/engine.
func Gen(ctx context.Context) error {
	return timed("generate", func(w *workspace.Workspace) error { return generate.All(ctx, w, w.Root) })
}

// Drift finds files of gen that are not what the contracts give, and changes nothing.
func Drift(ctx context.Context) error {
	return timed("drift", func(w *workspace.Workspace) error { return generate.Drift(ctx, w) })
}

// Test runs every check that needs no download, no accelerator and no key.
func Test(ctx context.Context) error {
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	return verify.Test(ctx, w)
}

// Engines lays the results of the engines' suite side by side, one engine a column.
func Engines(ctx context.Context) error {
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	l := task.New(os.Stdout)
	verify.Engines(ctx, w, l)
	return l.End()
}

// Lint judges contracts and code without running them.
func Lint(ctx context.Context) error {
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	l := task.New(os.Stdout)
	verify.Lint(ctx, w, l)
	return l.End()
}

// Build builds dgr and dgr-worker into .build/bin.
func Build(ctx context.Context) error {
	return timed("build", func(w *workspace.Workspace) error { return programs.Build(ctx, w) })
}

// Demo answers a prompt with the embedded model over two workers on this machine.
func Demo(ctx context.Context) error {
	return timed("demo", func(w *workspace.Workspace) error { return programs.Demo(ctx, w) })
}

// Bench measures a route on this machine beside the same llama.cpp unsplit; see DGR_BENCH_MODEL and DGR_MODEL_STORE.
func Bench(ctx context.Context) error {
	return timed("bench", func(w *workspace.Workspace) error {
		return w.Run(ctx, "", nil, "go", "run", "./tools/cmd/route-bench")
	})
}

// Proof searches a model of the contract's rules in all its cases, some of them large; it takes many minutes on one core.
func Proof(ctx context.Context) error {
	return timed("proof", func(w *workspace.Workspace) error {
		return w.Run(ctx, "", nil, "go", "run", "./tools/cmd/fence-proof")
	})
}

// Soak opens, drives and drops a thousand sessions at random for five minutes and shows that all they used comes back.
func Soak(ctx context.Context) error {
	return timed("soak", func(w *workspace.Workspace) error {
		return w.Run(ctx, "", nil, "go", "run", "./tools/cmd/soak")
	})
}

// Offline runs the tests again with every way out of the machine closed.
func Offline(ctx context.Context) error {
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	return verify.Offline(ctx, w)
}

// Gates runs the quality gates of the default class, as prd.json has them.
func Gates(ctx context.Context) error {
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	p, err := record.Read(w)
	if err != nil {
		return err
	}
	return record.RunGates(ctx, w, p, record.Default, os.Stdout)
}

// Contract keeps the promises of released contracts.
type Contract mg.Namespace

// Freeze writes the present revision of the worker's contract into contracts/baseline, for good; see contracts/RELEASING.md.
func (Contract) Freeze(ctx context.Context) error {
	return timed("freeze", func(w *workspace.Workspace) error { return verify.Freeze(ctx, w) })
}

// Conformance proves the proof of the contract.
type Conformance mg.Namespace

// Mutants seeds faults into workers, one each, and shows which case of dgr-conformance catches it; a run that was broken off goes on.
func (Conformance) Mutants(ctx context.Context) error {
	return timed("mutants", func(w *workspace.Workspace) error {
		return w.Run(ctx, "", nil, "go", "run", "./tools/cmd/mutants-proof")
	})
}

// Evidence keeps the record honest.
type Evidence mg.Namespace

// Verify finds what prd.json claims and its evidence does not show.
func (Evidence) Verify(ctx context.Context) error {
	return timed("evidence", func(w *workspace.Workspace) error { return record.Verify(ctx, w) })
}

// Model trains the embedded model.
type Model mg.Namespace

// Train trains the embedded model anew into the user's cache; it takes long and changes no tracked file.
func (Model) Train(ctx context.Context) error {
	return timed("train the embedded model", func(w *workspace.Workspace) error {
		return w.Run(ctx, "", nil, "go", "run", "./tools/modeltrain")
	})
}

// Native builds and tests the native library.
type Native mg.Namespace

// Build builds the native library, or finds it built.
func (Native) Build(ctx context.Context) error { return native(ctx, "build") }

// Test runs the native tests (CTest).
func (Native) Test(ctx context.Context) error { return native(ctx, "test") }

// Patch keeps the queue of patches on llama.cpp.
type Patch mg.Namespace

// Verify proves that the queue applies to the pin and comes off again.
func (Patch) Verify(ctx context.Context) error { return native(ctx, "patch", "verify") }

// Refresh rebases the queue onto the pin.
func (Patch) Refresh(ctx context.Context) error { return native(ctx, "patch", "refresh") }

func native(ctx context.Context, args ...string) error {
	return timed(fmt.Sprintf("dgr-native %v", args), func(w *workspace.Workspace) error { return verify.DgrNative(ctx, w, args...) })
}

// timed says what it does and how long it took.
func timed(name string, work func(*workspace.Workspace) error) error {
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	fmt.Printf("==> %s\n", name)
	began := time.Now()
	if err := work(w); err != nil {
		return err
	}
	fmt.Printf("<== %s: %s\n", name, time.Since(began).Round(time.Millisecond))
	return nil
}
