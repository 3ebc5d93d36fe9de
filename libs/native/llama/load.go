//go:build llama && cgo

package llama

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/footprint"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Load reads a shard.
func (e *shardEngine) Load(ctx context.Context, req engine.LoadRequest, progress func(engine.LoadProgress)) (engine.ShardInfo, error) {
	e.mu.Lock()
	if err := e.refusal(stateNew); err != nil {
		e.mu.Unlock()
		return engine.ShardInfo{}, err
	}
	e.state = stateLoading
	e.mu.Unlock()
	e.turn <- struct{}{} // a Close waits until the load is at rest
	defer e.leave()

	info, err := e.load(ctx, req, &reporter{call: progress})
	if err = e.settle(info, err); err != nil {
		e.unload()
		return engine.ShardInfo{}, err
	}
	return info, nil
}

// settle decides the state after a load.
func (e *shardEngine) settle(info engine.ShardInfo, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.state != stateLoading:
		if err == nil {
			err = engine.Errorf(engine.Cancelled, "the engine was closed while it loaded")
		}
	case err != nil:
		e.state = stateNew
		e.text.detach(nil)
	default:
		e.state, e.info = stateLoaded, info
		e.text.attach(e.native)
	}
	return err
}

// load does the work of Load. The caller holds the turn.
func (e *shardEngine) load(ctx context.Context, req engine.LoadRequest, r *reporter) (engine.ShardInfo, error) {
	var none engine.ShardInfo
	r.report(engine.LoadValidating, 0, 0)
	if err := checkRequest(req); err != nil {
		return none, engine.Errorf(engine.Malformed, "the load's options are illegal: %w", err)
	}
	model, err := openModel(req)
	if err != nil {
		return none, err
	}
	if ctx.Err() != nil {
		return none, stopped(ctx)
	}
	total := model.OwnBytes(req.Layers)
	if err := checkMemory(model, req, devices()[0]); err != nil {
		return none, err
	}
	r.report(engine.LoadReading, 0, total)
	n, err := loadNative(model.Paths, req, req.Sessions+1, func(stage int, done, of uint64) bool {
		switch {
		case stage == stagePaging && of > 0:
			r.report(engine.LoadReading, scale(done, of, total), total)
		case !req.MemoryMap: // else nothing is read before the pages are
			r.report(engine.LoadReading, scale(done, of, total), total)
		}
		return ctx.Err() == nil && e.check(stateLoading) == nil
	})
	if err != nil {
		if engine.CodeOf(err) == engine.Cancelled {
			return none, stopped(ctx)
		}
		return none, err
	}
	e.native, e.request = n, req
	e.request.Paths = nil
	e.slots.reset(req.Sessions)
	e.drainLog(ctx)

	r.report(engine.LoadProbing, 0, 0)
	if err := e.probe(ctx); err != nil {
		return none, notLoaded(ctx, err)
	}
	r.report(engine.LoadReady, total, total)
	return e.describe(model), nil
}

// scale is done of of (not 0, and done ≤ of), in units of total.
func scale(done, of, total uint64) uint64 {
	hi, lo := bits.Mul64(done, total)
	scaled, _ := bits.Div64(hi, lo, of)
	return scaled
}

// stopped is the error of a load that was stopped: by the end of ctx, or by Close.
func stopped(ctx context.Context) error {
	if ctx.Err() == nil {
		return engine.Errorf(engine.Cancelled, "the engine was closed while it loaded")
	}
	return engine.Errorf(engine.Cancelled, "the load was stopped: %w", context.Cause(ctx))
}

// notLoaded is what a failed probe means for a load.
func notLoaded(ctx context.Context, err error) error {
	switch engine.CodeOf(err) {
	case engine.Cancelled, engine.DeadlineExceeded:
		return stopped(ctx)
	case engine.NumericFault:
		return engine.Errorf(engine.BadModelFile, "a first step through the loaded layers gave NaN or Inf: the weights are broken; get the file again")
	}
	return err
}

// openModel checks the model's files in Go before a byte of them goes to native code.
func openModel(req engine.LoadRequest) (*gguf.Model, error) {
	model, err := gguf.Open(req.Paths[0])
	if err != nil {
		return nil, err
	}
	if len(req.Paths) > 1 && len(req.Paths) != len(model.Paths) {
		return nil, engine.Errorf(engine.Malformed, "%d paths are given and %s has %d parts; name all parts in order, or one", len(req.Paths), req.Paths[0], len(model.Paths))
	}
	layers, held := req.Layers, model.Held()
	if layers.End == 0 {
		layers.End = model.NLayer()
	}
	if layers.First >= layers.End || layers.End > model.NLayer() {
		return nil, engine.Errorf(engine.ShardMismatch, "the model has no layers %s; it has %d", layers, model.NLayer())
	}
	if layers.First < held.First || layers.End > held.End {
		return nil, engine.Errorf(engine.ShardMismatch, "%s is a shard that holds the layers %s, not %s", model.Paths[0], held, layers)
	}
	return model, nil
}

// checkMemory refuses what would not fit, and says by how much: the system grants memory that it does not have, and kills
// the process that uses it.
func checkMemory(m *gguf.Model, req engine.LoadRequest, d engine.Device) error {
	layers := req.Layers
	if layers.End == 0 {
		layers.End = m.NLayer()
	}
	need := footprint.NewCosts(m, footprint.Options{
		Context: req.ContextLimit, Sessions: req.Sessions, CacheType: req.CacheType, MicroBatch: req.MicroBatch, FlashAttention: req.FlashAttention,
	}).Need(int(layers.First), int(layers.End))
	const mib = 1 << 20
	told := fmt.Sprintf("layers %s take %d MiB (weights %d, caches of %d sessions of %d tokens %d, scratch %d)", layers, need.Total()/mib,
		need.Weights/mib, req.Sessions, req.ContextLimit, need.Cache/mib, need.Overhead/mib)
	switch {
	case need.Total() > d.MemoryTotal:
		return engine.Errorf(engine.EngineOutOfMemory, "%s and the machine has %d MiB; take fewer layers, fewer sessions or a shorter context", told, d.MemoryTotal/mib)
	case !req.MemoryMap && need.Total() > d.MemoryFree:
		return engine.Errorf(engine.EngineOutOfMemory, "%s and %d MiB are free; take fewer layers, fewer sessions or a shorter context, or map the file", told, d.MemoryFree/mib)
	case need.Cache+need.Overhead > d.MemoryFree: // mapped weights can come and go
		return engine.Errorf(engine.EngineOutOfMemory, "%s and %d MiB are free, less than caches and scratch; take fewer sessions or a shorter context", told, d.MemoryFree/mib)
	}
	return nil
}

// checkRequest finds all that is wrong with the options.
func checkRequest(req engine.LoadRequest) error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	_, known := cacheTypes[req.CacheType]
	check(len(req.Paths) >= 1, "there is no path; name the model's file")
	check(req.ContextLimit >= 1, "the context limit is 0; it must be 1 or more")
	check(req.Sessions >= 1 && req.Sessions <= 255, "sessions is %d; it must be 1 to 255", req.Sessions)
	check(req.BatchTokens >= 1, "batch tokens is 0; it must be 1 or more")
	check(req.MicroBatch >= 1 && req.MicroBatch <= req.BatchTokens, "the micro-batch is %d; it must be 1 to batch tokens (%d)", req.MicroBatch, req.BatchTokens)
	check(req.Threads >= 1, "threads is 0; it must be 1 or more")
	check(known, "the cache type is %q; it must be f32, f16, q8_0 or q4_0", req.CacheType)
	check(!footprint.Quantised(req.CacheType) || req.FlashAttention, "a %s cache needs flash attention; turn it on", req.CacheType)
	return errors.Join(faults...)
}

// describe is the loaded shard.
func (e *shardEngine) describe(model *gguf.Model) engine.ShardInfo {
	n := e.native.info
	info := engine.ShardInfo{
		Architecture: n.architecture, Layers: n.layers, NLayer: n.nLayer, Vocab: n.vocab,
		ContextLimit: e.request.ContextLimit, TrainContext: model.TrainContext(),
		Cache: engine.CacheAbility{Truncate: engine.TruncateAny, Copy: engine.CopyPrefix},
		Numerics: engine.Numerics{
			Backend: e.library.backend, InstructionSet: e.library.instructionSet, Threads: e.request.Threads,
			FlashAttention: e.request.FlashAttention, CacheType: e.request.CacheType, MicroBatch: e.request.MicroBatch,
			Deterministic: e.request.Sessions == 1, Build: e.library.build,
		},
		Memory: n.memory,
	}
	if n.window > 0 {
		info.Cache = engine.CacheAbility{Truncate: engine.TruncateWindow, Copy: engine.CopyWhole, Marks: maxMarks}
	}
	if n.boundaryIn > 0 {
		info.BoundaryIn = &engine.BoundaryLayout{Width: n.boundaryIn, Name: "hidden"}
	}
	if n.boundaryOut > 0 {
		info.BoundaryOut = &engine.BoundaryLayout{Width: n.boundaryOut, Name: "hidden"}
	}
	return info
}

// drainLog passes on what llama.cpp said. The caller holds the turn.
func (e *shardEngine) drainLog(ctx context.Context) {
	if !e.log.Enabled(ctx, slog.LevelDebug) {
		return // the shim keeps the last 64 KiB
	}
	buffer := make([]byte, 64*1024)
	for _, line := range bytes.Split(buffer[:e.native.takeLog(buffer)], []byte("\n")) {
		if len(line) > 2 {
			e.log.DebugContext(ctx, "llama.cpp", "level", string(line[:1]), "line", string(line[2:]))
		}
	}
}

// reporter passes progress on: phases in order, Done never falling.
type reporter struct {
	call func(engine.LoadProgress)
	last engine.LoadProgress
}

func (r *reporter) report(phase engine.LoadPhase, done, total uint64) {
	if phase == r.last.Phase {
		done = max(done, r.last.Done)
	}
	next := engine.LoadProgress{Phase: phase, Done: done, Total: total}
	if r.call == nil || next == r.last {
		return
	}
	r.last = next
	r.call(next)
}
