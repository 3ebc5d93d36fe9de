package fake_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

func load(t *testing.T, o fake.Options, layers engine.LayerRange) (engine.ShardEngine, engine.TextEngine) {
	t.Helper()
	e, text, err := fake.Factory(o)()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	_, err = e.Load(context.Background(), engine.LoadRequest{
		Layers: layers, ContextLimit: 256, Sessions: 4, BatchTokens: 128, MicroBatch: 64, Threads: 1, CacheType: "f32",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e, text
}

// The greedy text is a golden: it changes only when the imaginary model changes, and with it every golden above.
func TestGreedyTextIsStableAndReadable(t *testing.T) {
	ctx := context.Background()
	e, text := load(t, fake.Default(), engine.LayerRange{})
	prompt, err := text.Tokenize(ctx, "A shard is", true, false)
	if err != nil {
		t.Fatal(err)
	}
	session := engine.SessionID{1}
	if err := e.Open(ctx, session, 256); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var at engine.Pos
	tokens := prompt
	for range 24 {
		results, err := e.Step(ctx, []engine.Step{{
			Session: session, Start: at, Tokens: tokens, Want: engine.WantSample,
			Sampling: &engine.Sampling{TopP: 1, RepeatPenalty: 1},
		}})
		if err != nil || results[0].Err != nil {
			t.Fatal(err, results)
		}
		at = results[0].Cache.Length
		out.Write(results[0].Sample.Bytes)
		tokens = []engine.TokenID{results[0].Sample.Token}
	}
	const want = "djweprerrdcqmrihybyshw n"
	if got := out.String(); got != want {
		t.Errorf("greedy text is %q, want %q", got, want)
	}
	if s := strings.Trim(out.String(), "abcdefghijklmnopqrstuvwxyz "); s != "" {
		t.Errorf("greedy text has other characters than letters and spaces: %q", s)
	}
}
