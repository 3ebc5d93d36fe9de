package fixturegen

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// workerService is the unary side of WorkerService.
func workerService() []Fixture {
	return []Fixture{
		{"", &workerpb.GetCapabilityRequest{}},
		{"head", &workerpb.GetCapabilityResponse{Capability: capability(0, shardInfo(0))}},
		{"middle", &workerpb.GetCapabilityResponse{Capability: capability(1, shardInfo(1))}},
		{"tail", &workerpb.GetCapabilityResponse{Capability: capability(2, shardInfo(2))}},
		{"unloaded", &workerpb.GetCapabilityResponse{Capability: capability(0, &workerpb.ShardInfo{State: workerpb.ShardState_SHARD_STATE_UNLOADED})}},
		{"", &workerpb.GetHealthRequest{}},
		{"ready", &workerpb.GetHealthResponse{Health: ready()}},
		{"loading", &workerpb.GetHealthResponse{Health: loading()}},
		{"draining", &workerpb.GetHealthResponse{Health: draining()}},
		{"", &workerpb.WatchHealthRequest{}},
		{"ready", &workerpb.WatchHealthResponse{Health: ready()}},
		{"failed", &workerpb.WatchHealthResponse{Health: failed()}},
		{"any_attempt", &workerpb.CancelSessionRequest{SessionId: name16("session"), SessionKey: name32("key")}},
		{"up_to_attempt", &workerpb.CancelSessionRequest{SessionId: name16("session"), SessionKey: name32("key"), Attempt: big(2)}},
		{"", &workerpb.CancelSessionResponse{}},
		{"any_attempt", &workerpb.ReleaseSessionRequest{SessionId: name16("session"), SessionKey: name32("key")}},
		{"up_to_attempt", &workerpb.ReleaseSessionRequest{SessionId: name16("session"), SessionKey: name32("key"), Attempt: big(2)}},
		{"", &workerpb.ReleaseSessionResponse{}},
		{"", &workerpb.GetMetricsRequest{}},
		{"", metrics()},
	}
}

// shardInfo is the loaded shard of one hop.
func shardInfo(hop int) *workerpb.ShardInfo {
	s := &workerpb.ShardInfo{
		State: workerpb.ShardState_SHARD_STATE_READY, Fingerprint: fingerprint(), Architecture: "llama", Layers: layersOf(hop), NLayer: layers,
		Head: hop == 0, Tail: hop == 2, ContextLimit: contextLimit, NVocab: vocabulary, Verified: workerpb.Verified_VERIFIED_OWN,
	}
	if !s.Head {
		s.BoundaryIn = hidden()
	}
	if !s.Tail {
		s.BoundaryOut = hidden()
	}
	return s
}

func capability(hop int, shard *workerpb.ShardInfo) *workerpb.Capability {
	on, reserved := workerpb.FeatureStatus_FEATURE_STATUS_ON, workerpb.FeatureStatus_FEATURE_STATUS_RESERVED
	return &workerpb.Capability{
		WorkerId: worker(hop), Instance: instance(hop), Revisions: revisions(), Shard: shard, Cache: ability(), Numerics: numerics(),
		Build: &workerpb.Build{Version: "0.1.0", Pin: name32("pin")[:20], Patches: name32("patches")},
		Features: []*workerpb.Feature{
			{Name: "session", Status: on},
			{Name: "chain", Status: workerpb.FeatureStatus_FEATURE_STATUS_OFF, Reason: "chain.allow is empty"},
			{Name: "mtp", Status: reserved, Reason: "reserved for a later revision"},
		},
		Limits: limits(),
		Devices: []*workerpb.Device{{
			Name: "CPU", Backend: "cpu", MemoryTotal: 16 << 30, MemoryFree: big(9 << 30),
		}},
		Text: &workerpb.TextAbility{Served: true, ChatTemplate: true},
	}
}

func limits() *workerpb.Limits {
	return &workerpb.Limits{
		Sessions: 8, FirstWindow: &workerpb.Credit{Steps: num(2), Bytes: big(windowBytes)},
		MaxWindow: &workerpb.Credit{Steps: num(16), Bytes: big(16 * windowBytes)}, WorkerWindowBytes: 64 * windowBytes,
		MessageBytes: 4 << 20, BatchTokens: 512, StepTokens: 512, MaxLinger: duration(5 * time.Minute), Idle: duration(10 * time.Minute),
		OpenBudget: duration(5 * time.Second), Drain: duration(time.Minute), PrefillChunk: num(256), Keepalive: duration(10 * time.Second),
		WorkerOutgoingBytes: 64 * windowBytes, OutputBytes: 4 * windowBytes, MetadataBytes: 16 << 10, PingInterval: duration(5 * time.Second),
		KeptBytes: big(256 << 20), ConnectionStreams: 1024, Handshake: duration(10 * time.Second), RightsChecked: duration(5 * time.Second),
		Principal: &workerpb.PrincipalLimits{
			Opening: 64, Sessions: 8, Streams: 256, Requests: 100, RequestBurst: 200, Control: 1000, ControlBurst: 2000,
		},
	}
}

func ready() *workerpb.Health {
	return &workerpb.Health{
		Ready: true, State: workerpb.ShardState_SHARD_STATE_READY, Instance: instance(0), ProbeAge: duration(3 * time.Second),
		ProbeTook: duration(12 * time.Millisecond), Use: cacheUse(),
		Hops: []*workerpb.HopHealth{{
			Hop: hopRef(1), Address: address(1), Reachable: true, Age: duration(250 * time.Millisecond), Rtt: duration(400 * time.Microsecond),
		}},
	}
}

func cacheUse() *workerpb.CacheUse {
	return &workerpb.CacheUse{
		Sessions: num(2), Lingering: num(1), Kept: num(0), ReservedTokens: big(3 * contextLimit), FreeTokens: big(5 * contextLimit),
		Oldest: duration(20 * time.Second),
	}
}

func loading() *workerpb.Health {
	return &workerpb.Health{
		State: workerpb.ShardState_SHARD_STATE_LOADING, Instance: instance(0), Error: shardError(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY),
		Progress: &workerpb.LoadProgress{Phase: workerpb.LoadPhase_LOAD_PHASE_READING, Done: 1 << 30, Total: 4 << 30},
	}
}

func draining() *workerpb.Health {
	return &workerpb.Health{
		State: workerpb.ShardState_SHARD_STATE_DRAINING, Instance: instance(0), ProbeAge: duration(3 * time.Second),
		ProbeTook: duration(12 * time.Millisecond), Error: shardError(workerpb.ErrorCode_ERROR_CODE_DRAINING),
		DrainLeft: duration(42 * time.Second), Use: cacheUse(),
	}
}

func failed() *workerpb.Health {
	return &workerpb.Health{
		State: workerpb.ShardState_SHARD_STATE_FAILED, Instance: instance(0), Error: shardError(workerpb.ErrorCode_ERROR_CODE_BAD_MODEL_FILE),
	}
}

func metrics() *workerpb.GetMetricsResponse {
	return &workerpb.GetMetricsResponse{
		Instance: instance(0), Total: usage(), SessionsOpened: 3, Batches: 90, BatchRows: 210, SharedRows: 40, ImpossibleTransitions: 1, BufferedBytes: big(windowBytes), BufferedMost: big(3 * windowBytes),
		Prefixes: &workerpb.PrefixUse{Kept: 2, Bytes: 1 << 20, Hits: 5, Misses: 1},
		Errors: []*workerpb.ErrorCount{
			{Code: uint32(workerpb.ErrorCode_ERROR_CODE_MALFORMED), Count: 1},
			{Code: uint32(workerpb.ErrorCode_ERROR_CODE_CANCELLED), Count: 4},
		},
	}
}

// shardService is ShardService.
func shardService() []Fixture {
	return []Fixture{
		{"named_layers", &workerpb.LoadShardRequest{Model: "tiny", First: num(4), End: num(8), Fingerprint: fingerprint()}},
		{"to_the_last_layer", &workerpb.LoadShardRequest{Model: "tiny", First: num(8)}},
		{"reading", &workerpb.LoadShardResponse{
			Progress: &workerpb.LoadProgress{Phase: workerpb.LoadPhase_LOAD_PHASE_READING, Done: 1 << 30, Total: 4 << 30},
		}},
		{"ready", &workerpb.LoadShardResponse{
			Progress: &workerpb.LoadProgress{Phase: workerpb.LoadPhase_LOAD_PHASE_READY}, Fingerprint: fingerprint(),
		}},
		{"", &workerpb.UnloadShardRequest{}},
		{"", &workerpb.UnloadShardResponse{State: workerpb.ShardState_SHARD_STATE_UNLOADED}},
		{"default_budget", &workerpb.DrainRequest{}},
		{"own_budget", &workerpb.DrainRequest{Budget: duration(30 * time.Second)}},
		{"draining", &workerpb.DrainResponse{
			State: workerpb.ShardState_SHARD_STATE_DRAINING, Left: duration(30 * time.Second), Sessions: num(2),
		}},
		{"cannot", &workerpb.DrainResponse{
			State: workerpb.ShardState_SHARD_STATE_UNLOADED, Error: shardError(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY),
		}},
	}
}

// textService is TextService.
func textService() []Fixture {
	return []Fixture{
		{"", &workerpb.TokenizeRequest{Fingerprint: fingerprint(), Text: "A shard is", AddSpecial: true, ParseSpecial: true}},
		{"", &workerpb.TokenizeResponse{Tokens: prompt}},
		{"", &workerpb.DetokenizeRequest{Fingerprint: fingerprint(), Tokens: prompt, Special: true}},
		{"half_a_character", &workerpb.DetokenizeResponse{Data: []byte("A shard \xe2\x80")}},
		{"", &workerpb.RenderChatRequest{
			Fingerprint: fingerprint(), MessagesJson: `[{"role":"user","content":"What is a shard?"}]`,
			ToolsJson:  `[{"type":"function","function":{"name":"look_up"}}]`,
			ToolChoice: "auto", JsonSchema: `{"type":"object"}`, TemplateArgumentsJson: `{"enable_thinking":false}`,
			AddGenerationPrompt: yes(),
		}},
		{"", &workerpb.RenderChatResponse{
			Prompt: "<user>What is a shard?<assistant>", Tokens: prompt, Grammar: grammar(), Stops: []string{"<user>"}, Parser: []byte("opaque"),
		}},
		{"", &workerpb.ParseChatRequest{Fingerprint: fingerprint(), Parser: []byte("opaque"), Text: "A shard is", Partial: true}},
		{"", &workerpb.ParseChatResponse{MessageJson: `{"role":"assistant","content":"A shard is"}`}},
	}
}

func yes() *bool { t := true; return &t }

// ringService is RingService.
func ringService() []Fixture {
	hello := &workerpb.RingHello{SessionId: name16("session"), SessionKey: name32("key"), Attempt: 1}
	token := &workerpb.RingToken{StepId: 4, Index: num(0), Id: num(200), Last: true}
	return []Fixture{
		{"hello", &workerpb.RingRequest{Kind: &workerpb.RingRequest_Hello{Hello: hello}}},
		{"token", &workerpb.RingRequest{Kind: &workerpb.RingRequest_Token{Token: token}}},
		{"", &workerpb.RingResponse{FirstByRing: 63}},
	}
}
