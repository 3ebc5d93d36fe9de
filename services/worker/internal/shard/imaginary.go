package shard

import (
	"context"
	"sync"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

// Imaginary is the Source of the fake engine's models, named as fake.Parse reads. The zero value is ready. A name keeps
// its factory, so that the faults of its script count over restarts.
type Imaginary struct {
	mu     sync.Mutex
	models map[string]imaginary
}

// Open reads the name.
func (i *Imaginary) Open(ctx context.Context, name string) (Model, error) {
	if ctx.Err() != nil {
		return nil, cancelled()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if m, ok := i.models[name]; ok {
		return m, nil
	}
	options, err := fake.Parse(name)
	if err != nil {
		return nil, engine.Errorf(engine.BadModelFile, "%w", err)
	}
	if i.models == nil {
		i.models = map[string]imaginary{}
	}
	i.models[name] = imaginary{options, fake.Factory(options)}
	return i.models[name], nil
}

// imaginary is one model of the fake.
type imaginary struct {
	options fake.Options
	engines engine.Factory
}

func (m imaginary) Paths() []string { return nil }
func (m imaginary) Layers() uint32  { return m.options.NLayer }

// Held is every layer.
func (m imaginary) Held() engine.LayerRange { return engine.LayerRange{End: m.options.NLayer} }

func (m imaginary) Identify(context.Context, engine.LayerRange, func(done, total uint64)) ([32]byte, workerpb.Verified, error) {
	return m.options.Fingerprint(), workerpb.Verified_VERIFIED_ALL, nil
}

func (m imaginary) NewEngine() (engine.ShardEngine, engine.TextEngine, error) { return m.engines() }
