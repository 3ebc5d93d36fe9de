//go:build llama && cgo

package llama

import (
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// A shard that does not fit is refused by numbers, before native code is asked.
func TestMemoryIsPlanned(t *testing.T) {
	req := request(writeModel(t, spec(t, "llama")))
	m, err := gguf.Open(req.Paths[0])
	if err != nil {
		t.Fatal(err)
	}
	const gib = 1 << 30
	long := req
	long.ContextLimit, long.Sessions = 1<<20, 100
	whole := long
	whole.MemoryMap = false
	for name, c := range map[string]struct {
		req  engine.LoadRequest
		d    engine.Device
		says string
	}{
		"fits":                  {req, engine.Device{MemoryTotal: gib, MemoryFree: gib}, ""},
		"more than the machine": {long, engine.Device{MemoryTotal: gib, MemoryFree: gib}, "the machine has 1024 MiB"},
		"more than is free":     {long, engine.Device{MemoryTotal: 1 << 50, MemoryFree: gib}, "less than caches and scratch"},
		"weights in memory":     {whole, engine.Device{MemoryTotal: 1 << 50, MemoryFree: gib}, "or map the file"},
	} {
		err := checkMemory(m, c.req, c.d)
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantCode(t, err, engine.EngineOutOfMemory)
		for _, words := range []string{c.says, "caches of 100 sessions of 1048576 tokens", "scratch"} {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %q does not say %q", name, err, words)
			}
		}
	}
}
