package verify

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACompilerIsFoundByItsVariableOrName(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	t.Setenv("CC", "")
	t.Setenv("CXX", "")
	require.Empty(t, CompilerCXX())
	require.Contains(t, MissingForNative(), "no C++ compiler")

	program(t, bin, "clang++")
	require.Contains(t, MissingForNative(), "no C++ compiler", "its C compiler is missing")
	program(t, bin, "gcc")
	require.Equal(t, filepath.Join(bin, "clang++"), CompilerCXX())
	require.Empty(t, MissingForNative())

	program(t, bin, "odd-g++")
	t.Setenv("CXX", "odd-g++ -pipe")
	require.Equal(t, filepath.Join(bin, "odd-g++"), CompilerCXX())
}

func TestKeysToServicesAreKnown(t *testing.T) {
	for name, want := range map[string]bool{
		"OPENAI_API_KEY": true, "HF_TOKEN": true, "aws_secret_access_key": true, "PATH": false, "TOKENS": false, "HOME": false,
	} {
		require.Equal(t, want, secret(name), name)
	}
}

func TestLinesAboutPackagesWithoutTestsAreLeftOut(t *testing.T) {
	var out bytes.Buffer
	q := &quiet{to: &out}
	for _, piece := range []string{"?   \tx/a\t[no te", "st files]\nok  \tx/b\t0.1s\n--- FAIL: [no test files]\n", "?   \tx/c\t[no test files]\nend"} {
		n, err := q.Write([]byte(piece))
		require.NoError(t, err)
		require.Equal(t, len(piece), n)
	}
	require.NoError(t, q.flush())
	require.Equal(t, "ok  \tx/b\t0.1s\n--- FAIL: [no test files]\nend", out.String())
}

func program(t *testing.T, dir, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755))
}
