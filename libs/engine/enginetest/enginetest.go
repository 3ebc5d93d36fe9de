// Package enginetest is the contract suite of ShardEngine: every sentence of the interface's documents is a named case, and
// an engine that passes them all is a good one. The fake and the llama engine pass the same cases.
//
//	func TestEngine(t *testing.T) {
//		enginetest.Run(t, enginetest.Target{Factory: factory, Request: request})
//	}
//
// The suite knows no engine: it never asks for a backend's name. Where an engine cannot be asked for something (to be slow,
// to be lost), the target leaves the field empty and the cases are skipped with that reason; where an engine is known to
// miss a category, the target names it with a reason.
package enginetest

import (
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Category is a group of cases that a target may opt out of.
type Category string

// The categories.
const (
	Lifecycle  Category = "lifecycle"  // states × calls
	Load       Category = "load"       // progress, options, what is refused
	Open       Category = "open"       // room
	Batches    Category = "batches"    // what is refused as a whole, per step, and in which order results come
	Outputs    Category = "outputs"    // shapes and values of boundary and logits
	Parity     Category = "parity"     // a chain of shards gives the bits of the whole model, for every cut
	Isolation  Category = "isolation"  // sessions do not touch each other
	GoingBack  Category = "going_back" // Truncate
	Marking    Category = "marking"    // Mark and Unmark
	Copying    Category = "copying"    // Copy
	Cancelling Category = "cancelling" // Cancel and the end of contexts
	Sampling   Category = "sampling"   // the choice of a token
	Text       Category = "text"       // TextEngine
	Observing  Category = "observing"  // Capabilities, Health, Metrics
	Ownership  Category = "ownership"  // of slices, in both directions
	Closing    Category = "closing"    // Close, and what it leaves
	Faults     Category = "faults"     // lost engines and NaN
	Reserved   Category = "reserved"   // reserved features are refused
)

// BadLoad is a load that must be refused.
type BadLoad struct {
	Name    string
	Request engine.LoadRequest
	Code    engine.Code
}

// Target is an engine and a small model to try it with.
type Target struct {
	// Factory makes engines. Required.
	Factory engine.Factory
	// Request loads the whole model; its Layers are not looked at. Required: 2 ≤ Sessions ≤ 16, 48 ≤ ContextLimit,
	// 24 ≤ BatchTokens. The model needs two layers or more and 32 tokens or more.
	Request engine.LoadRequest
	// Cuts are the legal cuts, each the first layer of the later shard; nil: every layer but the first.
	Cuts []uint32
	// BadLoads are files and shards that must be refused, as a truncated file.
	BadLoads []BadLoad
	// Tolerance is how far logits may lie apart where the shapes of native calls differ; 0: not at all.
	Tolerance float64
	// EndOfGeneration is a token that ends an answer; nil: the cases about it are skipped.
	EndOfGeneration *engine.TokenID

	// Slow makes engines of the same model of which a row takes 2 ms to 50 ms; nil: not possible.
	Slow engine.Factory
	// Lost makes engines that are lost by their first step; nil: not possible.
	Lost engine.Factory
	// NaN makes engines that compute NaN in their first step, and never again; nil: not possible.
	NaN engine.Factory

	// Skip names categories that the engine is known to miss, each with the reason.
	Skip map[Category]string
}

// With returns the target with every factory decorated, as to try an engine behind a wrapper.
func (t Target) With(decorate func(engine.Factory) engine.Factory) Target {
	t.Factory = decorate(t.Factory)
	for _, factory := range []*engine.Factory{&t.Slow, &t.Lost, &t.NaN} {
		if *factory != nil {
			*factory = decorate(*factory)
		}
	}
	return t
}

// patience bounds every wait of the suite. It is no measure of speed.
const patience = 30 * time.Second

// suite runs the cases on a target.
type suite struct{ Target }

// Run runs every case as a subtest `category/case`. It fails when goroutines are left that were not there before.
func Run(t *testing.T, target Target) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	s := suite{target}
	if !t.Run("target", s.checkTarget) {
		return
	}
	groups := []struct {
		category Category
		cases    []testCase
	}{
		{Lifecycle, s.lifecycleCases()},
		{Load, s.loadCases()},
		{Open, s.openCases()},
		{Batches, s.batchCases()},
		{Reserved, s.reservedCases()},
		{Outputs, s.outputCases()},
		{Parity, s.parityCases()},
		{Isolation, s.isolationCases()},
		{GoingBack, s.truncateCases()},
		{Marking, s.markCases()},
		{Copying, s.copyCases()},
		{Cancelling, s.cancelCases()},
		{Sampling, s.samplingCases()},
		{Text, append(s.textCases(), s.chatCases()...)},
		{Observing, s.observeCases()},
		{Ownership, s.ownershipCases()},
		{Closing, s.closeCases()},
		{Faults, s.faultCases()},
	}
	for _, group := range groups {
		t.Run(string(group.category), func(t *testing.T) {
			if reason, skipped := s.Skip[group.category]; skipped {
				t.Skip(reason)
			}
			for _, c := range group.cases {
				t.Run(c.name, c.run)
			}
		})
	}
	if err := goleak.Find(before); err != nil {
		t.Errorf("goroutines are left after every engine was closed: %v", err)
	}
}

// testCase is one sentence of the contract.
type testCase struct {
	name string
	run  func(t *testing.T)
}

func (s suite) checkTarget(t *testing.T) {
	t.Helper()
	r := s.Request
	switch {
	case s.Factory == nil:
		t.Fatal("the target has no Factory")
	case r.Sessions < 2 || r.Sessions > 16, r.ContextLimit < 48, r.BatchTokens < 24:
		t.Fatalf("the target's request is too small or too large for the suite: %+v", r)
	}
	whole := s.load(t, engine.LayerRange{})
	if whole.info.NLayer < 2 || whole.info.Vocab < 32 {
		t.Fatalf("the target's model is too small for the suite: %+v", whole.info)
	}
}

// cuts are the legal cuts.
func (s suite) cuts(nLayer uint32) []uint32 {
	if s.Cuts != nil {
		return slices.Clone(s.Cuts)
	}
	var cuts []uint32
	for layer := uint32(1); layer < nLayer; layer++ {
		cuts = append(cuts, layer)
	}
	return cuts
}
