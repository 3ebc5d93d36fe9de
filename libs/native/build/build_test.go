package build

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func TestBuildIsKeptByContent(t *testing.T) {
	m := newMade(t)
	first, err := m.builder().Build(t.Context())
	require.NoError(t, err)
	require.Contains(t, m.reported(), "native: built "+first.Key[:12])
	_, ok := first.Bench()
	require.True(t, ok)

	// what is built needs no tools but the compiler that it is for
	b := m.builder()
	b.finder.lookPath = without("git", "cmake", "ninja", "python3")
	again, err := b.Build(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, again)
	said := m.reported()
	require.Contains(t, said, "is built")
	require.NotContains(t, said, "configuring")

	m.write(filepath.Join(m.dir, "shim", "shim.cpp"), "extern \"C\" int dgr_made_up(void) { return 2; }\n")
	changed, err := m.builder().Build(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, first.Key, changed.Key)
	require.NotEqual(t, first.Hash, changed.Hash)
	_, err = open(first.Dir)
	require.NoError(t, err, "the older build stays")
}

func TestKeyDependsOn(t *testing.T) {
	m := newMade(t)
	key := func() string {
		b := m.builder()
		r, err := b.recipe(t.Context())
		require.NoError(t, err)
		return r.key()
	}
	seen := map[string]string{key(): "nothing"}
	for _, c := range []struct {
		name   string
		change func()
	}{
		{"portable", func() { t.Setenv(PortableVariable, "1") }},
		{"CXXFLAGS", func() { t.Setenv("CXXFLAGS", "-g") }},
		{"shim", func() { m.write(filepath.Join(m.dir, "shim", "main.c"), "int main(void) { return 1; }\n") }},
		{"new file of the shim", func() { m.write(filepath.Join(m.dir, "shim", "sub", "x.c"), "") }},
		{"compiler", func() { t.Setenv("CXX", "c++ -DX=1") }},
	} {
		c.change()
		k := key()
		require.NotContains(t, seen, k, "%s does not change the key", c.name)
		seen[k] = c.name
	}
}

func TestBuildAnewWhenArchiveWasChanged(t *testing.T) {
	m := newMade(t)
	result, err := m.builder().Build(t.Context())
	require.NoError(t, err)
	archive := filepath.Join(result.Dir, "lib", "libllama.a")
	data, err := os.ReadFile(archive)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	require.NoError(t, os.WriteFile(archive, data, 0o644))
	m.reported()
	again, err := m.builder().Build(t.Context())
	require.NoError(t, err)
	require.Equal(t, result.Hash, again.Hash)
	require.Contains(t, m.reported(), archive+" was changed after it was built; building it anew")
}

func TestBuildTogether(t *testing.T) {
	m := newMade(t)
	var all errgroup.Group
	for range 3 {
		all.Go(func() error {
			_, err := m.builder().Build(t.Context())
			return err
		})
	}
	require.NoError(t, all.Wait())
	require.Equal(t, 1, strings.Count(m.reported(), "native: configuring"))
}

func TestBuildShowsCompilerError(t *testing.T) {
	m := newMade(t)
	m.write(filepath.Join(m.dir, "shim", "shim.cpp"), "int broken(\n")
	_, err := m.builder().Build(t.Context())
	require.ErrorContains(t, err, "cmake failed")
	require.ErrorContains(t, err, compileLog)
	require.Contains(t, m.reported(), "native: | FAILED:")
	require.NoDirExists(t, filepath.Join(m.cache, "build"))
}

// What is compiled from files that change meanwhile is never kept under the key of the older files.
func TestBuildRefusesShimThatChangesMeanwhile(t *testing.T) {
	m := newMade(t)
	m.write(filepath.Join(m.dir, "shim", "CMakeLists.txt"), shimCMake+`
add_custom_command(TARGET dgr_shim POST_BUILD COMMAND sh -c "echo >> ${CMAKE_CURRENT_SOURCE_DIR}/main.c" VERBATIM)
`)
	_, err := m.builder().Build(t.Context())
	require.ErrorContains(t, err, "was changed while it was compiled")
	require.NoDirExists(t, filepath.Join(m.cache, "build"))
}

func TestBuildNamesChangedPin(t *testing.T) {
	m := newMade(t)
	file := filepath.Join(m.dir, "pin.json")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	m.write(file, strings.Replace(string(data), `"v1"`, `"v2"`, 1))
	_, err = m.builder().Build(t.Context())
	require.ErrorContains(t, err, "pin.json was changed")
}

func TestEnv(t *testing.T) {
	m := newMade(t)
	result, err := m.builder().Build(t.Context())
	require.NoError(t, err)
	env := map[string]string{}
	for _, v := range result.Env() {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	require.Equal(t, "1", env["CGO_ENABLED"])
	require.Contains(t, env["CGO_CFLAGS"], "-DSHIM_LIB=x"+result.Hash)
	require.Contains(t, env["CGO_CFLAGS"], "-I"+filepath.Join(result.Dir, "include"))
	require.FileExists(t, filepath.Join(result.Dir, "include", "dgr_shim.h"))
	link := strings.Fields(env["CGO_LDFLAGS"])
	for i, a := range archives {
		require.Equal(t, filepath.Join(result.Dir, "lib", a), link[i])
		require.FileExists(t, link[i])
	}
}

// Two checkouts share what does not come from their shims.
func TestCheckoutsShareTheCompileTree(t *testing.T) {
	m := newMade(t)
	_, err := m.builder().Build(t.Context())
	require.NoError(t, err)
	llama := func() time.Time {
		found, err := filepath.Glob(filepath.Join(m.cache, "work", "*", "llama", "libllama.a"))
		require.NoError(t, err)
		require.Len(t, found, 1)
		info, err := os.Stat(found[0])
		require.NoError(t, err)
		return info.ModTime()
	}
	compiled := llama()

	other := m
	other.dir = t.TempDir()
	require.NoError(t, os.CopyFS(other.dir, os.DirFS(m.dir)))
	other.write(filepath.Join(other.dir, "shim", "shim.cpp"), "extern \"C\" int dgr_made_up(void) { return 3; }\n")
	require.NoError(t, os.Remove(filepath.Join(other.dir, "shim", "extra.h")))
	var out bytes.Buffer
	require.NoError(t, other.builder().Test(t.Context(), &out), out.String())
	require.Equal(t, compiled, llama(), "llama.cpp was compiled again")
	gone, err := filepath.Glob(filepath.Join(m.cache, "work", "*", "shim", "extra.h"))
	require.NoError(t, err)
	require.Empty(t, gone, "a file that the other checkout does not have is still compiled with")
}

func TestCTest(t *testing.T) {
	m := newMade(t)
	var out bytes.Buffer
	require.NoError(t, m.builder().Test(t.Context(), &out), out.String())
	require.Contains(t, out.String(), "100% tests passed")

	m.write(filepath.Join(m.dir, "shim", "main.c"), "int main(void) { return 1; }\n")
	out.Reset()
	require.ErrorContains(t, m.builder().Test(t.Context(), &out), "native tests failed")
	require.Contains(t, out.String(), "llama-tied.gguf", "a failed test shows its output")
}

func TestSystemLibs(t *testing.T) {
	var said string
	b := &Builder{report: func(line string) { said += line }}
	libs, err := b.systemLibs(map[string]string{"OpenMP_CXX_LIB_NAMES": "gomp;pthread",
		"OpenMP_gomp_LIBRARY": "/usr/lib/libgomp.so", "OpenMP_pthread_LIBRARY": "OpenMP_pthread_LIBRARY-NOTFOUND"})
	require.NoError(t, err)
	require.Subset(t, libs, []string{"/usr/lib/libgomp.so", "-lpthread", "-lm"})
	require.Empty(t, said)
	_, err = b.systemLibs(nil)
	require.NoError(t, err)
	require.Contains(t, said, "OpenMP not found")
}

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	m := newMade(t)
	long := time.Now().Add(-2 * idle)
	var dirs []string
	for i := range keep + 3 {
		dir := filepath.Join(m.cache, "build", fmt.Sprintf("old%d", i))
		require.NoError(t, os.MkdirAll(dir, 0o755))
		at := long.Add(time.Duration(-i) * time.Hour)
		require.NoError(t, os.Chtimes(dir, at, at))
		dirs = append(dirs, dir)
	}
	used(dirs[len(dirs)-1])
	m.builder().prune()
	for i, dir := range dirs {
		if i < keep-1 || i == len(dirs)-1 {
			require.DirExists(t, dir)
		} else {
			require.NoDirExists(t, dir)
		}
	}
}
