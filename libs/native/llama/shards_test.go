//go:build llama && cgo

package llama

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

// runner is a whole model or a chain.
type runner interface {
	run(t testing.TB, steps ...engine.Step) []engine.StepResult
}

// scenario runs the same work of two sessions on whatever runner and returns all it gives.
func scenario(t *testing.T, r runner, vocab uint32) (out []engine.StepResult) {
	t.Helper()
	var at [3]engine.Pos
	step := func(session byte, seed, n int, want engine.Want) engine.Step {
		s := engine.Step{Session: id(session), Start: at[session], Tokens: tokens(seed, n, vocab), Want: want}
		at[session] += engine.Pos(n)
		return s
	}
	batch := func(steps ...engine.Step) { out = append(out, r.run(t, steps...)...) }
	batch(step(1, 1, 64, engine.WantLogitsAll))
	for i := range 4 {
		batch(step(1, 10+i, 1, engine.WantLogitsLast))
	}
	batch(step(2, 2, 40, engine.WantLogitsLast), step(1, 20, 1, engine.WantLogitsLast))
	for i := range 3 {
		batch(step(1, 30+i, 1, engine.WantLogitsLast), step(2, 40+i, 1, engine.WantLogitsLast))
	}
	last := step(2, 50, 5, engine.WantSample)
	last.Sampling = &engine.Sampling{Seed: 7, Temperature: 0.8, TopP: 0.95, TopK: 40, RepeatPenalty: 1.1, PenaltyWindow: 64, WantLogprob: true, Logprobs: 3}
	batch(last)
	return out
}

// TestChainIsWhole compares chains with the whole model through the engine: logits, samples, and the boundary of a chain of
// two with that of one shard of both.
func TestChainIsWhole(t *testing.T) {
	for _, arch := range tiny.Archs() {
		for _, tied := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/tied=%t", arch, tied), func(t *testing.T) {
				model := spec(t, arch)
				model.Tied = tied
				req := request(writeModel(t, model))
				whole := load(t, req, 0, 0)
				whole.open(t, 2, 128)
				want := scenario(t, whole, whole.info.Vocab)
				n := whole.info.NLayer
				for _, cuts := range [][]uint32{{0, 1, n}, {0, n / 2, n}, {0, n - 1, n}, {0, 1, n - 1, n}, {0, 1, 2, 3, n}} {
					c := loadChain(t, req, cuts...)
					c.open(t, 2, 128)
					compareResults(t, fmt.Sprint(cuts), scenario(t, c, whole.info.Vocab), want)
				}
				head := load(t, req, 0, n-1)
				head.open(t, 2, 128)
				parts := loadChain(t, req, 0, 1, n-1)
				parts.open(t, 2, 128)
				step := engine.Step{Session: id(1), Tokens: tokens(3, 64, n)}
				one := head.run(t, step)[0].Boundary
				sameBits(t, "boundary", parts.run(t, step)[0].Boundary, one)
				if one.N != 64 || one.Width != uint32(model.Embd) {
					t.Errorf("the boundary is %d × %d", one.N, one.Width)
				}
			})
		}
	}
}

func compareResults(t *testing.T, what string, got, want []engine.StepResult) {
	t.Helper()
	for i := range want {
		sameBits(t, fmt.Sprintf("cuts %s, result %d", what, i), got[i].Logits, want[i].Logits)
		if got[i].Cache.Length != want[i].Cache.Length {
			t.Errorf("cuts %s, result %d: %d tokens, want %d", what, i, got[i].Cache.Length, want[i].Cache.Length)
		}
		a, b := got[i].Sample, want[i].Sample
		if (a == nil) != (b == nil) || a != nil && (a.Token != b.Token || a.Logprob != b.Logprob || len(a.Top) != len(b.Top)) {
			t.Errorf("cuts %s, result %d: sample %+v, want %+v", what, i, a, b)
		}
	}
}

// TestCacheTypes: chains are exact with every cache, without flash attention, and on several threads.
func TestCacheTypes(t *testing.T) {
	path := writeModel(t, spec(t, "qwen3"))
	for _, c := range []struct {
		cache   string
		flash   bool
		mmap    bool
		threads uint32
	}{{"f32", false, true, 1}, {"f32", true, false, 1}, {"f16", false, false, 1}, {"q8_0", true, true, 1}, {"q4_0", true, true, 1}, {"f16", true, true, 2}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			req := request(path)
			req.CacheType, req.FlashAttention, req.MemoryMap, req.Threads = c.cache, c.flash, c.mmap, c.threads
			whole := load(t, req, 0, 0)
			whole.open(t, 2, 128)
			parts := loadChain(t, req, 0, 2, 3, 4)
			parts.open(t, 2, 128)
			compareResults(t, "0 2 3 4", scenario(t, parts, whole.info.Vocab), scenario(t, whole, whole.info.Vocab))
		})
	}
}

// TestParts: a model in several files gives what it gives in one, from any part's path or from all.
func TestParts(t *testing.T) {
	model := spec(t, "llama")
	whole := load(t, request(writeModel(t, model)), 0, 0)
	whole.open(t, 2, 128)
	want := scenario(t, whole, whole.info.Vocab)
	for _, headerFirst := range []bool{false, true} {
		paths, err := tiny.WriteWith(t.Context(), filepath.Join(t.TempDir(), "parts.gguf"), model, tiny.Options{Parts: 3, HeaderFirst: headerFirst})
		if err != nil {
			t.Fatal(err)
		}
		for _, given := range [][]string{paths, paths[1:2]} {
			c := loadChain(t, request(given...), 0, 1, 3, 4)
			c.open(t, 2, 128)
			compareResults(t, "0 1 3 4 of parts", scenario(t, c, whole.info.Vocab), want)
		}
	}
	e, _, _ := New()
	defer e.Close()
	paths, err := tiny.WriteWith(t.Context(), filepath.Join(t.TempDir(), "parts.gguf"), model, tiny.Options{Parts: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Load(t.Context(), request(paths[:2]...), nil)
	wantCode(t, err, engine.Malformed)
}

// TestOwnBytes: a shard has exactly its own tensors, takes them from the mapped file, and holds no pages of others.
func TestOwnBytes(t *testing.T) {
	const page = 4096
	for _, tied := range []bool{true, false} {
		model := spec(t, "llama")
		model.Layers, model.Tied, model.Vocab = 6, tied, 2000
		path := writeModel(t, model)
		file, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []engine.LayerRange{{First: 0, End: 6}, {First: 0, End: 1}, {First: 2, End: 4}, {First: 5, End: 6}} {
			l := load(t, request(path), r.First, r.End)
			count, own := 0, file.Own(r)
			for _, tensor := range file.Tensors {
				if own(tensor) {
					count++
				}
			}
			want := file.OwnBytes(r)
			if l.info.Memory.Weights != want || l.info.Memory.Cache == 0 || l.info.Memory.Compute == 0 {
				t.Errorf("tied %t, layers %s: memory %+v, own tensors have %d bytes", tied, r, l.info.Memory, want)
			}
			m, ok := l.Memory(t.Context())
			if !ok {
				t.Fatal("no memory of a loaded shard")
			}
			if m.FileMapped == 0 {
				t.Skip("this system does not tell what is mapped")
			}
			slack := uint64(2 * page * count) // a tensor may begin and end inside a page
			if m.WeightsMapped != want || m.FileResident < want || m.FileResident > want+slack {
				t.Errorf("tied %t, layers %s: %+v, own tensors have %d bytes", tied, r, m, want)
			}
			if r != (engine.LayerRange{First: 0, End: 6}) && m.FileResident > file.Bytes()*2/3 {
				t.Errorf("tied %t, layers %s: %d of the model's %d bytes are present", tied, r, m.FileResident, file.Bytes())
			}
			// Running does not bring the others in.
			l.open(t, 1, 64)
			step := engine.Step{Session: id(1), Tokens: tokens(1, 32, 2000)}
			if r.First > 0 {
				step.Boundary = engine.Rows{N: 32, Width: uint32(model.Embd), Data: make([]byte, 4*32*model.Embd)}
			}
			l.run(t, step)
			if after, _ := l.Memory(t.Context()); after.FileResident > want+slack {
				t.Errorf("tied %t, layers %s: after a step %d bytes are present, own tensors have %d", tied, r, after.FileResident, want)
			}
		}
		read := request(path)
		read.MemoryMap = false
		l := load(t, read, 2, 4)
		if m, _ := l.Memory(t.Context()); m.FileMapped != 0 || l.info.Memory.Weights != file.OwnBytes(engine.LayerRange{First: 2, End: 4}) {
			t.Errorf("read, not mapped: %+v, %+v", m, l.info.Memory)
		}
	}
}

// TestShardFilesAreTheirPartOfTheWhole loads each shard from a file of its own.
func TestShardFilesAreTheirPartOfTheWhole(t *testing.T) {
	for _, arch := range tiny.Archs() {
		for _, tied := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/tied=%t", arch, tied), func(t *testing.T) {
				model := spec(t, arch)
				model.Tied = tied
				req := request(writeModel(t, model))
				whole := load(t, req, 0, 0)
				whole.open(t, 2, 128)
				want := scenario(t, whole, whole.info.Vocab)
				m, err := gguf.Open(req.Paths[0])
				if err != nil {
					t.Fatal(err)
				}
				manifest, err := gguf.HashModel(t.Context(), m, nil)
				if err != nil {
					t.Fatal(err)
				}
				var c chain
				cuts := []uint32{0, 1, 3, whole.info.NLayer}
				for i := range len(cuts) - 1 {
					layers := engine.LayerRange{First: cuts[i], End: cuts[i+1]}
					path := filepath.Join(t.TempDir(), "shard.gguf")
					if _, err := m.WriteShard(t.Context(), manifest, gguf.Shard{Path: path, Layers: layers}, nil); err != nil {
						t.Fatal(err)
					}
					for _, mapped := range []bool{true, false} {
						req := request(path)
						req.MemoryMap = mapped
						l := load(t, req, layers.First, layers.End)
						if mapped {
							c = append(c, l)
						}
						if got := l.info.Memory.Weights; got != m.OwnBytes(layers) {
							t.Errorf("layers %s weigh %d bytes, their tensors %d", layers, got, m.OwnBytes(layers))
						}
					}
					other := request(path)
					other.Layers = engine.LayerRange{End: whole.info.NLayer}
					e, _, err := New()
					if err != nil {
						t.Fatal(err)
					}
					_, err = e.Load(t.Context(), other, nil)
					wantCode(t, err, engine.ShardMismatch)
					_ = e.Close()
				}
				c.open(t, 2, 128)
				compareResults(t, "shards from files of their own", scenario(t, c, whole.info.Vocab), want)
			})
		}
	}
}
