package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child"
	"github.com/distributed-gguf-runtime/dgr/libs/native/llama"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/config"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/telemetry"
)

// engineProcess is the first argument by which a worker makes this program the process of its engine. Level and format of
// the log follow it. It is no command for people: without what a worker hands on it ends at once.
const engineProcess = "engine-process"

// engines are llama's, each in a process of its own if the configuration says so.
func engines(cfg config.Config, p process) engine.Factory {
	if !cfg.Isolate || !child.Available {
		return llama.New
	}
	return child.Factory(child.Options{Output: p.stderr, Command: func() *exec.Cmd {
		cmd := exec.Command(self(), engineProcess, cfg.LogLevel.String(), cfg.LogFormat)
		// ggml would start a debugger to print a trace, and hold up the news of its end.
		cmd.Env = append(os.Environ(), "GGML_NO_BACKTRACE=1")
		return cmd
	}})
}

// self is this program, also where another one has been installed over it since.
func self() string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	if path, err := os.Executable(); err == nil {
		return path
	}
	return filepath.Clean(os.Args[0])
}

// serveEngine is the life of an engine's process. It returns the exit code.
func serveEngine(ctx context.Context, args []string) int {
	var level slog.Level
	if len(args) != 2 || level.UnmarshalText([]byte(args[0])) != nil {
		fmt.Fprintf(os.Stderr, "dgr-worker: %s is what a worker calls the process of its engine; it is not for people\n", engineProcess)
		return exitUsage
	}
	slog.SetDefault(telemetry.NewLogger(os.Stderr, level, args[1]).With("process", "engine"))
	if err := child.Serve(ctx, llama.New); err != nil {
		fmt.Fprintf(os.Stderr, "dgr-worker: %s\n", sentence(err))
		return exitFailed
	}
	return exitFine
}
