package engine

import (
	"encoding/hex"
	"fmt"
	"time"
)

// TokenID is an index into the vocabulary, 0 ≤ id < Vocab.
type TokenID uint32

// Pos is a position in a session, or a cache length, in tokens.
type Pos uint32

// SessionID names a session; the driver draws it, the same on all hops of a route.
type SessionID [16]byte

// String is the lower-case hexadecimal form.
func (s SessionID) String() string { return hex.EncodeToString(s[:]) }

// LayerRange is the layers [First, End), by their global numbers.
type LayerRange struct {
	First uint32 // 0 ≤ First < End
	End   uint32 // one past the last; in a LoadRequest 0 means the last layer of the model
}

// String is as `[0, 3)`.
func (r LayerRange) String() string { return fmt.Sprintf("[%d, %d)", r.First, r.End) }

// Rows is a block of float32 values, row-major and little-endian, as it stands on the wire: a boundary (a row per token
// of the step, Width = the layout's width) or logits (Width = Vocab). len(Data) == 4·N·Width.
type Rows struct {
	N     uint32 // rows
	Width uint32 // values a row
	Data  []byte
}

// LoadRequest says what to load and how.
type LoadRequest struct {
	Paths          []string   // the model's file, or all of its parts in order
	Layers         LayerRange // the shard; End 0: to the last layer
	ContextLimit   uint32     // longest context of a session, tokens, ≥ 1
	Sessions       uint32     // sessions at once, 1 to 255; the engine adds a slot of its own for the probe
	BatchTokens    uint32     // rows of one native call, ≥ 1
	MicroBatch     uint32     // rows of one native micro-batch, 1 to BatchTokens
	Threads        uint32     // compute threads, ≥ 1
	CacheType      string     // element of the KV cache: f32, f16, q8_0 or q4_0
	FlashAttention bool
	MemoryMap      bool // map the file and share its pages; false reads the own tensors into memory
	ShortWindow    bool // layers with a sliding window keep little more than it sees; false: they keep all, and go back to any length
}

// LoadPhase is what a load is doing.
type LoadPhase int

// The phases, in order. Not every engine has each.
const (
	LoadValidating LoadPhase = iota + 1 // header checks
	LoadVerifying                       // hashing own tensors
	LoadReading                         // reading weights
	LoadProbing                         // first step
	LoadReady
)

// LoadProgress says how far a load is.
type LoadProgress struct {
	Phase LoadPhase
	Done  uint64 // bytes of this phase
	Total uint64 // bytes in all in this phase; 0: unknown
}

// BoundaryLayout is what a row at one end of a shard holds; equal at both ends of a link.
type BoundaryLayout struct {
	Width uint32 // float32 values a row
	Name  string // as `hidden`
}

// ShardInfo is the loaded shard.
type ShardInfo struct {
	Architecture string // general.architecture, as `llama`
	Layers       LayerRange
	NLayer       uint32
	Vocab        uint32          // vocabulary size
	BoundaryIn   *BoundaryLayout // nil at the head
	BoundaryOut  *BoundaryLayout // nil at the tail
	ContextLimit uint32          // tokens, as asked for
	TrainContext uint32          // tokens the model was trained for; 0: the header does not say
	Cache        CacheAbility
	Numerics     Numerics
	Memory       Memory
}

// Head says whether the shard owns the token embedding.
func (s ShardInfo) Head() bool { return s.Layers.First == 0 }

// Tail says whether the shard owns the output matrix.
func (s ShardInfo) Tail() bool { return s.Layers.End == s.NLayer }

// Memory is what the shard takes, in bytes.
type Memory struct {
	Weights uint64 // own tensors
	Cache   uint64 // KV cache or recurrent state of all slots
	Compute uint64 // scratch buffers; 0: unknown
}

// TruncateAbility says how a cache goes back.
type TruncateAbility int

// From strongest to weakest; a route has the weakest of its hops.
const (
	TruncateAny    TruncateAbility = iota + 1 // any length, to the bit
	TruncateWindow                            // within what the sliding window kept, marks and 0
	TruncateNone                              // marks and 0 only
)

// CopyAbility says what adopting a kept prefix can take.
type CopyAbility int

// The values.
const (
	CopyPrefix CopyAbility = iota + 1 // any length of it; only where Truncate is TruncateAny
	CopyWhole                         // the whole of it, or a length within its reach
)

// CacheAbility says what the shard's caches can do.
type CacheAbility struct {
	Truncate TruncateAbility
	Copy     CopyAbility
	Marks    uint32 // checkpoints a session may hold, ≥ 1 unless Truncate is TruncateAny
}

// Span is the lengths From to To, inclusive.
type Span struct{ From, To Pos }

// CacheState is what one session's cache is.
type CacheState struct {
	Length Pos    // tokens evaluated
	Reach  []Span // lengths that Truncate can return to; ascending, disjoint, always with 0
}

// Numerics is all that decides bits: two engines promise the same bits only where these are equal.
type Numerics struct {
	Backend        string // cpu, cuda, …
	InstructionSet string // as the backend names it
	Threads        uint32
	FlashAttention bool
	CacheType      string
	MicroBatch     uint32
	Deterministic  bool     // one session per native call
	Build          [32]byte // hash of pin, patches and flags; zero in the fake
}

// FeatureStatus of a named feature.
type FeatureStatus int

// The values.
const (
	FeatureOff      FeatureStatus = iota + 1 // known, not usable here; Reason says why
	FeatureOn                                // usable
	FeatureReserved                          // the types exist, nobody may use them yet
)

// Feature is a status with a reason.
type Feature struct {
	Name   string
	Status FeatureStatus
	Reason string // empty with FeatureOn
}

// Names of features that an engine reports.
const (
	FeatureMultiTokenPrediction = "mtp"
	FeatureAuxiliaryState       = "auxiliary_state"
	FeatureGrammar              = "sampling.grammar"
	FeatureChat                 = "text.chat"
	FeatureLogprobs             = "sampling.logprobs"
)

// Device is one place of computation.
type Device struct {
	Name        string
	Backend     string
	MemoryTotal uint64 // bytes
	MemoryFree  uint64 // bytes at the time of the call
}

// Capabilities describes an engine.
type Capabilities struct {
	Name     string // as `llama.cpp` or `fake`
	Version  string
	Pin      []byte // git tree hash of llama.cpp, 20 bytes; empty elsewhere
	Patches  []byte // SHA-256 of the patch queue, 32 bytes; empty elsewhere
	Features []Feature
	Devices  []Device
	Shard    *ShardInfo // nil unless Loaded
}

// Health is the outcome of a probe.
type Health struct {
	Took time.Duration // of a deep probe; else 0
}

// Metrics counts since the engine was made.
type Metrics struct {
	Batches       uint64 // native calls
	Rows          uint64 // tokens evaluated, undone ones included
	Sampled       uint64
	Cancelled     uint64 // steps
	Failed        uint64 // steps
	Compute       time.Duration
	SessionsOpen  uint64 // now
	CacheReserved uint64 // tokens, now
}
