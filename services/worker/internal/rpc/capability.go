package rpc

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/quota"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// Capability describes the worker as it is now.
func (s *Server) Capability() *workerpb.Capability {
	o := s.options
	status := o.Shard.Status()
	c := &workerpb.Capability{
		WorkerId: o.WorkerID, Instance: status.Instance[:], Build: o.Build,
		Revisions: &workerpb.RevisionRange{Min: o.Revisions.Min, Max: o.Revisions.Max},
		Shard:     &workerpb.ShardInfo{State: stateOf(status.State)}, Limits: s.limits(nil),
		Text: &workerpb.TextAbility{Served: status.Loaded != nil},
	}
	l := status.Loaded
	if l == nil {
		c.Features = o.Directory.Features(engine.Capabilities{}, nil)
		return c
	}
	able := l.Engine.Capabilities()
	c.Features = o.Directory.Features(able, &l.Info)
	c.Shard = shardOf(c.Shard.GetState(), l)
	c.Cache = &workerpb.CacheAbility{
		Truncate: workerpb.TruncateAbility(l.Info.Cache.Truncate), Copy: workerpb.CopyAbility(l.Info.Cache.Copy),
		Marks: proto.Uint32(l.Info.Cache.Marks), Capacity: l.Info.ContextLimit,
	}
	c.Limits = s.limits(c.Cache)
	c.Numerics = numericsOf(l.Info.Numerics)
	for _, d := range able.Devices {
		c.Devices = append(c.Devices, &workerpb.Device{
			Name: d.Name, Backend: d.Backend, MemoryTotal: d.MemoryTotal, MemoryFree: proto.Uint64(d.MemoryFree),
		})
	}
	c.Text.ChatTemplate = l.Text.HasChatTemplate()
	return c
}

func shardOf(state workerpb.ShardState, l *shard.Loaded) *workerpb.ShardInfo {
	return &workerpb.ShardInfo{
		State: state, Fingerprint: l.Fingerprint[:], Architecture: l.Info.Architecture,
		Layers: &workerpb.LayerRange{First: proto.Uint32(l.Info.Layers.First), End: l.Info.Layers.End},
		NLayer: l.Info.NLayer, Head: l.Info.Head(), Tail: l.Info.Tail(), BoundaryIn: layoutOf(l.Info.BoundaryIn),
		BoundaryOut: layoutOf(l.Info.BoundaryOut), ContextLimit: l.Info.ContextLimit, NVocab: l.Info.Vocab, Verified: l.Verified,
	}
}

func layoutOf(l *engine.BoundaryLayout) *workerpb.BoundaryLayout {
	if l == nil {
		return nil
	}
	return &workerpb.BoundaryLayout{
		Width: l.Width, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Layout: l.Name,
	}
}

func numericsOf(n engine.Numerics) *workerpb.Numerics {
	return &workerpb.Numerics{
		Backend: n.Backend, InstructionSet: n.InstructionSet, Threads: n.Threads, FlashAttention: n.FlashAttention,
		CacheType: n.CacheType, MicroBatch: n.MicroBatch, Deterministic: n.Deterministic, Build: n.Build[:],
	}
}

// limits are the worker's bounds, with a cache that goes back so.
func (s *Server) limits(cache *workerpb.CacheAbility) *workerpb.Limits {
	o := s.options
	credit := func(steps uint32, bytes uint64) *workerpb.Credit {
		return &workerpb.Credit{Steps: proto.Uint32(steps), Bytes: proto.Uint64(bytes)}
	}
	return &workerpb.Limits{
		Sessions: o.Sessions, FirstWindow: credit(session.WindowSteps(o.Limits.WindowSteps, cache), o.Limits.WindowBytes),
		MaxWindow: credit(session.WindowSteps(o.Limits.MaxWindowSteps, cache), o.Limits.MaxWindowBytes), WorkerWindowBytes: o.WindowBytes,
		MessageBytes: o.MessageBytes, BatchTokens: o.BatchTokens, StepTokens: o.Limits.StepTokens,
		MaxLinger: durationpb.New(o.Limits.MaxLinger), Idle: durationpb.New(o.Limits.Idle),
		OpenBudget: durationpb.New(o.Limits.OpenBudget), Drain: durationpb.New(o.Drain), PrefillChunk: proto.Uint32(o.Directory.PrefillChunk()),
		Keepalive: durationpb.New(o.Keepalive), WorkerOutgoingBytes: o.OutgoingBytes, OutputBytes: o.OutputBytes, KeptBytes: proto.Uint64(o.KeptBytes),
		MetadataBytes: o.MetadataBytes, PingInterval: durationpb.New(o.pingInterval()), ConnectionStreams: o.Streams,
		Handshake: durationpb.New(o.Handshake), RightsChecked: durationpb.New(o.RightsChecked), Principal: principalLimits(o.Quotas.Limits()),
	}
}

func principalLimits(l quota.Limits) *workerpb.PrincipalLimits {
	return &workerpb.PrincipalLimits{
		Opening: l.Opening, Sessions: l.Sessions, Streams: l.Streams, Requests: l.Requests.PerSecond, RequestBurst: l.Requests.Burst,
		Control: l.Control.PerSecond, ControlBurst: l.Control.Burst,
	}
}
