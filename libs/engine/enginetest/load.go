package enginetest

import (
	"sync/atomic"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (s suite) loadCases() []testCase {
	cases := []testCase{
		{"progress_is_in_order", s.progressInOrder},
		{"whole_model", func(t *testing.T) {
			info := s.load(t, engine.LayerRange{}).info
			s.checkInfo(t, info, engine.LayerRange{First: 0, End: info.NLayer})
		}},
		{"end_0_is_the_last_layer", func(t *testing.T) {
			whole := s.load(t, engine.LayerRange{}).info
			cut := s.cuts(whole.NLayer)[0]
			s.checkInfo(t, s.load(t, engine.LayerRange{First: cut}).info, engine.LayerRange{First: cut, End: whole.NLayer})
		}},
		{"head_middle_and_tail_agree_on_the_boundary", func(t *testing.T) {
			whole := s.load(t, engine.LayerRange{}).info
			c := s.loadChain(t, whole.NLayer, s.cuts(whole.NLayer)...)
			for i, sh := range c {
				s.checkInfo(t, sh.info, sh.info.Layers)
				if i > 0 && *c[i-1].info.BoundaryOut != *sh.info.BoundaryIn {
					t.Errorf("layers %s give %+v and layers %s take %+v", c[i-1].info.Layers, *c[i-1].info.BoundaryOut, sh.info.Layers, *sh.info.BoundaryIn)
				}
			}
		}},
		{"every_shard_says_what_its_weights_take", s.needs(TellingMemory, func(t *testing.T) {
			n := s.load(t, engine.LayerRange{}).info.NLayer
			for _, sh := range s.loadChain(t, n, s.cuts(n)...) {
				if sh.info.Memory.Weights == 0 {
					t.Errorf("layers %s take no memory for their weights", sh.info.Layers)
				}
			}
		})},
		{"bad_files_are_refused", s.needs(BadFiles, s.badLoads)},
		{"layers_that_are_not_there", func(t *testing.T) {
			n := s.load(t, engine.LayerRange{}).info.NLayer
			for _, layers := range []engine.LayerRange{{First: 0, End: n + 1}, {First: n, End: n}, {First: n, End: 0}, {First: 1, End: 1}, {First: 2, End: 1}} {
				_, err := fresh(t, s.Factory).Load(t.Context(), s.request(layers), nil)
				wantCode(t, err, engine.ShardMismatch)
			}
		}},
	}
	for name, spoil := range map[string]func(*engine.LoadRequest){
		"context_limit_0":            func(r *engine.LoadRequest) { r.ContextLimit = 0 },
		"sessions_0":                 func(r *engine.LoadRequest) { r.Sessions = 0 },
		"sessions_4097":              func(r *engine.LoadRequest) { r.Sessions = 4097 },
		"batch_tokens_0":             func(r *engine.LoadRequest) { r.BatchTokens, r.MicroBatch = 0, 0 },
		"micro_batch_0":              func(r *engine.LoadRequest) { r.MicroBatch = 0 },
		"micro_batch_over_the_batch": func(r *engine.LoadRequest) { r.MicroBatch = r.BatchTokens + 1 },
		"threads_0":                  func(r *engine.LoadRequest) { r.Threads = 0 },
		"cache_type_unknown":         func(r *engine.LoadRequest) { r.CacheType = "f17" },
		"cache_type_empty":           func(r *engine.LoadRequest) { r.CacheType = "" },
	} {
		cases = append(cases, testCase{name, func(t *testing.T) {
			request := s.request(engine.LayerRange{})
			spoil(&request)
			_, err := fresh(t, s.Factory).Load(t.Context(), request, nil)
			wantCode(t, err, engine.Malformed)
		}})
	}
	return cases
}

func (s suite) badLoads(t *testing.T) {
	for _, bad := range s.BadLoads {
		t.Run(bad.Name, func(t *testing.T) {
			sh := fresh(t, s.Factory)
			_, err := sh.Load(t.Context(), bad.Request, nil)
			wantCode(t, err, bad.Code)
			sh.answersAlways(t, false)
			sh.loadAgain(t, s)
		})
	}
}

func (s suite) progressInOrder(t *testing.T) {
	var seen []engine.LoadProgress
	var inside, over atomic.Bool
	sh := fresh(t, s.Factory)
	_, err := sh.Load(t.Context(), s.request(engine.LayerRange{}), func(p engine.LoadProgress) {
		if over.Load() || inside.Swap(true) {
			t.Error("progress came from another goroutine than that of Load")
		}
		seen = append(seen, p)
		inside.Store(false)
	})
	over.Store(true)
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) == 0 || seen[len(seen)-1].Phase != engine.LoadReady {
		t.Fatalf("the last progress is not LoadReady: %+v", seen)
	}
	for i, p := range seen {
		if p.Phase < engine.LoadValidating || p.Phase > engine.LoadReady {
			t.Errorf("phase %d does not exist", p.Phase)
		}
		if p.Total > 0 && p.Done > p.Total {
			t.Errorf("%d of %d bytes are done", p.Done, p.Total)
		}
		if i == 0 {
			continue
		}
		if last := seen[i-1]; p.Phase < last.Phase || p.Phase == last.Phase && p.Done < last.Done {
			t.Errorf("%+v comes after %+v", p, last)
		}
	}
}

// checkInfo checks what a ShardInfo promises by itself and against the request.
func (s suite) checkInfo(t *testing.T, info engine.ShardInfo, layers engine.LayerRange) {
	t.Helper()
	if info.Layers != layers {
		t.Errorf("layers are %s, want %s", info.Layers, layers)
	}
	if info.Architecture == "" || info.Vocab == 0 {
		t.Errorf("architecture %q, vocabulary %d", info.Architecture, info.Vocab)
	}
	if (info.BoundaryIn == nil) != info.Head() || (info.BoundaryOut == nil) != info.Tail() {
		t.Errorf("layers %s of %d take %v and give %v", info.Layers, info.NLayer, info.BoundaryIn, info.BoundaryOut)
	}
	for _, layout := range []*engine.BoundaryLayout{info.BoundaryIn, info.BoundaryOut} {
		if layout != nil && (layout.Width == 0 || layout.Name == "") {
			t.Errorf("layout %+v", *layout)
		}
	}
	n, r := info.Numerics, s.Request
	if info.ContextLimit != r.ContextLimit || n.Threads != r.Threads || n.CacheType != r.CacheType || n.MicroBatch != r.MicroBatch {
		t.Errorf("asked for %+v, got %+v", r, info)
	}
	if n.Backend == "" || n.InstructionSet == "" {
		t.Errorf("numerics %+v do not name what computes", n)
	}
	if c := info.Cache; c.Truncate < engine.TruncateAny || c.Truncate > engine.TruncateNone || c.Copy < engine.CopyPrefix || c.Copy > engine.CopyWhole {
		t.Errorf("cache ability %+v", c)
	}
}
