//go:build llama && cgo

package llama

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

// childVariable makes this test program the process of an engine: of a good one, or of one that is lost by its first step.
const childVariable = "DGR_TEST_CHILD"

func TestMain(m *testing.M) {
	factory := map[string]engine.Factory{"good": New, "lost": lost}[os.Getenv(childVariable)]
	if factory == nil {
		goleak.VerifyTestMain(m)
		return
	}
	if err := child.Serve(context.Background(), factory); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// apart makes engines in processes of their own.
func apart(which string) engine.Factory {
	return child.Factory(child.Options{Command: func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+which, "GGML_NO_BACKTRACE=1", "GORACE=atexit_sleep_ms=0")
		return cmd
	}})
}

// writeModel writes a random model and returns its path.
func writeModel(t testing.TB, spec tiny.Spec) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), spec.Arch+".gguf")
	if err := tiny.Write(context.Background(), path, spec); err != nil {
		t.Fatal(err)
	}
	return path
}

func spec(t testing.TB, arch string) tiny.Spec {
	t.Helper()
	s, err := tiny.Default(arch)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// request loads what tests need of a model.
func request(paths ...string) engine.LoadRequest {
	return engine.LoadRequest{
		Paths: paths, ContextLimit: 192, Sessions: 3, BatchTokens: 96, MicroBatch: 32, Threads: 1,
		CacheType: "f16", FlashAttention: true, MemoryMap: true,
	}
}

// loaded is an engine with its text engine and shard.
type loaded struct {
	*shardEngine
	info engine.ShardInfo
}

func load(t testing.TB, req engine.LoadRequest, first, end uint32) *loaded {
	t.Helper()
	e, _, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	req.Layers = engine.LayerRange{First: first, End: end}
	info, err := e.Load(t.Context(), req, nil)
	if err != nil {
		t.Fatalf("load layers %s: %v", req.Layers, err)
	}
	return &loaded{e.(*shardEngine), info}
}

func id(n byte) engine.SessionID { return engine.SessionID{15: n} }

// open opens sessions 1 to n.
func (l *loaded) open(t testing.TB, n byte, contextTokens uint32) {
	t.Helper()
	for i := byte(1); i <= n; i++ {
		if err := l.Open(t.Context(), id(i), contextTokens); err != nil {
			t.Fatal(err)
		}
	}
}

// run runs a batch that must succeed.
func (l *loaded) run(t testing.TB, steps ...engine.Step) []engine.StepResult {
	t.Helper()
	results, err := l.Step(t.Context(), steps)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return results
}

// chain is the shards of a model, in order.
type chain []*loaded

func loadChain(t testing.TB, req engine.LoadRequest, cuts ...uint32) chain {
	t.Helper()
	var c chain
	for i := range len(cuts) - 1 {
		c = append(c, load(t, req, cuts[i], cuts[i+1]))
	}
	return c
}

func (c chain) open(t testing.TB, n byte, contextTokens uint32) {
	for _, l := range c {
		l.open(t, n, contextTokens)
	}
}

// run takes a batch through all shards.
func (c chain) run(t testing.TB, steps ...engine.Step) []engine.StepResult {
	t.Helper()
	steps = slices.Clone(steps)
	var results []engine.StepResult
	for _, l := range c {
		wants := slices.Clone(steps)
		if !l.info.Tail() {
			for i := range wants {
				wants[i].Sampling = nil
				if wants[i].Want == engine.WantSample {
					wants[i].Want = engine.WantNone
				}
			}
		}
		results = l.run(t, wants...)
		for i := range steps {
			steps[i].Boundary = results[i].Boundary
		}
	}
	return results
}

// tokens makes n tokens that depend on seed.
func tokens(seed, n int, vocab uint32) []engine.TokenID {
	out := make([]engine.TokenID, n)
	state := uint32(seed)*2654435761 + 1
	for i := range out {
		state = state*1664525 + 1013904223
		out[i] = engine.TokenID((state >> 8) % vocab)
	}
	return out
}

func values(r engine.Rows) []float32 {
	out := make([]float32, len(r.Data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(r.Data[4*i:]))
	}
	return out
}

// sameBits compares rows.
func sameBits(t *testing.T, what string, got, want engine.Rows) {
	t.Helper()
	if got.N != want.N || got.Width != want.Width || uint64(len(want.Data)) != 4*uint64(want.N)*uint64(want.Width) {
		t.Fatalf("%s: %d × %d in %d bytes, want %d × %d in %d", what, got.N, got.Width, len(got.Data), want.N, want.Width, len(want.Data))
	}
	if bytes.Equal(got.Data, want.Data) {
		return
	}
	a, b := values(got), values(want)
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, a[i], b[i])
		}
	}
}

func wantCode(t *testing.T, err error, code engine.Code) {
	t.Helper()
	if engine.CodeOf(err) != code {
		t.Fatalf("error %v, want %s", err, code)
	}
}
