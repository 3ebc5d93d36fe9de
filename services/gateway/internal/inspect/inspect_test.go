package inspect

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// model writes a tiny model and returns the path of its first file.
func model(t *testing.T, arch string, o tiny.Options, change ...func(*tiny.Spec)) string {
	t.Helper()
	s, err := tiny.Default(arch)
	require.NoError(t, err)
	for _, c := range change {
		c(&s)
	}
	paths, err := tiny.WriteWith(t.Context(), filepath.Join(t.TempDir(), arch+".gguf"), s, o)
	require.NoError(t, err)
	return paths[0]
}

// run executes the command and returns what it printed.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := Command()
	var out, faults bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&faults)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	require.Empty(t, faults.String(), "no bar where nobody watches")
	return out.String(), err
}

// golden compares with testdata; `go test -run TestText -rewrite` writes the files anew.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), got))
}

func TestText(t *testing.T) {
	for name, path := range map[string]string{
		"llama":  model(t, "llama", tiny.Options{}),
		"gemma3": model(t, "gemma3", tiny.Options{Parts: 3, HeaderFirst: true}),
		"martian": model(t, "llama", tiny.Options{}, func(s *tiny.Spec) {
			s.Claim, s.Name, s.Type, s.Tied = "martian", "", gguf.Q8_0, true
		}),
	} {
		out, err := run(t, path)
		require.NoError(t, err)
		golden(t, name+".txt", out)
	}
}

func TestJSON(t *testing.T) {
	path := model(t, "qwen2", tiny.Options{Parts: 2})
	out, err := run(t, "--json", path)
	require.NoError(t, err)
	golden(t, "qwen2.json", strings.ReplaceAll(out, filepath.Dir(path), "DIR"))

	var r Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	m, err := gguf.Open(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(Describe(m), r))
	var sum uint64
	for _, s := range r.Sections {
		sum += s.Bytes
	}
	require.Equal(t, m.Bytes(), sum, "sections are the whole model")
	require.Equal(t, m.Bytes(), r.Bytes)
}

func TestFingerprint(t *testing.T) {
	path := model(t, "llama", tiny.Options{})
	m, err := gguf.Open(path)
	require.NoError(t, err)
	man, err := gguf.HashModel(t.Context(), m, nil)
	require.NoError(t, err)
	for range 2 { // the second time from the cache
		out, err := run(t, "--fingerprint", path)
		require.NoError(t, err)
		require.Contains(t, out, "fingerprint    "+man.Fingerprint.String())
	}
	out, err := run(t, path)
	require.NoError(t, err)
	require.NotContains(t, out, "fingerprint")
}

func TestFaults(t *testing.T) {
	_, err := run(t, "none.gguf")
	require.ErrorIs(t, err, engine.BadModelFile)
	require.ErrorContains(t, err, "does not exist")
	_, err = run(t)
	require.Error(t, err)
	path := filepath.Join(t.TempDir(), "x.gguf")
	require.NoError(t, os.WriteFile(path, []byte("GGUF"), 0o644))
	_, err = run(t, path)
	require.ErrorContains(t, err, "truncated")
}

func TestChatTemplate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, gguf.Write(path, []gguf.KeyValue{
		{Key: "general.architecture", Value: gguf.String("x")},
		{Key: "x.block_count", Value: gguf.Uint32(1)},
		{Key: "x.embedding_length", Value: gguf.Uint32(1)},
		{Key: "tokenizer.chat_template", Value: gguf.String("{{ messages }}")},
	}, []gguf.TensorData{{Name: "blk.0.x", Dims: []uint64{1}, Type: gguf.F32, Write: gguf.Bytes(make([]byte, 4))}}))
	out, err := run(t, path)
	require.NoError(t, err)
	require.Contains(t, out, "chat template  yes")
	require.Contains(t, out, "model          m\n")
	require.Contains(t, out, "the header does not say")
}
