package remote

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Load makes the worker load layers of a model of its store, of which Paths is the name, and takes them. The worker must hold
// nothing; how it computes must be what the request asks for.
func (e *Engine) Load(ctx context.Context, r engine.LoadRequest, progress func(engine.LoadProgress)) (engine.ShardInfo, error) {
	if err := e.allowed(fresh); err != nil {
		return engine.ShardInfo{}, err
	}
	if err := e.checkRequest(r); err != nil {
		return engine.ShardInfo{}, err
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	m := &workerpb.LoadShardRequest{Model: r.Paths[0], First: proto.Uint32(r.Layers.First)}
	if r.Layers.End != 0 {
		m.End = proto.Uint32(r.Layers.End)
	}
	if ctx.Err() != nil {
		return engine.ShardInfo{}, ended(ctx, "LoadShard")
	}
	_, err := e.client.Load(ctx, m, func(p *workerpb.LoadProgress) {
		if progress != nil {
			progress(engine.LoadProgress{Phase: engine.LoadPhase(p.GetPhase()), Done: p.GetDone(), Total: p.GetTotal()})
		}
	})
	var info engine.ShardInfo
	switch {
	case ctx.Err() != nil:
		err = e.unload(ctx, ended(ctx, "LoadShard"))
	case err != nil:
		err = refused(err)
	default:
		if info, err = e.settle(ctx, true, func(info engine.ShardInfo) error { return differs(r, info) }); err != nil {
			err = e.unload(ctx, err)
		}
	}
	if err != nil {
		return engine.ShardInfo{}, err
	}
	return info, nil
}

// Attach takes the shard that the worker holds, as it is; Close leaves it there. Allowed in: New.
//
// Errors: LIFECYCLE_VIOLATION; ENGINE_FAULT when the worker holds none, or does not answer.
func (e *Engine) Attach(ctx context.Context) (engine.ShardInfo, error) {
	if err := e.allowed(fresh); err != nil {
		return engine.ShardInfo{}, err
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	return e.settle(ctx, false, func(engine.ShardInfo) error { return nil })
}

// bound is ctx, which also ends with the engine.
func (e *Engine) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// checkRequest refuses what no worker can be asked for, and what this one's limits rule out.
func (e *Engine) checkRequest(r engine.LoadRequest) error {
	malformed := func(format string, args ...any) error { return engine.Errorf(engine.Malformed, format, args...) }
	switch {
	case len(r.Paths) != 1:
		return malformed("a worker loads by one name of its store, and %d were given", len(r.Paths))
	case r.Layers.End != 0 && r.Layers.First >= r.Layers.End:
		return engine.Errorf(engine.ShardMismatch, "the layers %s are none", r.Layers)
	case r.ContextLimit == 0, r.Threads == 0, r.MicroBatch == 0, r.MicroBatch > r.BatchTokens, r.CacheType == "":
		return malformed("context limit %d, threads %d, micro-batch %d of %d, cache type %q: each must be given", r.ContextLimit, r.Threads, r.MicroBatch, r.BatchTokens, r.CacheType)
	case r.Sessions != e.limits.GetSessions() || r.BatchTokens != e.limits.GetBatchTokens():
		return malformed("worker %s is configured for %d sessions and batches of %d tokens, and %d and %d were asked for; ask for what it has, or configure it",
			e.client.Address(), e.limits.GetSessions(), e.limits.GetBatchTokens(), r.Sessions, r.BatchTokens)
	}
	return nil
}

// differs says in what the loaded shard is not what was asked for.
func differs(r engine.LoadRequest, info engine.ShardInfo) error {
	n := info.Numerics
	if info.ContextLimit == r.ContextLimit && n.Threads == r.Threads && n.MicroBatch == r.MicroBatch && n.CacheType == r.CacheType &&
		n.FlashAttention == r.FlashAttention {
		return nil
	}
	return engine.Errorf(engine.Malformed,
		"the worker is configured for context %d, threads %d, micro-batch %d, cache type %s and flash attention %t, and %d, %d, %d, %s and %t were asked for; ask for what it has, or configure it",
		info.ContextLimit, n.Threads, n.MicroBatch, n.CacheType, n.FlashAttention, r.ContextLimit, r.Threads, r.MicroBatch, r.CacheType, r.FlashAttention)
}

// unload frees what a load that ended with why may have left, once the worker is through with it, and returns why.
func (e *Engine) unload(ctx context.Context, why error) error {
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.options.RestBudget)
	defer cancel()
	err := e.client.WatchHealth(rest, func(h *workerpb.Health) bool {
		return h.GetState() == workerpb.ShardState_SHARD_STATE_LOADING
	})
	if err == nil {
		err = e.client.Unload(rest)
	}
	if err != nil {
		return engine.Errorf(engine.EngineFault, "the load was to be undone (%v), and worker %s does not say that it was: %w", why, e.client.Address(), err)
	}
	return why
}

// settle takes the shard that the worker holds if fits has nothing against it.
func (e *Engine) settle(ctx context.Context, owned bool, fits func(engine.ShardInfo) error) (engine.ShardInfo, error) {
	c, err := e.client.Capability(ctx)
	if err != nil {
		return engine.ShardInfo{}, refused(err)
	}
	if s := c.GetShard(); s.GetState() != workerpb.ShardState_SHARD_STATE_READY || len(s.GetFingerprint()) != len(e.fingerprint) {
		return engine.ShardInfo{}, engine.Errorf(engine.EngineFault, "worker %s holds no shard that is ready (%s); load one there", e.client.Address(), s.GetState())
	}
	info := infoOf(c)
	if err := fits(info); err != nil {
		return engine.ShardInfo{}, err
	}
	e.learn(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.in(fresh); err != nil {
		return engine.ShardInfo{}, err
	}
	e.state, e.owned, e.able.Shard = loaded, owned, &info
	e.fingerprint, e.instance, e.template = [32]byte(c.GetShard().GetFingerprint()), c.GetInstance(), c.GetText().GetChatTemplate()
	e.group.Go(e.watch)
	return copyOf(info), nil
}

// watch loses the engine when the worker's does not serve any more, also while nobody calls.
func (e *Engine) watch() {
	err := e.client.WatchHealth(e.life, func(h *workerpb.Health) bool {
		serves := h.GetState() == workerpb.ShardState_SHARD_STATE_READY || h.GetState() == workerpb.ShardState_SHARD_STATE_DRAINING
		if !serves || !bytes.Equal(h.GetInstance(), e.instance) {
			e.lose(unready(e.client.Address(), h))
			return false
		}
		return true
	})
	switch {
	case e.life.Err() != nil:
	case err != nil:
		e.lose(err)
	default:
		e.lose(fmt.Errorf("the worker ended the watch of its health"))
	}
}

// unready is why a worker cannot be used.
func unready(address string, h *workerpb.Health) *engine.Error {
	if h.GetError() != nil {
		return translate(fault.FromProto(h.GetError()))
	}
	return engine.Errorf(engine.EngineFault, "worker %s is %s and began its engine anew", address, h.GetState())
}

// learn takes what a worker says of itself beside its shard.
func (e *Engine) learn(c *workerpb.Capability) {
	able := engine.Capabilities{
		Name: "worker " + c.GetWorkerId(), Version: c.GetBuild().GetVersion(), Pin: c.GetBuild().GetPin(), Patches: c.GetBuild().GetPatches(),
	}
	for _, f := range c.GetFeatures() {
		able.Features = append(able.Features, engine.Feature{Name: f.GetName(), Status: engine.FeatureStatus(f.GetStatus()), Reason: f.GetReason()})
	}
	for _, d := range c.GetDevices() {
		able.Devices = append(able.Devices, engine.Device{Name: d.GetName(), Backend: d.GetBackend(), MemoryTotal: d.GetMemoryTotal(), MemoryFree: d.GetMemoryFree()})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.able, e.limits = able, c.GetLimits()
}

// infoOf is the shard that a capability describes.
func infoOf(c *workerpb.Capability) engine.ShardInfo {
	s, n := c.GetShard(), c.GetNumerics()
	info := engine.ShardInfo{
		Architecture: s.GetArchitecture(), Layers: engine.LayerRange{First: s.GetLayers().GetFirst(), End: s.GetLayers().GetEnd()},
		NLayer: s.GetNLayer(), Vocab: s.GetNVocab(), BoundaryIn: layoutOf(s.GetBoundaryIn()), BoundaryOut: layoutOf(s.GetBoundaryOut()),
		ContextLimit: s.GetContextLimit(),
		Cache:        engine.CacheAbility{Truncate: engine.TruncateAbility(c.GetCache().GetTruncate()), Copy: engine.CopyAbility(c.GetCache().GetCopy())},
		Numerics: engine.Numerics{
			Backend: n.GetBackend(), InstructionSet: n.GetInstructionSet(), Threads: n.GetThreads(), FlashAttention: n.GetFlashAttention(),
			CacheType: n.GetCacheType(), MicroBatch: n.GetMicroBatch(), Deterministic: n.GetDeterministic(),
		},
	}
	copy(info.Numerics.Build[:], n.GetBuild())
	return info
}

func layoutOf(l *workerpb.BoundaryLayout) *engine.BoundaryLayout {
	if l == nil {
		return nil
	}
	return &engine.BoundaryLayout{Width: l.GetWidth(), Name: l.GetLayout()}
}

// copyOf shares nothing with s.
func copyOf(s engine.ShardInfo) engine.ShardInfo {
	for _, layout := range []**engine.BoundaryLayout{&s.BoundaryIn, &s.BoundaryOut} {
		if *layout != nil {
			l := **layout
			*layout = &l
		}
	}
	return s
}

// stateOf is a cache as the wire tells it.
func stateOf(c *workerpb.CacheState) engine.CacheState {
	s := engine.CacheState{Length: engine.Pos(c.GetLength())}
	for _, span := range c.GetReach() {
		s.Reach = append(s.Reach, engine.Span{From: engine.Pos(span.GetFrom()), To: engine.Pos(span.GetTo())})
	}
	return s
}

// stateCopy shares nothing with s.
func stateCopy(s engine.CacheState) engine.CacheState {
	s.Reach = slices.Clone(s.Reach)
	return s
}
