package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/footprint"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// header writes a file with the header of a large model and a hole where its weights would be.
func header(t *testing.T, arch string, change ...func(*tiny.Spec)) string {
	t.Helper()
	s, err := tiny.Default(arch)
	require.NoError(t, err)
	s.Layers, s.Embd, s.Heads, s.KVHeads, s.FF, s.Vocab, s.Context, s.Type = 32, 4096, 32, 8, 11008, 32000, 8192, gguf.Q8_0
	s.HeadLength = 128
	for _, c := range change {
		c(&s)
	}
	path := filepath.Join(t.TempDir(), arch+".gguf")
	require.NoError(t, tiny.WriteHollow(path, s))
	return path
}

func open(t *testing.T, path string) *gguf.Model {
	t.Helper()
	m, err := gguf.Open(path)
	require.NoError(t, err)
	return m
}

func options() Options {
	return Options{Options: footprint.Options{Context: 2048, Sessions: 4, CacheType: "f16", MicroBatch: 512}}
}

// made is a model of made-up weights.
type made struct {
	layers                     int
	layer                      []uint64
	head, tail, tied, overhead uint64
}

// flat is a model whose layers weigh 10 MiB each, with head, tail and overhead as given in MiB.
func flat(layers int, head, tail, overhead uint64) *made {
	m := &made{layers: layers, head: head * mib, tail: tail * mib, overhead: overhead * mib}
	for range layers {
		m.layer = append(m.layer, 10*mib)
	}
	return m
}

func (m *made) Layers() int { return m.layers }

func (m *made) Need(first, end int) footprint.Need {
	n := footprint.Need{Overhead: m.overhead}
	for _, weight := range m.layer[first:end] {
		n.Weights += weight
	}
	if first == 0 {
		n.Weights += m.head
	}
	if end == m.layers {
		n.Weights += m.tail
		if first > 0 {
			n.Weights += m.tied
		}
	}
	return n
}

func TestDivide(t *testing.T) {
	tests := []struct {
		name   string
		costs  costs
		memory []uint64 // MiB
		fewest bool
		want   string
	}{
		{"one machine", flat(4, 0, 0, 0), []uint64{100}, false, "0:4"},
		{"equal machines", flat(4, 0, 0, 0), []uint64{100, 100}, false, "0:2 2:4"},
		{"in proportion", flat(9, 0, 0, 0), []uint64{200, 100}, false, "0:6 6:9"},
		{"a heavy tail", flat(6, 0, 40, 0), []uint64{100, 100}, false, "0:5 5:6"},
		{"a heavy head", flat(6, 40, 0, 0), []uint64{100, 100}, false, "0:1 1:6"},
		{"the overhead is no room", flat(9, 0, 0, 50), []uint64{250, 150}, false, "0:6 6:9"},
		{"one is too small for anything", flat(4, 0, 0, 20), []uint64{15, 100, 100}, false, "- 0:2 2:4"},
		{"more machines than layers", flat(2, 0, 0, 0), []uint64{30, 30, 30}, false, "0:1 1:2 -"},
		{"just enough", flat(6, 5, 5, 1), []uint64{36, 36}, false, "0:3 3:6"},
		{"one byte too few", flat(6, 5, 5, 1), []uint64{36, 35}, false, ""},
		{"few machines", flat(6, 0, 0, 0), []uint64{40, 100, 40}, true, "- 0:6 -"},
		{"few machines, still even", flat(6, 0, 0, 0), []uint64{50, 50, 20}, true, "0:3 3:6 -"},
		{"all machines", flat(6, 0, 0, 0), []uint64{40, 100, 40}, false, "0:1 1:5 5:6"},
		{"the others even too", flat(9, 0, 90, 0), []uint64{100, 100, 150}, false, "0:4 4:8 8:9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			memory := make([]uint64, len(tt.memory))
			for i, n := range tt.memory {
				memory[i] = n * mib
			}
			spans := divide(tt.costs, memory, tt.fewest)
			require.Equal(t, tt.want, show(spans))
			require.Equal(t, spans != nil, fit(tt.costs, memory))
		})
	}
}

func show(spans []span) string {
	var s []string
	for _, p := range spans {
		if p.first == p.end {
			s = append(s, "-")
		} else {
			s = append(s, fmt.Sprintf("%d:%d", p.first, p.end))
		}
	}
	return strings.Join(s, " ")
}

// TestDivideAgainstTryingAll compares with a search that tries every cut.
func TestDivideAgainstTryingAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	found := 0
	for range 300 {
		c := flat(1+rng.IntN(6), rng.Uint64N(30), rng.Uint64N(30), rng.Uint64N(5))
		for i := range c.layers {
			c.layer[i] = rng.Uint64N(30 * mib)
		}
		c.tied = min(rng.Uint64N(20*mib), c.head)
		memory := make([]uint64, 1+rng.IntN(3))
		for i := range memory {
			memory[i] = rng.Uint64N(150 * mib)
		}
		want := tryAll(c, memory, 0, 0)
		spans := divide(c, memory, false)
		require.Equal(t, math.IsInf(want, 1), spans == nil)
		require.Equal(t, spans != nil, fit(c, memory))
		if spans == nil {
			continue
		}
		found++
		got := 0.0
		next := 0
		for i, p := range spans {
			require.Equal(t, next, p.first)
			next = p.end
			got = max(got, fullness(c, memory[i], p.first, p.end))
		}
		require.Equal(t, c.Layers(), next)
		require.InDelta(t, want, got, 1e-9)
	}
	require.Greater(t, found, 50)
}

func fullness(c costs, memory uint64, first, end int) float64 {
	if first == end {
		return 0
	}
	n := c.Need(first, end)
	if n.Total() > memory {
		return math.Inf(1)
	}
	return float64(n.Weights+n.Cache) / float64(memory-n.Overhead)
}

// tryAll is the least fullness of the fullest machine, from machine i and layer first on.
func tryAll(c costs, memory []uint64, i, first int) float64 {
	if i == len(memory) {
		if first == c.Layers() {
			return 0
		}
		return math.Inf(1)
	}
	best := math.Inf(1)
	for end := first; end <= c.Layers(); end++ {
		best = min(best, max(fullness(c, memory[i], first, end), tryAll(c, memory, i+1, end)))
	}
	return best
}

func TestShortageSaysWhatHelps(t *testing.T) {
	m := open(t, header(t, "llama"))
	o := options()
	memory := []uint64{3 << 30, 3 << 30}
	_, err := Make(m, memory, o)
	var s *Shortage
	require.True(t, errors.As(err, &s))
	require.Equal(t, uint64(6<<30), s.Have)
	require.Equal(t, m.Bytes()+64*4, s.Need.Weights, "both load the rope factors")

	works := func(memory []uint64, o Options) bool {
		_, err := Make(m, memory, o)
		return err == nil
	}
	require.True(t, works([]uint64{3<<30 + s.Each, 3<<30 + s.Each}, o))
	require.False(t, works([]uint64{3<<30 + s.Each - 1, 3<<30 + s.Each - 1}, o))
	require.True(t, works(append(memory, s.Another), o))
	require.False(t, works(append(memory, s.Another-1), o))
	require.Contains(t, err.Error(), "the model does not fit")

	memory = []uint64{4 << 30, 3<<30 + 400<<20}
	_, err = Make(m, memory, o)
	require.True(t, errors.As(err, &s))
	require.NotZero(t, s.Context)
	require.NotZero(t, s.Sessions)
	shorter := o
	shorter.Context = s.Context
	require.True(t, works(memory, shorter))
	shorter.Context++
	require.False(t, works(memory, shorter))
	fewer := o
	fewer.Sessions = s.Sessions
	require.True(t, works(memory, fewer))
	fewer.Sessions++
	require.False(t, works(memory, fewer))
	require.ErrorContains(t, err, fmt.Sprintf("--context %d, with --sessions %d", s.Context, s.Sessions))
}

func TestRoundUp(t *testing.T) {
	for n, want := range map[uint64]string{1: "1 MiB", mib: "1 MiB", mib + 1: "2 MiB", 1 << 30: "1.0 GiB", 1<<30 + 1: "1.1 GiB", 105 << 27: "13.2 GiB"} {
		require.Equal(t, want, roundUp(n))
	}
}

func TestArchitectureThatCannotBeCut(t *testing.T) {
	m := open(t, header(t, "llama", func(s *tiny.Spec) { s.Claim = "martian" }))
	p, err := Make(m, []uint64{4 << 30, 16 << 30, 8 << 30}, options())
	require.NoError(t, err)
	require.Len(t, p.Workers, 1)
	require.Equal(t, 2, p.Workers[0].Machine)
	require.Equal(t, []int{1, 3}, p.Unused)
	_, err = Make(m, []uint64{7 << 30, 7 << 30}, options())
	require.ErrorIs(t, err, engine.UnsupportedArchitecture)
	require.ErrorContains(t, err, `"martian"`)
	var s *Shortage
	_, err = Make(m, []uint64{7 << 30}, options())
	require.True(t, errors.As(err, &s))
}

// run executes the command and returns what it printed, with the directory of the model taken out.
func run(t *testing.T, path string, args ...string) (string, error) {
	t.Helper()
	cmd := Command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs(append([]string{"--model", path}, args...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return strings.ReplaceAll(out.String(), filepath.Dir(path)+string(filepath.Separator), ""), err
}

// golden compares with testdata; `go test -run TestGolden -rewrite` writes the files anew.
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

func TestGolden(t *testing.T) {
	llama := header(t, "llama")
	tied := header(t, "gemma3", func(s *tiny.Spec) { s.Vocab, s.Layers, s.Tied = 262144, 26, true })
	for name, args := range map[string][]string{
		"two.txt":     {llama, "--memory", "8GiB,4GiB"},
		"two.json":    {llama, "--memory", "8GiB,4GiB", "--json"},
		"one.txt":     {llama, "--memory", "16GiB", "--addresses", "127.0.0.1:7711"},
		"fewest.txt":  {llama, "--memory", "8GiB,16GiB,8GiB", "--fewest"},
		"all.txt":     {llama, "--memory", "8GiB,16GiB,8GiB"},
		"local.txt":   {llama, "--memory", "8GiB,8GiB", "--addresses", "localhost:7711,localhost:7712", "--sessions", "1", "--context", "4096"},
		"tied.txt":    {tied, "--memory", "6GiB,6GiB,3GiB"},
		"options.txt": {llama, "--memory", "8GiB,8GiB", "--cache-type", "q8_0", "--flash-attention", "--micro-batch", "128", "--addresses", "a:1,b:2"},
	} {
		out, err := run(t, args[0], args[1:]...)
		require.NoError(t, err, name)
		golden(t, name, out)
	}
	_, err := run(t, llama, "--memory", "4GiB,2GiB")
	require.Error(t, err)
	golden(t, "short.txt", err.Error()+"\n")
}

func TestJSONIsThePlan(t *testing.T) {
	path := header(t, "llama")
	out, err := run(t, path, "--memory", "8GiB,4GiB", "--json")
	require.NoError(t, err)
	var p Plan
	require.NoError(t, json.Unmarshal([]byte(out), &p))
	require.Len(t, p.Workers, 2)
	require.Equal(t, p.Workers[0].End, p.Workers[1].First)
	for _, w := range p.Workers {
		require.Equal(t, w.Memory, w.Used+w.Free)
		require.Equal(t, w.Total(), w.Used)
	}
	require.Equal(t, "HOST-1:7711,HOST-2:7711", p.Route)
}

func TestContextIsAtMostTheTrained(t *testing.T) {
	path := header(t, "llama", func(s *tiny.Spec) { s.Context = 1000 })
	out, err := run(t, path, "--memory", "16GiB")
	require.NoError(t, err)
	require.Contains(t, out, "--context 1000")
}

func TestFaults(t *testing.T) {
	path := header(t, "llama", func(s *tiny.Spec) { s.Layers, s.Embd, s.Heads, s.KVHeads, s.HeadLength = 2, 64, 2, 2, 32 })
	for want, args := range map[string][]string{
		"--memory is missing":            {},
		`"8 bananas" is no size`:         {"--memory", "8 bananas"},
		`"0" is no size`:                 {"--memory", "8GiB,0"},
		`"-1GiB" is no size`:             {"--memory=-1GiB"},
		"names 65 machines":              {"--memory", strings.Repeat("1GiB,", 64) + "1GiB"},
		"--sessions 256":                 {"--memory", "1GiB", "--sessions", "256"},
		"--context 16777217":             {"--memory", "1GiB", "--context", "16777217"},
		"--micro-batch 0":                {"--memory", "1GiB", "--micro-batch", "0"},
		`--cache-type "q5_1"`:            {"--memory", "1GiB", "--cache-type", "q5_1"},
		"needs flash attention":          {"--memory", "1GiB", "--cache-type", "q8_0"},
		"names 1 workers and --memory 2": {"--memory", "1GiB,1GiB", "--addresses", "a:1"},
		`"a" is no HOST:PORT`:            {"--memory", "1GiB", "--addresses", "a"},
		"names a:1 twice":                {"--memory", "1GiB,1GiB", "--addresses", "a:1,a:1"},
		"give f32, f16, q8_0 or q4_0":    {"--cache-type", "x"},
		`unknown command "x"`:            {"x"},
	} {
		_, err := run(t, path, args...)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
	_, err := run(t, filepath.Join(t.TempDir(), "none.gguf"), "--memory", "1GiB")
	require.ErrorIs(t, err, engine.BadModelFile)
	_, err = run(t, "", "--memory", "1GiB")
	require.ErrorContains(t, err, "--model is missing")
}

func TestShellQuotes(t *testing.T) {
	require.Equal(t, `a b=c '' 'd e' 'it'\''s' '$x' 'ü'`, shell([]string{"a", "b=c", "", "d e", "it's", "$x", "ü"}))
}
