package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// without hides programs from the finder.
func without(names ...string) func(string) (string, error) {
	return func(name string) (string, error) {
		if slices.Contains(names, name) {
			return "", exec.ErrNotFound
		}
		return exec.LookPath(name)
	}
}

func TestMissingToolsAreNamed(t *testing.T) {
	m := newMade(t)
	for name, c := range map[string]struct {
		hide []string
		want []string
	}{
		"git":      {[]string{"git"}, []string{"git was not found", "apt install git", "dnf install git", "brew install git"}},
		"compiler": {[]string{"c++", "g++", "clang++"}, []string{"compiler was not found", "none of c++, g++, clang++", "apt install build-essential", "dnf install gcc-c++", "brew install llvm"}},
		"cmake":    {[]string{"cmake", "python3"}, []string{"no cmake", "there is no python3", "apt install cmake ninja-build", "brew install cmake ninja"}},
		"ninja":    {[]string{"ninja", "python3"}, []string{"no ninja", "dnf install cmake ninja-build"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := m.builder()
			b.finder.lookPath = without(c.hide...)
			_, err := b.Build(t.Context())
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestCompilerVariable(t *testing.T) {
	m := newMade(t)
	t.Setenv("CXX", "no-such-compiler -x")
	_, err := m.builder().Build(t.Context())
	require.ErrorContains(t, err, "CXX names no-such-compiler, which does not exist")
}

// cmake and ninja that are missing or too old come from a Python environment in the cache, made once.
func TestToolsFromPython(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the stand-ins are shell scripts")
	}
	for name, old := range map[string]bool{"missing": false, "too old": true} {
		t.Run(name, func(t *testing.T) {
			m := newMade(t)
			python, log := standInPython(t)
			oldCMake := filepath.Join(t.TempDir(), "cmake")
			script(t, oldCMake, "echo cmake version 3.10.2")
			find := func(name string) (string, error) {
				switch {
				case name == "python3":
					return python, nil
				case name == "cmake" && old:
					return oldCMake, nil
				case name == "cmake" || name == "ninja":
					return "", exec.ErrNotFound
				}
				return exec.LookPath(name)
			}
			for range 2 {
				b := m.builder()
				b.finder.lookPath = find
				got, err := b.tools(t.Context(), recipe{})
				require.NoError(t, err)
				require.Equal(t, m.cache, filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(got.cmake)))))
				require.FileExists(t, got.cmake)
				require.FileExists(t, got.ninja)
			}
			data, err := os.ReadFile(log)
			require.NoError(t, err)
			require.Equal(t, "venv\npip install "+cmakePackage+" "+ninjaPackage+"\n", string(data))
		})
	}
}

// standInPython is a python3 whose environments hold a cmake and a ninja after `pip install`; it logs what it was asked.
func standInPython(t *testing.T) (python, log string) {
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	inner := filepath.Join(dir, "inner")
	script(t, inner, `test "$2 $3" = "pip install" || exit 1
for last; do before="$this"; this="$last"; done
echo "pip install $before $this" >> `+log+`
bin=$(dirname "$0"); touch "$bin/cmake" "$bin/ctest" "$bin/ninja"`)
	python = filepath.Join(dir, "python3")
	script(t, python, `test "$1 $2" = "-m venv" || exit 1
echo venv >> `+log+`
mkdir -p "$3/bin" && cp `+inner+` "$3/bin/python"`)
	return python, log
}

func script(t *testing.T, file, body string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
}
