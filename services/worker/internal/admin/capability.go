package admin

import (
	"encoding/hex"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/gen/workeradmin"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// capabilityOf is the gRPC contract's Capability as the port shows it.
func capabilityOf(c *workerpb.Capability) workeradmin.Capability {
	out := workeradmin.Capability{
		WorkerId: c.GetWorkerId(), Instance: hash(c.GetInstance()),
		Build: workeradmin.Build{
			Version: c.GetBuild().GetVersion(), Pin: hash(c.GetBuild().GetPin()), Patches: hash(c.GetBuild().GetPatches()),
		},
		Revisions: workeradmin.RevisionRange{Min: int64(c.GetRevisions().GetMin()), Max: int64(c.GetRevisions().GetMax())},
		Features:  make([]workeradmin.Feature, 0, len(c.GetFeatures())), Devices: make([]workeradmin.Device, 0, len(c.GetDevices())),
		Shard: shardOf(c.GetShard()), Cache: cacheOf(c.GetCache()), Limits: limitsOf(c.GetLimits()), Numerics: numericsOf(c.GetNumerics()),
		Text: workeradmin.TextAbility{Served: c.GetText().GetServed(), ChatTemplate: c.GetText().GetChatTemplate()},
	}
	for _, f := range c.GetFeatures() {
		status := workeradmin.FeatureStatus(strings.TrimPrefix(f.GetStatus().String(), "FEATURE_STATUS_"))
		out.Features = append(out.Features, workeradmin.Feature{Name: f.GetName(), Status: status, Reason: text(f.GetReason())})
	}
	for _, d := range c.GetDevices() {
		device := workeradmin.Device{Name: d.GetName(), Backend: d.GetBackend(), MemoryTotalBytes: *count(d.GetMemoryTotal())}
		if d.MemoryFree != nil {
			device.MemoryFreeBytes = count(d.GetMemoryFree())
		}
		out.Devices = append(out.Devices, device)
	}
	return out
}

func shardOf(s *workerpb.ShardInfo) workeradmin.ShardInfo {
	out := workeradmin.ShardInfo{State: workeradmin.ShardState(strings.TrimPrefix(s.GetState().String(), "SHARD_STATE_"))}
	if s.GetLayers() == nil {
		return out
	}
	head, tail := s.GetHead(), s.GetTail()
	verified := workeradmin.ShardInfoVerified(strings.TrimPrefix(s.GetVerified().String(), "VERIFIED_"))
	out.Fingerprint, out.Architecture = hash(s.GetFingerprint()), text(s.GetArchitecture())
	out.Layers = &workeradmin.LayerRange{First: int64(s.GetLayers().GetFirst()), End: int64(s.GetLayers().GetEnd())}
	out.NLayer, out.NVocab, out.ContextLimit = whole(s.GetNLayer()), whole(s.GetNVocab()), whole(s.GetContextLimit())
	out.Head, out.Tail, out.Verified = &head, &tail, &verified
	out.BoundaryIn, out.BoundaryOut = layoutOf(s.GetBoundaryIn()), layoutOf(s.GetBoundaryOut())
	return out
}

func layoutOf(l *workerpb.BoundaryLayout) *workeradmin.BoundaryLayout {
	if l == nil {
		return nil
	}
	return &workeradmin.BoundaryLayout{Name: l.GetLayout(), Width: int64(l.GetWidth())}
}

func cacheOf(c *workerpb.CacheAbility) *workeradmin.CacheAbility {
	if c == nil {
		return nil
	}
	return &workeradmin.CacheAbility{
		Truncate: workeradmin.CacheAbilityTruncate(strings.TrimPrefix(c.GetTruncate().String(), "TRUNCATE_ABILITY_")),
		Copy:     workeradmin.CacheAbilityCopy(strings.TrimPrefix(c.GetCopy().String(), "COPY_ABILITY_")), Marks: int64(c.GetMarks()),
	}
}

func limitsOf(l *workerpb.Limits) workeradmin.Limits {
	return workeradmin.Limits{
		Sessions: int64(l.GetSessions()), BatchTokens: int64(l.GetBatchTokens()), MessageBytes: int64(l.GetMessageBytes()),
		WindowSteps: int64(l.GetFirstWindow().GetSteps()), WindowBytes: *count(l.GetFirstWindow().GetBytes()),
		MaxWindowSteps: int64(l.GetMaxWindow().GetSteps()), MaxWindowBytes: *count(l.GetMaxWindow().GetBytes()),
		WorkerOutgoingBytes: *count(l.GetWorkerOutgoingBytes()), KeptBytes: *count(l.GetKeptBytes()), PrefillChunk: int64(l.GetPrefillChunk()),
		WorkerWindowBytes: *count(l.GetWorkerWindowBytes()), LingerSeconds: l.GetMaxLinger().AsDuration().Seconds(),
		DrainSeconds: l.GetDrain().AsDuration().Seconds(), KeepaliveSeconds: l.GetKeepalive().AsDuration().Seconds(),
	}
}

func numericsOf(n *workerpb.Numerics) *workeradmin.Numerics {
	if n == nil {
		return nil
	}
	return &workeradmin.Numerics{
		Backend: n.GetBackend(), InstructionSet: text(n.GetInstructionSet()), Threads: int64(n.GetThreads()),
		FlashAttention: n.GetFlashAttention(), CacheType: n.GetCacheType(), MicroBatch: int64(n.GetMicroBatch()),
		Deterministic: n.GetDeterministic(),
	}
}

func hash(b []byte) *string { return text(hex.EncodeToString(b)) }

func whole(n uint32) *int64 {
	i := int64(n)
	return &i
}
