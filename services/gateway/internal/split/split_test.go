package split

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// report is what --json prints.
func report(t *testing.T, args ...string) Report {
	t.Helper()
	out, err := run(t, append(args, "--json")...)
	require.NoError(t, err)
	var r Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	return r
}

// model writes a tiny model of 4 layers, in parts if more than one.
func model(t *testing.T, name string, parts int, change ...func(*tiny.Spec)) string {
	t.Helper()
	s, err := tiny.Default("llama")
	require.NoError(t, err)
	for _, c := range change {
		c(&s)
	}
	paths, err := tiny.WriteWith(t.Context(), filepath.Join(t.TempDir(), name), s, tiny.Options{Parts: parts})
	require.NoError(t, err)
	return paths[0]
}

func states(r Report) (all []string) {
	for _, f := range r.Shards {
		all = append(all, filepath.Base(f.Path)+" "+f.State)
	}
	return all
}

func TestSplitWritesKeepsAndVerifies(t *testing.T) {
	path, out := model(t, "m.gguf", 1), filepath.Join(t.TempDir(), "new", "shards")
	first := report(t, path, "--layers", "0:1,1:", "--out", out)
	require.Equal(t, []string{"m.layers-0-1.gguf written", "m.layers-1-4.gguf written"}, states(first))
	require.Len(t, first.Fingerprint, 64)
	shards := []string{first.Shards[0].Path, first.Shards[1].Path}
	for _, f := range first.Shards {
		info, err := os.Stat(f.Path)
		require.NoError(t, err)
		require.EqualValues(t, info.Size(), f.Bytes)
	}

	data, err := os.ReadFile(shards[1])
	require.NoError(t, err)
	require.NoError(t, os.Remove(shards[1]))
	require.NoError(t, os.WriteFile(shards[1]+".partial", data[:len(data)-100], 0o600))
	again := report(t, path, "--layers", "0:1,1:4", "--out", out)
	require.Equal(t, []string{"m.layers-0-1.gguf kept", "m.layers-1-4.gguf resumed"}, states(again))
	resumed, err := os.ReadFile(shards[1])
	require.NoError(t, err)
	require.Equal(t, data, resumed)

	for _, args := range [][]string{{"--verify", shards[1], shards[0]}, {"--verify", "--model", path, shards[0], shards[1]}} {
		r := report(t, args...)
		require.Equal(t, first.Fingerprint, r.Fingerprint)
		require.EqualValues(t, 4, r.Layers)
	}
	text, err := run(t, "--verify", shards[0], shards[1])
	require.NoError(t, err)
	require.Contains(t, text, "together they are the model "+first.Fingerprint)
	require.Contains(t, text, "1:4")

	// --workers divides by bytes, beside the model, and names shards of a model in parts without its part
	parts := report(t, model(t, "p.gguf", 3), "--workers", "2")
	require.Len(t, parts.Shards, 2)
	require.True(t, strings.HasPrefix(filepath.Base(parts.Shards[0].Path), "p.layers-0-"), parts.Shards[0].Path)
	require.Equal(t, first.Fingerprint, parts.Fingerprint, "the same model")
}

func TestSplitRefuses(t *testing.T) {
	path := model(t, "m.gguf", 1)
	out := t.TempDir()
	r := report(t, path, "--workers", "2", "--out", out)
	head, tail := r.Shards[0].Path, r.Shards[1].Path
	other := report(t, model(t, "other.gguf", 1, func(s *tiny.Spec) { s.Seed++ }), "--workers", "2", "--out", out)
	bad := filepath.Join(out, "bad.gguf")
	data, err := os.ReadFile(tail)
	require.NoError(t, err)
	data[len(data)-40] ^= 1
	require.NoError(t, os.WriteFile(bad, data, 0o600))
	taken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(taken, filepath.Base(head)), []byte("mine"), 0o600))
	martian := model(t, "x.gguf", 1, func(s *tiny.Spec) { s.Claim = "martian" })
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"nothing to do":       {[]string{path}, fail.Usage, "--layers"},
		"both":                {[]string{path, "--layers", "0:", "--workers", "2"}, fail.Usage, "give one"},
		"two models":          {[]string{path, path, "--workers", "2"}, fail.Usage, "one model"},
		"a gap":               {[]string{path, "--layers", "0:1,2:"}, fail.Usage, "leaves out 1:2"},
		"too many":            {[]string{path, "--workers", "5"}, fail.Usage, "4 layers"},
		"model to write":      {[]string{path, "--workers", "2", "--model", path}, fail.Usage, "--verify"},
		"verify and write":    {[]string{"--verify", head, "--out", out}, fail.Usage, "writes nothing"},
		"a shard again":       {[]string{head, "--workers", "2"}, fail.Usage, "is a shard itself"},
		"no such file":        {[]string{path + "x", "--workers", "2"}, fail.Failed, "x"},
		"another file there":  {[]string{path, "--workers", "2", "--out", taken}, fail.Failed, "another file is there"},
		"another form":        {[]string{martian, "--workers", "2"}, fail.Failed, "martian"},
		"no tail":             {[]string{"--verify", head}, fail.Failed, "no shard holds"},
		"twice":               {[]string{"--verify", head, head, tail}, fail.Failed, "is due"},
		"a whole model":       {[]string{"--verify", path}, fail.Failed, "no shard"},
		"two models together": {[]string{"--verify", head, other.Shards[1].Path}, fail.Failed, "is of the model"},
		"of another model":    {[]string{"--verify", "--model", path, other.Shards[0].Path, other.Shards[1].Path}, fail.Failed, "is of the model"},
		"a flipped bit":       {[]string{"--verify", head, bad}, fail.Failed, "bad.gguf"},
	} {
		_, err := run(t, c.args...)
		require.Error(t, err, name)
		require.Equal(t, c.code, fail.Code(err), "%s: %v", name, err)
		require.Contains(t, fail.Text(err), c.says, name)
	}
	mine, err := os.ReadFile(filepath.Join(taken, filepath.Base(head)))
	require.NoError(t, err)
	require.Equal(t, "mine", string(mine))
	_, err = run(t, martian, "--workers", "2")
	require.ErrorIs(t, err, engine.UnsupportedArchitecture)
}
