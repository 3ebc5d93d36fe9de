package fake_test

import (
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/enginetest"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

func request() engine.LoadRequest {
	return engine.LoadRequest{ContextLimit: 64, Sessions: 4, BatchTokens: 48, MicroBatch: 16, Threads: 1, CacheType: "f32"}
}

func script(t *testing.T, o fake.Options, text string) engine.Factory {
	t.Helper()
	rules, err := fake.ParseScript(text)
	if err != nil {
		t.Fatal(err)
	}
	o.Script = rules
	return fake.Factory(o)
}

// each makes factories whose every engine has the script from its beginning.
func each(t *testing.T, o fake.Options, text string) engine.Factory {
	return func() (engine.ShardEngine, engine.TextEngine, error) { return script(t, o, text)() }
}

func target(t *testing.T, o fake.Options) enginetest.Target {
	end := fake.EndOfText
	return enginetest.Target{
		Factory: fake.Factory(o), Request: request(), EndOfGeneration: &end,
		Without: map[enginetest.Ability]string{enginetest.BadFiles: "the fake reads no files"},
		Slow:    each(t, o, "step slow 5ms"), Lost: each(t, o, "step 1 lost"), NaN: each(t, o, "step 1 nan"),
	}
}

func TestEngine(t *testing.T) {
	window := fake.Default()
	window.Truncate, window.Copy, window.Window, window.Marks = engine.TruncateWindow, engine.CopyWhole, 4, 2
	none := fake.Default()
	none.Truncate, none.Copy, none.Marks = engine.TruncateNone, engine.CopyWhole, 3
	whole := fake.Default()
	whole.Copy, whole.Marks = engine.CopyWhole, 1
	wide := fake.Default()
	wide.Seed, wide.NLayer, wide.Vocab, wide.Width, wide.ChatTemplate = 9, 3, 400, 33, true
	for name, o := range map[string]fake.Options{"any": fake.Default(), "window": window, "none": none, "whole": whole, "wide": wide} {
		t.Run(name, func(t *testing.T) {
			subject := target(t, o)
			if name != "any" {
				subject.Churn = 500
			}
			enginetest.Run(t, subject)
		})
	}
}
