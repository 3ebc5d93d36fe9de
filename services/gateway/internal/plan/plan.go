// Package plan is `dgr plan`: which layers of a model go to which machine, from the memory of the machines and the header
// of the model, before anything is started. What a shard takes is the business of libs/native/footprint.
//
// What must stay out: starting workers, and measured speed.
package plan

import (
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/footprint"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Options say what the workers shall be able to do.
type Options struct {
	footprint.Options
	Fewest bool // leave machines unused where the others suffice
}

// Plan is which layers go where. It is also the form of --json; sizes are bytes.
type Plan struct {
	Model        string   `json:"model"`
	Architecture string   `json:"architecture"`
	Layers       uint32   `json:"layers"`
	Context      uint32   `json:"context"`
	Sessions     uint32   `json:"sessions"`
	CacheType    string   `json:"cache_type"`
	Workers      []Worker `json:"workers"` // in the order of the route
	Unused       []int    `json:"unused"`  // machines without layers, from 1
	Route        string   `json:"route"`   // for `dgr run --route`
}

// layerRange names a shard as the rest of the system does.
func layerRange(first, end int) engine.LayerRange {
	return engine.LayerRange{First: uint32(first), End: uint32(end)}
}

// Worker is one shard on one machine.
type Worker struct {
	Machine int    `json:"machine"` // from 1, in the order given
	First   uint32 `json:"first"`
	End     uint32 `json:"end"` // one past the last layer
	Memory  uint64 `json:"memory"`
	footprint.Need
	Used    uint64   `json:"used"`
	Free    uint64   `json:"free"`
	Address string   `json:"address"`
	Command []string `json:"command"`
}

// Make plans a model for machines with the given memory, in bytes, in the order of the route.
//
// Errors: *Shortage where it does not fit; UNSUPPORTED_ARCHITECTURE where the model cannot be cut and no machine holds the
// whole of it.
func Make(m *gguf.Model, memory []uint64, o Options) (*Plan, error) {
	if m.IsShard() {
		return nil, engine.Errorf(engine.ShardMismatch, "%s is a shard; plan from the whole model, whose shards it knows the weight of", m.Paths[0])
	}
	c := footprint.NewCosts(m, o.Options)
	var spans []span
	if gguf.Adapted(m.Architecture()) {
		spans = divide(c, memory, o.Fewest)
	} else {
		spans = whole(c, memory)
		if spans == nil && len(memory) > 1 {
			return nil, engine.Errorf(engine.UnsupportedArchitecture,
				"models of the architecture %q cannot be cut yet, and none of the machines has the %s that the whole of %s needs: use a larger machine, or a model of one of %s",
				m.Architecture(), humanize.IBytes(c.Need(0, c.Layers()).Total()), m.Paths[0], strings.Join(gguf.AdaptedArchitectures(), ", "))
		}
	}
	if spans == nil {
		return nil, shortage(m, memory, o)
	}
	p := &Plan{Model: m.Paths[0], Architecture: m.Architecture(), Layers: m.NLayer(), Context: o.Context, Sessions: o.Sessions, CacheType: o.CacheType, Unused: []int{}}
	for i, s := range spans {
		if s.first == s.end {
			p.Unused = append(p.Unused, i+1)
			continue
		}
		n := c.Need(s.first, s.end)
		r := layerRange(s.first, s.end)
		p.Workers = append(p.Workers, Worker{Machine: i + 1, First: r.First, End: r.End, Memory: memory[i], Need: n, Used: n.Total(), Free: memory[i] - n.Total()})
	}
	return p, nil
}

// whole puts all layers on the machine that they leave the most room, or returns nil.
func whole(c costs, memory []uint64) []span {
	i := slices.Index(memory, slices.Max(memory))
	if c.Need(0, c.Layers()).Total() > memory[i] {
		return nil
	}
	spans := make([]span, len(memory))
	spans[i] = span{0, c.Layers()}
	for k := i + 1; k < len(spans); k++ {
		spans[k] = span{c.Layers(), c.Layers()}
	}
	return spans
}
