package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestFlagsReachTheModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	out, err := execute(t, "--arch", "qwen3", "--layers", "3", "--embd", "64", "--heads", "4", "--kv-heads", "1", "--head-length", "24",
		"--ff", "96", "--vocab", "300", "--context", "99", "--tied", "--type", "f16", "--name", "n", "--out", path)
	require.NoError(t, err)
	require.Equal(t, path+"\n", out)
	m, err := gguf.Open(path)
	require.NoError(t, err)
	require.Equal(t, "qwen3", m.Architecture())
	require.Equal(t, "n", m.Name())
	require.EqualValues(t, 3, m.NLayer())
	require.EqualValues(t, 64, m.Embedding())
	require.EqualValues(t, 300, m.Vocab())
	require.EqualValues(t, 99, m.TrainContext())
	require.True(t, m.Tied())
	heads, kv := m.Heads(0)
	require.Equal(t, []uint32{4, 1}, []uint32{heads, kv})
	length, _ := m.HeadLength(0)
	require.EqualValues(t, 24, length)
}

func TestParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	out, err := execute(t, "--parts", "2", "--header-first", "--claim", "martian", "--out", path)
	require.NoError(t, err)
	require.Equal(t, path[:len(path)-5]+"-00001-of-00002.gguf\n"+path[:len(path)-5]+"-00002-of-00002.gguf\n", out)
	m, err := gguf.Open(path[:len(path)-5] + "-00002-of-00002.gguf")
	require.NoError(t, err)
	require.Equal(t, "martian", m.Architecture())
}

func TestFaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	for want, args := range map[string][]string{
		`"out" not set`:         {},
		`architecture "x"`:      {"--arch", "x", "--out", path},
		`unknown type "q9"`:     {"--type", "q9", "--out", path},
		"width 33":              {"--embd", "33", "--out", path},
		"none of the others":    {"--tied", "--untied", "--out", path},
		"unknown command \"y\"": {"y", "--out", path},
	} {
		_, err := execute(t, args...)
		require.ErrorContains(t, err, want)
	}
	require.NoFileExists(t, path)
}
