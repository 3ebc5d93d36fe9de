// Package verify is what `mage test` runs: every check of the repository that needs no model download, no network beyond
// the module registries, no accelerator and no key.
//
// It decides what runs, in which order, and what a missing compiler means. What a check checks is in the packages that it
// calls.
package verify

import (
	"context"
	"errors"
	"fmt"
	"os"

	released "github.com/distributed-gguf-runtime/dgr/tools/contract"
	"github.com/distributed-gguf-runtime/dgr/tools/enginecases"
	"github.com/distributed-gguf-runtime/dgr/tools/generate"
	"github.com/distributed-gguf-runtime/dgr/tools/pinned"
	"github.com/distributed-gguf-runtime/dgr/tools/task"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// raced are the modules whose tests run under the race detector: those with goroutines of their own.
var raced = map[string]bool{"libs/engine": true, "libs/client": true, "services/worker": true, "services/gateway": true}

// Test runs everything and returns an error that names what failed.
func Test(ctx context.Context, w *workspace.Workspace) error {
	l := task.New(os.Stdout)
	l.Do("generated code is what the contracts give", func() error { return generate.Drift(ctx, w) })
	Lint(ctx, w, l)
	tests(ctx, w, l)
	builds(ctx, w, l)
	nativeTests(ctx, w, l)
	Engines(ctx, w, l)
	return l.End()
}

// Lint runs what judges the text of the code without running it.
func Lint(ctx context.Context, w *workspace.Workspace, l *task.List) {
	l.Do("contract: lint, format, compatibility", func() error { return contract(ctx, w) })
	l.Do("go vet", func() error { return vet(ctx, w) })
	l.Do("staticcheck", func() error { return staticcheck(ctx, w) })
}

// Engines lays the suite's results on all engines side by side: those on llama.cpp too, where it can be built.
func Engines(ctx context.Context, w *workspace.Workspace, l *task.List) {
	all := enginecases.Pure()
	if MissingForNative() == "" {
		if env, err := NativeEnv(ctx, w); err == nil { // what it was about has been told by then
			all = append(all, enginecases.Native(env)...)
		}
	}
	l.Do("the same cases on every engine", func() error { return enginecases.Run(ctx, w, all, os.Stdout) })
}

// contract runs buf on contracts, and compares with each frozen revision.
func contract(ctx context.Context, w *workspace.Workspace) error {
	if err := pinned.Ensure(ctx, w, pinned.Generators); err != nil {
		return err
	}
	buf := pinned.Tool(w, "buf")
	found := []error{
		w.Run(ctx, "contracts", nil, buf, "lint"),
		w.Run(ctx, "contracts", nil, buf, "format", "--diff", "--exit-code"),
	}
	c := released.Contract{Dir: w.Path("contracts"), Buf: buf}
	if frozen, err := c.Frozen(); err == nil && len(frozen) == 0 {
		fmt.Println("no revision is frozen in contracts/baseline: nothing to be compatible with yet")
	}
	return errors.Join(append(found, c.Check(ctx))...)
}

// Freeze writes the greatest revision of the contract down, for all later ones to be held against.
func Freeze(ctx context.Context, w *workspace.Workspace) error {
	if err := contract(ctx, w); err != nil {
		return err
	}
	dir, err := released.Contract{Dir: w.Path("contracts"), Buf: pinned.Tool(w, "buf")}.Freeze(ctx)
	if err == nil {
		fmt.Println("frozen in", dir)
	}
	return err
}

// vet runs go vet on each module and on the magefile, which no module holds.
func vet(ctx context.Context, w *workspace.Workspace) error {
	found := []error{w.Run(ctx, "", nil, "go", "vet", "-tags", "mage", "magefile.go")}
	for _, m := range w.Modules {
		found = append(found, w.Run(ctx, m.Dir, nil, "go", "vet", "./..."))
	}
	return errors.Join(found...)
}

func staticcheck(ctx context.Context, w *workspace.Workspace) error {
	if err := pinned.Ensure(ctx, w, pinned.Linters); err != nil {
		return err
	}
	args := []string{}
	for _, m := range w.Modules {
		if m.Dir != "gen" { // nobody edits what is generated
			args = append(args, "./"+m.Dir+"/...")
		}
	}
	return w.Run(ctx, "", nil, pinned.Tool(w, "staticcheck"), args...)
}

// tests runs the tests of each module, without the native engine.
func tests(ctx context.Context, w *workspace.Workspace, l *task.List) {
	race := CompilerC() != ""
	if !race {
		fmt.Println("no C compiler: tests run without the race detector")
	}
	for _, m := range w.Modules {
		var args []string
		if race && raced[m.Dir] {
			args = append(args, "-race")
		}
		if m.Dir == "tools" {
			// These tests read the other modules, and Go's cache of test results does not see files outside a module.
			args = append(args, "-count=1")
		}
		l.Do("tests of "+m.Dir, func() error { return goTest(ctx, w, m.Dir, nil, args...) })
	}
}

// goTest tests every package of a module.
func goTest(ctx context.Context, w *workspace.Workspace, dir string, env []string, flags ...string) error {
	out := &quiet{to: os.Stdout}
	cmd := w.Command(ctx, dir, env, "go", append(append([]string{"test"}, flags...), "./...")...)
	cmd.Stdout = out
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("go test in %s: %w", dir, err)
	}
	return errors.Join(err, out.flush())
}

// builds proves that all compiles without C, and that each module compiles outside the workspace, where only its own
// go.mod speaks.
func builds(ctx context.Context, w *workspace.Workspace, l *task.List) {
	l.Do("build without cgo", func() error { return w.Run(ctx, "", []string{"CGO_ENABLED=0"}, "go", "build", "work") })
	l.Do("each module by itself", func() error {
		var found []error
		for _, m := range w.Modules {
			err := w.Run(ctx, m.Dir, []string{"GOWORK=off", "CGO_ENABLED=0"}, "go", "vet", "./...")
			if err != nil {
				found = append(found, fmt.Errorf("%s by itself (mend it: GOWORK=off go -C %s mod tidy): %w", m.Dir, m.Dir, err))
			}
		}
		return errors.Join(found...)
	})
}

// nativeTests builds the native library and tests the engine on it; without a compiler it says so.
func nativeTests(ctx context.Context, w *workspace.Workspace, l *task.List) {
	const name = "native engine"
	if missing := MissingForNative(); missing != "" {
		if os.Getenv(RequireNative) != "" {
			l.Fail(name, fmt.Errorf("native code was not tested, and %s is set: %s", RequireNative, missing))
			return
		}
		l.Skip(name, "native code was not tested: "+missing)
		return
	}
	var env []string
	l.Do("native: patch queue", func() error { return DgrNative(ctx, w, "patch", "verify") })
	l.Do("native: build", func() (err error) { env, err = NativeEnv(ctx, w); return err })
	if env == nil {
		return
	}
	l.Do("native: staticcheck", func() error {
		return w.Run(ctx, "", env, pinned.Tool(w, "staticcheck"), "-tags", "llama", "./libs/native/...", "./services/worker/...")
	})
	l.Do("native: CTest", func() error { return DgrNative(ctx, w, "test") })
	for _, dir := range []string{"libs/native", "services/worker", "services/gateway"} {
		l.Do("native: tests of "+dir, func() error {
			return goTest(ctx, w, dir, env, "-tags", "llama")
		})
	}
}
