package engine

import "time"

// Want says what a step returns beside its effect on the cache. A shard that is no tail returns its boundary whatever
// is asked for.
type Want int

// The values.
const (
	WantNone       Want = iota // nothing
	WantLogitsLast             // logits after the last token
	WantLogitsAll              // logits after each token
	WantSample                 // one sampled token, not evaluated
)

// Step evaluates tokens of one session.
type Step struct {
	Session SessionID
	Start   Pos       // cache length at which the tokens go; not the true one: CACHE_MISMATCH
	Tokens  []TokenID // 1 or more; always present, also behind the head
	// Boundary has a row per token, of BoundaryIn's width; empty at the head.
	Boundary   Rows
	Want       Want
	Sampling   *Sampling             // with WantSample, else nil
	MultiToken *MultiTokenPrediction // reserved: UNSUPPORTED_FEATURE
	Auxiliary  []AuxiliaryState      // reserved: UNSUPPORTED_FEATURE
}

// StepResult is the outcome of one step.
type StepResult struct {
	Err      error      // nil, or why the step changed nothing
	Cache    CacheState // as it is now, also after an error (zero for SESSION_UNKNOWN)
	Boundary Rows       // a row per token, in the order of Step.Tokens; empty at the tail
	Logits   Rows       // one row, or one per token; empty unless asked for
	Sample   *Sample    // with WantSample
	Compute  time.Duration
}

// Sample is one chosen token.
type Sample struct {
	Token           TokenID
	Bytes           []byte  // the token detokenised alone; may be a part of a UTF-8 sequence
	Logprob         float32 // natural logarithm of its probability before truncation of the distribution
	Top             []TokenLogprob
	EndOfGeneration bool // the model ends its answer with this token
}

// TokenLogprob is one alternative.
type TokenLogprob struct {
	Token   TokenID
	Bytes   []byte
	Logprob float32
}

// Sampling says how the tail chooses. The choice is a pure function of these values, the tokens of the session and the
// position: the draw at position p is seeded by (Seed, p), so that a run goes on anywhere after a replay.
type Sampling struct {
	Seed             uint64
	Temperature      float32     // ≥ 0; 0 is greedy: the most probable token, the lowest id among equals
	TopK             uint32      // 0 is off
	TopP             float32     // 0 < p ≤ 1; 1 is off
	MinP             float32     // 0 ≤ p ≤ 1; 0 is off
	Typical          float32     // 0 ≤ p ≤ 1: the share of the locally typical tokens; 0 and 1 are off
	RepeatPenalty    float32     // > 0; 1 is off
	PenaltyWindow    uint32      // tokens that the penalties look back on
	FrequencyPenalty float32     // −2 to 2
	PresencePenalty  float32     // −2 to 2
	LogitBias        []LogitBias // 1024 at most
	Grammar          *Grammar
	AnswerStart      Pos // ≤ Start + len(Tokens); the grammar sees tokens from here, penalties see all
	// Logprobs is the number of alternatives to report, 0 to 20; WantLogprob asks for the chosen one's even with 0.
	Logprobs    uint32
	WantLogprob bool
}

// LogitBias is added to the logit of one token; −Inf forbids it.
type LogitBias struct {
	Token TokenID
	Bias  float32
}

// Grammar constrains an answer: a token that it does not allow is not chosen, and the answer ends where it may. One that
// cannot be compiled, that the tokens from AnswerStart on do not follow, or that allows no token is INVALID_GRAMMAR.
type Grammar struct {
	Text            string    // GBNF with the start symbol root, 1 byte to 1 MiB
	Lazy            bool      // holds only from a trigger on
	TriggerPatterns []string  // with Lazy: regular expressions (ECMAScript), 64 at most
	TriggerTokens   []TokenID // with Lazy: 64 at most
	Prefill         string    // text that the grammar has consumed before AnswerStart, 16 KiB at most; not with Lazy
}

// MultiTokenPrediction is reserved.
type MultiTokenPrediction struct {
	MaxDraft uint32
	Draft    []TokenID
}

// AuxiliaryState is reserved for what an architecture hands on beside the boundary.
type AuxiliaryState struct {
	Name    string
	Payload Rows
}
