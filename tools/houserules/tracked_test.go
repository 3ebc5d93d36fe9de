package houserules

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// No tracked file names a machine or a registry, and none is too large.
func TestTrackedFiles(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	names, err := Tracked(t.Context(), w)
	require.NoError(t, err)
	require.Greater(t, len(names), 100, "the files were not listed")
	for _, name := range names {
		data, err := os.ReadFile(w.Path(name))
		require.NoError(t, err)
		for _, f := range append(CheckText(name, data), CheckSize(name, data)...) {
			t.Error(f)
		}
	}
}

func TestTextsThatAreFound(t *testing.T) {
	for _, bad := range []string{
		"see /ho" + "me/anna/dgr/x", "see /Us" + "ers/anna/dgr", "cd /ro" + "ot/dgr", "get https://registry.npm" + "js.org/x", "GOPROXY=https://proxy.go" + "lang.org",
	} {
		found := CheckText("README.md", []byte("one\n"+bad+"\n"))
		require.Len(t, found, 1, bad)
		require.Equal(t, "README.md:2", found[0].Where)
	}
	for _, good := range []string{"never under /home: say why", "the root/ of the tree", "https://github.com/ggml-org/llama.cpp", "./libs/root/x"} {
		require.Empty(t, CheckText("README.md", []byte(good)), good)
	}
	require.Empty(t, CheckText("go.sum", []byte("proxy.go"+"lang.org")))
	require.Empty(t, CheckText("model.gguf", []byte("GGUF\x00/ho"+"me/anna/x")), "not a text")
}

func TestSizesThatAreFound(t *testing.T) {
	require.Len(t, CheckSize("model.gguf", make([]byte, maxTracked+1)), 1)
	require.Empty(t, CheckSize("model.gguf", make([]byte, maxTracked)))
	long := []byte(strings.Repeat("\n", maxLines+1))
	require.Len(t, CheckSize("libs/native/shim/a.cpp", long), 1)
	require.Empty(t, CheckSize("notes.txt", long))
	require.Len(t, CheckSize("tools/plot.py", nil), 1)
}

// Each module of the workspace can be built alone.
func TestModulesAreComplete(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	require.NotEmpty(t, w.Modules)
	for _, f := range CheckModules(w.Modules) {
		t.Error(f)
	}
}

func TestModuleFaultsThatAreFound(t *testing.T) {
	engine := workspace.Module{Dir: "libs/engine", Path: "x/libs/engine"}
	gen := workspace.Module{Dir: "gen", Path: "x/gen", Required: []string{engine.Path}, Replaced: map[string]string{engine.Path: "../libs/engine"}}
	worker := workspace.Module{Dir: "services/worker", Path: "x/services/worker", Required: []string{gen.Path}, Replaced: map[string]string{gen.Path: "../../gen"}}
	found := CheckModules([]workspace.Module{engine, gen, worker})
	require.Len(t, found, 1, "the engine is needed by way of gen")
	require.Contains(t, found[0].String(), "services/worker/go.mod: needs libs/engine; add: replace x/libs/engine => ../../libs/engine")

	worker.Replaced[engine.Path] = "../../libs/engine"
	require.Empty(t, CheckModules([]workspace.Module{engine, gen, worker}))
	worker.Replaced[engine.Path] = "../engine"
	require.Len(t, CheckModules([]workspace.Module{engine, gen, worker}), 1)
	worker.Replaced[engine.Path] = "../../libs/engine"
	worker.Replaced["x/gone"] = "../gone"
	require.Len(t, CheckModules([]workspace.Module{engine, gen, worker}), 1)
}
