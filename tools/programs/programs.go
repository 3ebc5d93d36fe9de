// Package programs builds what people run, dgr and dgr-worker, and runs the demonstration.
package programs

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/distributed-gguf-runtime/dgr/tools/verify"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Bin is the folder, from the root, that holds the built programs.
const Bin = ".build/bin"

// sources are the packages of the programs, from the root.
var sources = []string{"./services/gateway/cmd/dgr", "./services/worker/cmd/dgr-worker"}

// Build builds every program into Bin: with the native engine where a C++ compiler is, else without and saying so.
func Build(ctx context.Context, w *workspace.Workspace) error {
	if missing := verify.MissingForNative(); missing != "" {
		fmt.Println("building without the native engine: " + missing)
		return build(ctx, w, []string{"CGO_ENABLED=0"})
	}
	return native(ctx, w)
}

// Demo runs the main job: two workers on this machine answer with the embedded model.
func Demo(ctx context.Context, w *workspace.Workspace) error {
	if missing := verify.MissingForNative(); missing != "" {
		return fmt.Errorf("the demonstration runs llama.cpp: %s", missing)
	}
	if err := native(ctx, w); err != nil {
		return err
	}
	return w.Run(ctx, "", nil, Path(w, "dgr"), "demo")
}

// Path is where a built program is.
func Path(w *workspace.Workspace, name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return w.Path(Bin, name)
}

// native builds the programs with the native engine in them.
func native(ctx context.Context, w *workspace.Workspace) error {
	env, err := verify.NativeEnv(ctx, w)
	if err != nil {
		return err
	}
	return build(ctx, w, env, "-tags", "llama")
}

func build(ctx context.Context, w *workspace.Workspace, env []string, flags ...string) error {
	args := append([]string{"build", "-o", w.Path(Bin) + string(filepath.Separator)}, flags...)
	return w.Run(ctx, "", env, "go", append(args, sources...)...)
}
