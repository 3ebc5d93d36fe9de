package build

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/native/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The made-up llama.cpp: the archives that the real one has, of a function each.
const (
	llamaCMake = `foreach (name ggml-base ggml-cpu ggml llama)
    string(REPLACE "-" "_" symbol ${name})
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.c CONTENT "int made_up_${symbol}(void) { return 1; }\n")
    add_library(${name} STATIC ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
endforeach()
`
	shimCMake = `cmake_minimum_required(VERSION 3.21)
project(made_up LANGUAGES C CXX)
add_subdirectory(${DGR_LLAMA_SOURCE} llama)
add_library(dgr_chat STATIC chat.c)
add_library(dgr_shim STATIC shim.cpp)
target_link_libraries(dgr_shim PUBLIC dgr_chat llama ggml ggml-cpu ggml-base)
target_compile_definitions(dgr_shim PRIVATE DGR_BUILD_KEY="${DGR_BUILD_KEY}")
add_executable(dgr-native-bench main.c)
add_executable(shim-test main.c)
enable_testing()
add_test(NAME made-up COMMAND sh -c "ls $DGR_TINY_MODELS && $<TARGET_FILE:shim-test>")
`
)

type made struct {
	t     *testing.T
	dir   string
	cache string
	mu    *sync.Mutex
	said  *[]string
}

// newMade is a module on a made-up llama.cpp that cmake builds in a second.
func newMade(t *testing.T) made {
	t.Helper()
	for _, program := range []string{"git", "cmake", "ninja", "cc", "c++", "sh"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	m := made{t: t, dir: t.TempDir(), cache: t.TempDir(), mu: &sync.Mutex{}, said: &[]string{}}
	plain := t.TempDir()
	m.write(filepath.Join(plain, "CMakeLists.txt"), llamaCMake)
	m.write(filepath.Join(m.dir, "shim", "CMakeLists.txt"), shimCMake)
	m.write(filepath.Join(m.dir, "shim", "dgr_shim.h"), "int dgr_made_up(void);\n")
	m.write(filepath.Join(m.dir, "shim", "shim.cpp"), "extern \"C\" int dgr_made_up(void) { return DGR_BUILD_KEY[0]; }\n")
	m.write(filepath.Join(m.dir, "shim", "chat.c"), "int made_up_chat(void) { return 1; }\n")
	m.write(filepath.Join(m.dir, "shim", "extra.h"), "")
	m.write(filepath.Join(m.dir, "shim", "main.c"), "int main(void) { return 0; }\n")

	pin := source.Pin{Name: "made up", Tag: "v1", Tree: treeOf(t, plain), Sources: []source.Location{{Kind: source.KindPath, Variable: "MADE_UP_SOURCE"}}}
	data, err := json.Marshal(pin)
	require.NoError(t, err)
	m.write(filepath.Join(m.dir, "pin.json"), string(data))
	t.Setenv("MADE_UP_SOURCE", plain)
	for _, variable := range []string{"CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", PortableVariable} {
		t.Setenv(variable, "")
	}
	m.emptyQueue()
	return m
}

// emptyQueue writes the series of a queue without patches.
func (m made) emptyQueue() {
	m.t.Helper()
	store, err := source.Open(source.Options{Module: m.dir, Cache: m.cache})
	require.NoError(m.t, err)
	m.write(filepath.Join(m.dir, "patches", "series.json"), `{"tag":"","tree":"","pin_sha256":"","patches":[]}`)
	require.NoError(m.t, store.Refresh(m.t.Context(), ""))
}

func treeOf(t *testing.T, dir string) string {
	t.Helper()
	repo := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"--git-dir=" + repo, "--work-tree=" + dir}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("add", "-A")
	return git("write-tree")
}

func (m made) builder() *Builder {
	m.t.Helper()
	b, err := New(Options{Module: m.dir, Cache: m.cache, Report: func(line string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		*m.said = append(*m.said, line)
	}})
	require.NoError(m.t, err)
	return b
}

// reported gives what was reported since the last call.
func (m made) reported() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := strings.Join(*m.said, "\n")
	*m.said = nil
	return all
}

func (m made) write(file, text string) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(m.t, os.WriteFile(file, []byte(text), 0o644))
}
