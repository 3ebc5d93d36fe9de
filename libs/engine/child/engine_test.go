//go:build unix

package child_test

import (
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/enginetest"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

func request() engine.LoadRequest {
	return engine.LoadRequest{ContextLimit: 64, Sessions: 4, BatchTokens: 48, MicroBatch: 16, Threads: 1, CacheType: "f32"}
}

func TestEngine(t *testing.T) {
	end := fake.EndOfText
	factory := func(script string) engine.Factory { return child.Factory(options(script)) }
	enginetest.Run(t, enginetest.Target{
		Factory: factory(""), Request: request(), EndOfGeneration: &end,
		Churn:   2000, // each step crosses a process twice
		Without: map[enginetest.Ability]string{enginetest.BadFiles: "the fake in the child reads no files"},
		Slow:    factory("step slow 5ms"), Lost: factory("step 1 lost"), NaN: factory("step 1 nan"),
	})
}
