package pinned

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// made is a workspace with one pinned tool, hello, that says a word.
func made(t *testing.T) *workspace.Workspace {
	t.Helper()
	root := t.TempDir()
	cache := t.TempDir()
	build := goCache(t)
	t.Setenv("HOME", cache)
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("GOCACHE", build) // its place depends on the home that was just changed
	for name, text := range map[string]string{
		"tools/pins/go.mod":        "module x/pins\n\ngo 1.26.0\n\ntool x/pins/hello\n",
		"tools/pins/go.sum":        "",
		"tools/pins/hello/main.go": "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Print(\"one\") }\n",
	} {
		write(t, filepath.Join(root, filepath.FromSlash(name)), text)
	}
	return &workspace.Workspace{Root: root}
}

func TestToolsAreBuiltOncePerContent(t *testing.T) {
	w := made(t)
	require.NoError(t, Ensure(t.Context(), w, Generators))
	require.Equal(t, "one", says(t, w))

	// The source is no part of the key: what is in place is not built again.
	write(t, w.Path("tools", "pins", "hello", "main.go"), "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Print(\"two\") }\n")
	require.NoError(t, Ensure(t.Context(), w, Generators))
	require.Equal(t, "one", says(t, w))

	// A fresh clone takes it from the cache.
	require.NoError(t, os.RemoveAll(w.Path(Bin)))
	require.NoError(t, Ensure(t.Context(), w, Generators))
	require.Equal(t, "one", says(t, w))

	// Another pin is another build, and replaces what stood there.
	write(t, w.Path("tools", "pins", "go.mod"), "module x/pins\n\ngo 1.26.0\n\ntool x/pins/hello\n\n// another\n")
	require.NoError(t, Ensure(t.Context(), w, Generators))
	require.Equal(t, "two", says(t, w))
}

func TestABuildThatFailsLeavesNothing(t *testing.T) {
	w := made(t)
	write(t, w.Path("tools", "pins", "hello", "main.go"), "package main\n")
	require.ErrorContains(t, Ensure(t.Context(), w, Generators), "build the tools of tools/pins")
	require.NoFileExists(t, Tool(w, "hello"))
	kept, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "dgr", "tools", "*"))
	require.NoError(t, err)
	for _, name := range kept {
		require.True(t, strings.HasSuffix(name, ".lock"), name)
	}
}

func says(t *testing.T, w *workspace.Workspace) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), Tool(w, "hello")).Output()
	require.NoError(t, err)
	return string(out)
}

// goCache is where Go keeps what it built.
func goCache(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}
