package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Load takes a layer range; the paths are not looked at.
func (e *fakeEngine) Load(ctx context.Context, req engine.LoadRequest, progress func(engine.LoadProgress)) (engine.ShardInfo, error) {
	e.mu.Lock()
	if err := e.refusal(stateNew); err != nil {
		e.mu.Unlock()
		return engine.ShardInfo{}, err
	}
	e.state = stateLoading
	e.mu.Unlock()
	e.turn <- struct{}{} // a Close waits until the load is at rest
	defer e.leave()

	m, err := e.load(ctx, req, progress)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.state == stateClosed:
		return engine.ShardInfo{}, engine.Errorf(engine.Cancelled, "the fake engine was closed while it loaded")
	case e.state == stateLost:
		return engine.ShardInfo{}, err
	case err != nil:
		e.state = stateNew
		return engine.ShardInfo{}, err
	}
	e.state, e.model, e.request = stateLoaded, m, req
	e.request.Paths = nil
	return e.info(), nil
}

func (e *fakeEngine) load(ctx context.Context, req engine.LoadRequest, progress func(engine.LoadProgress)) (*model, error) {
	report := func(phase engine.LoadPhase, done, total uint64) {
		if progress != nil {
			progress(engine.LoadProgress{Phase: phase, Done: done, Total: total})
		}
	}
	report(engine.LoadValidating, 0, 0)
	layers := req.Layers
	if layers.End == 0 {
		layers.End = e.options.NLayer
	}
	if layers.First >= layers.End || layers.End > e.options.NLayer {
		return nil, engine.Errorf(engine.ShardMismatch, "the model has no layers %s; it has %d", layers, e.options.NLayer)
	}
	if err := checkLoad(req); err != nil {
		return nil, engine.Errorf(engine.Malformed, "the load's options are illegal: %w", err)
	}
	m := &model{options: e.options, layers: layers}
	total := 8 * uint64(m.depth())
	report(engine.LoadReading, 0, total)
	if err := e.endure(ctx, OpLoad); err != nil {
		return nil, asCancelled(err)
	}
	report(engine.LoadReading, total, total)
	report(engine.LoadProbing, 0, 0)
	if ctx.Err() != nil {
		return nil, asCancelled(interrupted(ctx))
	}
	report(engine.LoadReady, total, total)
	return m, nil
}

// asCancelled makes CANCELLED of the end of a context, however it ended: Load knows no other word for it.
func asCancelled(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return engine.Errorf(engine.Cancelled, "the load was stopped: %w", err)
	}
	return err
}

func checkLoad(req engine.LoadRequest) error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(req.ContextLimit >= 1, "the context limit is 0; it must be 1 or more")
	check(req.Sessions >= 1 && req.Sessions <= 4096, "sessions is %d; it must be 1 to 4096", req.Sessions)
	check(req.BatchTokens >= 1, "batch tokens is 0; it must be 1 or more")
	check(req.MicroBatch >= 1 && req.MicroBatch <= req.BatchTokens, "the micro-batch is %d; it must be 1 to batch tokens (%d)", req.MicroBatch, req.BatchTokens)
	check(req.Threads >= 1, "threads is 0; it must be 1 or more")
	check(slices.Contains([]string{"f32", "f16", "q8_0", "q4_0"}, req.CacheType), "the cache type is %q; it must be f32, f16, q8_0 or q4_0", req.CacheType)
	return errors.Join(faults...)
}
