package verify

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// RequireNative is the variable that makes a missing C++ compiler an error instead of a line.
const RequireNative = "DGR_REQUIRE_NATIVE"

// CompilerC is the C compiler that Go would use, empty when there is none.
func CompilerC() string { return firstInPath(os.Getenv("CC"), "cc", "gcc", "clang") }

// CompilerCXX is the C++ compiler of the native build, empty when there is none.
func CompilerCXX() string { return firstInPath(os.Getenv("CXX"), "c++", "g++", "clang++") }

// MissingForNative says in one line what the native build lacks here and what to do; empty when nothing is missing.
func MissingForNative() string {
	if CompilerCXX() == "" || CompilerC() == "" {
		return "there is no C++ compiler; install one (g++ or clang++, with its C compiler) and run again"
	}
	return ""
}

// firstInPath is the first of the names that can be run.
func firstInPath(names ...string) string {
	for _, name := range names {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(strings.Fields(name)[0]); err == nil {
			return path
		}
	}
	return ""
}

// DgrNative runs the program that owns the native build.
func DgrNative(ctx context.Context, w *workspace.Workspace, args ...string) error {
	return w.Run(ctx, "", nil, "go", append([]string{"run", "./libs/native/cmd/dgr-native"}, args...)...)
}

// NativeEnv builds the native library, which costs nothing when it is built, and returns the environment, as KEY=VALUE,
// with which Go code is built with the tag llama.
func NativeEnv(ctx context.Context, w *workspace.Workspace) ([]string, error) {
	out, err := w.Output(ctx, "", nil, "go", "run", "./libs/native/cmd/dgr-native", "env")
	if err != nil {
		return nil, err
	}
	var env []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if !strings.Contains(line, "=") {
			return nil, fmt.Errorf("dgr-native env printed %q, which is no KEY=VALUE", line)
		}
		env = append(env, line)
	}
	return env, nil
}
