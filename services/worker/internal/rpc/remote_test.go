package rpc_test

import (
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/remote"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/enginetest"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

// distant is an engine with the worker that it is on.
type distant struct {
	*remote.Engine
	worker *worker
}

// Close also ends the worker.
func (d distant) Close() error {
	defer d.worker.stop()
	return d.Engine.Close()
}

// distantly makes engines, each on an empty worker of its own that has one model.
func distantly(t *testing.T, model string) engine.Factory {
	return func() (engine.ShardEngine, engine.TextEngine, error) {
		w := start(t, engine.LayerRange{}, setting{empty: true, model: model})
		e, text, err := remote.New(remote.Options{Address: w.address, Dial: dial.Default()})
		if err != nil {
			w.stop()
			return nil, nil, err
		}
		return distant{e, w}, text, nil
	}
}

// A worker behind the wire is an engine like any other.
func TestEngineBehindTheWire(t *testing.T) {
	end := fake.EndOfText
	scripted := func(script string) engine.Factory { return distantly(t, "fake:chat=true,script="+script) }
	enginetest.Run(t, enginetest.Target{
		Factory: distantly(t, "fake:chat=true"),
		Request: engine.LoadRequest{
			Paths: []string{"model"}, ContextLimit: 256, Sessions: 4, BatchTokens: 64, MicroBatch: 64, Threads: 1, CacheType: "f32",
		},
		EndOfGeneration: &end,
		Churn:           1000, // each is a stream
		Without: map[enginetest.Ability]string{
			enginetest.BadFiles:      "the fake behind the worker reads no files",
			enginetest.TellingMemory: "Capability has no field for what the shard takes of a worker's memory",
			enginetest.AnyBytes:      "TokenizeRequest.text is a string of proto3, which carries UTF-8 alone",
		},
		Skip: map[enginetest.Category]string{
			enginetest.Copying: "the wire has no copy between open sessions: a worker copies kept prefixes, at Open alone",
		},
		Slow: scripted("step slow 5ms"), Lost: scripted("step 1 lost"), NaN: scripted("step 1 nan"),
	})
}
