// Package wire is what the two sides of package child say to each other.
//
// What must stay out: how it travels.
package wire

import (
	"errors"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Failure is an error of an engine on its way to the parent.
type Failure struct {
	Code    engine.Code
	Message string
}

// FailureOf is err as it travels; nil stays nil.
func FailureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	var e *engine.Error
	if errors.As(err, &e) {
		return &Failure{e.Code, e.Message}
	}
	return &Failure{engine.CodeOf(err), err.Error()}
}

// Err is the error that it was.
func (f *Failure) Err() error {
	if f == nil {
		return nil
	}
	return &engine.Error{Code: f.Code, Message: f.Message}
}

// Batch is a batch on its way to the child. The rows of its boundaries follow it, each as long as Rows says, and stand in
// no step.
type Batch struct {
	Steps []engine.Step
	Rows  []int // bytes
	Ended bool  // the caller's context had ended before
}

// Outcome is what became of a batch. The rows of its results follow it in their order, boundary before logits.
type Outcome struct {
	Failure *Failure
	Results []Result
	Counts  Counts
}

// Counts are the engine's counters and which reading of them it is, from 1.
type Counts struct {
	Metrics engine.Metrics
	Read    uint64
}

// Result is engine.StepResult without its rows.
type Result struct {
	Failure  *Failure
	Cache    engine.CacheState
	Boundary Shape
	Logits   Shape
	Sample   *engine.Sample
	Compute  time.Duration
}

// Shape is engine.Rows without its data.
type Shape struct{ N, Width uint32 }

// Bytes is how long the data is.
func (s Shape) Bytes() int { return 4 * int(s.N) * int(s.Width) }

// ShapeOf is the shape of rows.
func ShapeOf(r engine.Rows) Shape { return Shape{r.N, r.Width} }

// Call is what any call but Step is given; each uses some of it.
type Call struct {
	Session engine.SessionID
	Number  uint64             // of the batch (CancelStep, CancelBatch) or load (CancelLoad, Progress) that is meant
	Context uint32             // Open: tokens
	From    engine.SessionID   // Copy
	Length  engine.Pos         // Truncate, Unmark, Copy
	Load    engine.LoadRequest // Load
	Deep    bool               // Health
	Bound   time.Duration      // Health: how long it may take
	Seen    int                // Progress: how many reports the parent has dealt with
	Ended   bool               // Load, Progress: the caller's context has ended
	Text    string             // Tokenize
	Add     bool               // Tokenize: special tokens around the prompt
	Special bool               // Tokenize: read them; Detokenize: write them
	Tokens  []engine.TokenID   // Detokenize
	Chat    engine.ChatRequest // RenderChat
	Parser  []byte             // ParseChat
	Partial bool               // ParseChat
	Grammar engine.Grammar     // CheckGrammar
}

// Reply is what any call but Step gives; each fills some of it.
type Reply struct {
	Failure      *Failure
	Counts       Counts
	Capabilities *engine.Capabilities // Describe, Load, Health
	Info         engine.ShardInfo     // Load
	Cache        engine.CacheState    // Truncate, Mark, Unmark, Copy
	Health       engine.Health        // Health
	Progress     *engine.LoadProgress // Progress: the next report; nil once the load is over
	Tokens       []engine.TokenID
	Bytes        []byte
	Template     bool // Describe, Load: the model has a chat template
	Prompt       engine.ChatPrompt
	Message      string // ParseChat
}
