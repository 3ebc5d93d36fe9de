package fake_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func TestParse(t *testing.T) {
	o, err := fake.Parse("fake:layers=6,seed=7,width=16,vocab=300,truncate=window,window=4,marks=2,end=40,chat=true,script=step 2+ slow 5ms; open fail NO_CAPACITY")
	if err != nil {
		t.Fatal(err)
	}
	want := fake.Default()
	want.NLayer, want.Seed, want.Width, want.Vocab, want.Truncate, want.Window = 6, 7, 16, 300, engine.TruncateWindow, 4
	want.Copy = engine.CopyWhole
	want.Marks, want.EndAt, want.ChatTemplate = 2, 40, true
	want.Script = fake.Script{
		{Op: fake.OpStep, From: 2, Action: fake.ActionSlow, Delay: 5e6},
		{Op: fake.OpOpen, From: 1, Action: fake.ActionFail, Failure: engine.NoCapacity},
	}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("parsed options differ:\n%s", diff)
	}
	if o, err := fake.Parse("fake"); err != nil || !cmp.Equal(o, fake.Default()) {
		t.Errorf("fake alone is %+v, %v", o, err)
	}
	for _, bad := range []string{
		"", "model.gguf", "fakes", "fake:depth=3", "fake:layers=x", "fake:layers=0", "fake:width=3", "fake:truncate=maybe",
		"fake:window=4", "fake:truncate=none", "fake:truncate=none,marks=2,copy=prefix", "fake:copy=half",
		"fake:script=step", "fake:script=walk slow 5ms", "fake:script=step slow", "fake:script=step 0 stuck",
		"fake:script=load nan", "fake:script=step jump", "fake:script=step with lost", "fake:script=step with 5,x lost", "fake:script=load with 5 lost",
	} {
		if o, err := fake.Parse(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, o)
		}
	}
}

func TestFingerprintNamesTheModel(t *testing.T) {
	seen := map[[32]byte]string{}
	for _, name := range []string{"fake", "fake:seed=2", "fake:layers=5", "fake:width=16", "fake:vocab=300", "fake:end=4", "fake:architecture=other"} {
		o, err := fake.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		if other, double := seen[o.Fingerprint()]; double {
			t.Errorf("%s and %s have one fingerprint", name, other)
		}
		seen[o.Fingerprint()] = name
	}
	slow, err := fake.Parse("fake:script=step slow 1ms")
	if err != nil || slow.Fingerprint() != fake.Default().Fingerprint() {
		t.Errorf("a script changes the fingerprint (%v)", err)
	}
}

// A script strikes the nth call of a factory, not of an engine, so that an engine made after a loss works.
func TestScriptStrikesOnce(t *testing.T) {
	o := fake.Default()
	var err error
	if o.Script, err = fake.ParseScript("step 2 lost; step 3 fail ENGINE_OUT_OF_MEMORY; step 4 poison; open 3 fail NO_CAPACITY"); err != nil {
		t.Fatal(err)
	}
	factory, ctx := fake.Factory(o), t.Context()
	make := func() engine.ShardEngine {
		e, _, err := factory()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		if _, err := e.Load(ctx, request(), nil); err != nil {
			t.Fatal(err)
		}
		if err := e.Open(ctx, engine.SessionID{1}, 8); err != nil {
			t.Fatal(err)
		}
		return e
	}
	step := func(e engine.ShardEngine, at engine.Pos) ([]engine.StepResult, error) {
		return e.Step(ctx, []engine.Step{{Session: engine.SessionID{1}, Start: at, Tokens: []engine.TokenID{5}, Want: engine.WantLogitsLast}})
	}
	first := make()
	if results, err := step(first, 0); err != nil || results[0].Err != nil {
		t.Fatalf("step 1: %v, %v", results, err)
	}
	if _, err := step(first, 1); engine.CodeOf(err) != engine.EngineFault {
		t.Fatalf("step 2: %v, want ENGINE_FAULT", err)
	}
	second := make()
	if results, err := step(second, 0); err != nil || engine.CodeOf(results[0].Err) != engine.EngineOutOfMemory || results[0].Cache.Length != 0 {
		t.Fatalf("step 3: %v, %v, want ENGINE_OUT_OF_MEMORY", results, err)
	}
	results, err := step(second, 0)
	if err != nil || results[0].Err != nil || !bytes.Equal(results[0].Logits.Data[:4], []byte{0, 0, 0xc0, 0x7f}) {
		t.Fatalf("step 4: %v, want a NaN that nobody noticed", err)
	}
	if err := second.Open(ctx, engine.SessionID{2}, 8); engine.CodeOf(err) != engine.NoCapacity {
		t.Errorf("open 3: %v, want NO_CAPACITY", err)
	}
	if results, err := step(second, 1); err != nil || results[0].Err != nil {
		t.Errorf("step 5: %v, %v", results, err)
	}
}

// A rule with tokens strikes the steps that hold them in a row, and no others, however often.
func TestScriptStrikesTokens(t *testing.T) {
	o := fake.Default()
	var err error
	if o.Script, err = fake.ParseScript("step with 7,7 fail ENGINE_OUT_OF_MEMORY"); err != nil {
		t.Fatal(err)
	}
	e, _ := load(t, o, engine.LayerRange{})
	for n, tt := range []struct {
		tokens []engine.TokenID
		struck bool
	}{
		{[]engine.TokenID{7}, false}, {[]engine.TokenID{7, 8, 7}, false}, {[]engine.TokenID{7, 7}, true}, {[]engine.TokenID{5, 6, 7, 7}, true}, {[]engine.TokenID{7, 7, 8}, true},
	} {
		id := engine.SessionID{byte(n)}
		if err := e.Open(t.Context(), id, 8); err != nil {
			t.Fatal(err)
		}
		results, err := e.Step(t.Context(), []engine.Step{{Session: id, Tokens: tt.tokens}})
		if err != nil || (engine.CodeOf(results[0].Err) == engine.EngineOutOfMemory) != tt.struck {
			t.Errorf("%v: %v, %v", tt.tokens, err, results[0].Err)
		}
		if err := e.Release(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStuckStepEndsWithItsContext(t *testing.T) {
	o := fake.Default()
	o.Script = fake.Script{{Op: fake.OpStep, From: 1, Action: fake.ActionStuck}}
	e, _ := load(t, o, engine.LayerRange{})
	if err := e.Open(t.Context(), engine.SessionID{1}, 8); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	results, err := e.Step(ctx, []engine.Step{{Session: engine.SessionID{1}, Tokens: []engine.TokenID{5}}})
	if err != nil || engine.CodeOf(results[0].Err) != engine.Cancelled {
		t.Errorf("a stuck step gave %v, %v", results, err)
	}
}
