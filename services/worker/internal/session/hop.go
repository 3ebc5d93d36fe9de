package session

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Hop is what a session knows of the worker that it runs in. It stays as it is while the shard is loaded.
type Hop struct {
	WorkerID    string
	Instance    [16]byte
	Fingerprint [32]byte
	Shard       engine.ShardInfo
	Revisions   Revisions
	Features    []*workerpb.Feature // each with its status here
	Limits      Limits
	// Tally is told of each event of a table with the state in which it comes; it returns at once. nil: nobody is.
	Tally func(table, state, event string)
	Ring  string // HOST:PORT where a tail reaches this worker as head; empty: it offers no ring
	// CheckGrammar says what is wrong with a grammar, in a bounded time; nil only where sampling.grammar is not ON.
	CheckGrammar func(engine.Grammar) error
}

// Limits are the bounds of one session. All are reported in Capability.
type Limits struct {
	StepTokens  uint32 // greatest step, tokens, ≥ 1
	FrameBytes  uint32 // size of a full frame, bytes, ≥ 65536
	WindowSteps uint32 // first window, steps, ≥ 1
	WindowBytes uint64 // first window, boundary bytes; more where one greatest step is larger
	// MaxWindowSteps and MaxWindowBytes are how far a window grows with use.
	MaxWindowSteps uint32
	MaxWindowBytes uint64
	MaxLinger      time.Duration // greatest linger
	Idle           time.Duration // a session without an unanswered step and without a message ends after it; 0: never
	OpenBudget     time.Duration // greatest part of Open.budget that this hop uses itself
	CloseWait      time.Duration // how long the next hop may take to say Closed
	// EngineRest is how long a cancelled step may stay in the engine once its time is over; then the session ends.
	EngineRest time.Duration
}

// DefaultLimits are those that the contract promises, for steps of up to batchTokens tokens.
func DefaultLimits(batchTokens uint32) Limits {
	return Limits{
		StepTokens: batchTokens, FrameBytes: 983040, WindowSteps: 8, WindowBytes: 16 << 20, MaxWindowSteps: 64, MaxWindowBytes: 256 << 20,
		MaxLinger: 10 * time.Minute, Idle: 30 * time.Minute, OpenBudget: 5 * time.Second, CloseWait: 2 * time.Second,
		EngineRest: 150 * time.Millisecond,
	}
}

// linkSlack is how much longer a hop waits for the answer of the next one than that one may take, for each hop below.
const linkSlack = 200 * time.Millisecond

// float is the size of a boundary element, bytes.
const float = 4

func (h *Hop) tally(table, state, event string) {
	if h.Tally != nil {
		h.Tally(table, state, event)
	}
}

// ref names this hop as the upstream sees it.
func (h *Hop) ref() *workerpb.HopRef {
	return &workerpb.HopRef{Index: proto.Uint32(0), WorkerId: h.WorkerID, Instance: h.Instance[:]}
}

// on says whether a feature is ON here.
func (h *Hop) on(name string) bool {
	for _, f := range h.Features {
		if f.GetName() == name {
			return f.GetStatus() == workerpb.FeatureStatus_FEATURE_STATUS_ON
		}
	}
	return false
}

// ready lists the features that are ON here.
func (h *Hop) ready() []string {
	var names []string
	for _, f := range h.Features {
		if f.GetStatus() == workerpb.FeatureStatus_FEATURE_STATUS_ON {
			names = append(names, f.GetName())
		}
	}
	return names
}

// widthIn is the width of the boundary that arrives here; 0 at the head.
func (h *Hop) widthIn() uint32 {
	if h.Shard.BoundaryIn == nil {
		return 0
	}
	return h.Shard.BoundaryIn.Width
}

// Room is what a worker sets aside for an attempt, bytes.
type Room struct {
	Window   uint64 // boundaries that come from the upstream
	Outgoing uint64 // payload that waits to be sent to one neighbour
	Chunk    uint32 // tokens of prefill that take no longer than a native call should; 0: as many as fit
}

// FirstWindow is the bytes of the first window: room for one greatest step at least.
func (h *Hop) FirstWindow() uint64 {
	greatest := uint64(h.Limits.StepTokens) * uint64(h.widthIn()) * float
	return max(h.Limits.WindowBytes, min(greatest, h.Limits.MaxWindowBytes))
}

// stepTokens is the greatest step that fits this hop's batch and its room on either side.
func (h *Hop) stepTokens(r Room) uint32 {
	n := uint64(h.Limits.StepTokens)
	if w := uint64(h.widthIn()) * float; w > 0 {
		n = min(n, r.Window/w)
	}
	if w := uint64(h.widthOut()) * float; w > 0 {
		n = min(n, r.Outgoing/w)
	}
	return uint32(n)
}

// chunkTokens is the step that a native call does best with.
func (h *Hop) chunkTokens(r Room) uint32 {
	if r.Chunk == 0 {
		return h.stepTokens(r)
	}
	return min(r.Chunk, h.stepTokens(r))
}

// widthOut is the width of the boundary that is made here; 0 at the tail.
func (h *Hop) widthOut() uint32 {
	if h.Shard.BoundaryOut == nil {
		return 0
	}
	return h.Shard.BoundaryOut.Width
}

func (h *Hop) numerics() *workerpb.Numerics {
	n := h.Shard.Numerics
	return &workerpb.Numerics{
		Backend: n.Backend, InstructionSet: n.InstructionSet, Threads: n.Threads, FlashAttention: n.FlashAttention,
		CacheType: n.CacheType, MicroBatch: n.MicroBatch, Deterministic: n.Deterministic, Build: n.Build[:],
	}
}

// layoutOf is a boundary layout as it stands on the wire; nil stays nil.
func layoutOf(l *engine.BoundaryLayout) *workerpb.BoundaryLayout {
	if l == nil {
		return nil
	}
	return &workerpb.BoundaryLayout{
		Width: l.Width, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Layout: l.Name,
	}
}

// below is a hop that the next hop named, as seen from here.
func below(ref *workerpb.HopRef) *workerpb.HopRef {
	if ref == nil || ref.Index == nil {
		return ref
	}
	return &workerpb.HopRef{Index: proto.Uint32(ref.GetIndex() + 1), WorkerId: ref.GetWorkerId(), Instance: ref.GetInstance()}
}

// fromBelow is an error that the next hop said, with its hops as seen from here.
func fromBelow(err *fault.Error) *fault.Error {
	return err.With(func(e *fault.Error) { e.Origin, e.Subject = below(e.Origin), below(e.Subject) })
}
