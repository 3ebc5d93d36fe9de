// Package enginetest is the contract suite of ShardEngine: every sentence of the interface's documents is a named case, and
// an engine that passes them all is a good one. The fake and the llama engine pass the same cases.
//
//	func TestEngine(t *testing.T) {
//		enginetest.Run(t, enginetest.Target{Factory: factory, Request: request})
//	}
//
// The suite knows no engine: it never asks for a backend's name, and every engine has the same cases under the same names. A case
// that an engine cannot pass is skipped by the ability that the engine lacks. Where an engine cannot be asked for something (to be
// slow, to be lost), the target leaves the field empty; any other ability the target names in Without, with the reason.
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
	Lasting    Category = "lasting"    // what many sessions leave, and a new engine after a lost one
	Reserved   Category = "reserved"   // reserved features are refused
)

// Categories are all of them, in the order in which Run runs them.
func Categories() []Category {
	return []Category{
		Lifecycle, Load, Open, Batches, Reserved, Outputs, Parity, Isolation, GoingBack, Marking, Copying, Cancelling, Sampling, Text,
		Observing, Ownership, Closing, Faults, Lasting,
	}
}

// Ability is something that a case needs and not every engine has. A case that is skipped says so as `without ABILITY: reason`.
type Ability string

// The abilities.
const (
	Slowness        Ability = "slowness"          // Target.Slow
	Losing          Ability = "losing"            // Target.Lost
	ComputingNaN    Ability = "computing_nan"     // Target.NaN
	EndOfGeneration Ability = "end_of_generation" // Target.EndOfGeneration
	BadFiles        Ability = "bad_files"         // Target.BadLoads
	HoldingMarks    Ability = "holding_marks"     // CacheAbility.Marks; a cache that goes back to any length needs none
	HavingTemplate  Ability = "chat_template"     // in the model's header
	LackingTemplate Ability = "no_chat_template"  // in the model's header
	TellingMemory   Ability = "telling_memory"    // ShardInfo.Memory
	AnyBytes        Ability = "any_bytes"         // text that is no UTF-8
	Grammars        Ability = "grammars"          // sampling.grammar is ON
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

	// Churn is how many sessions come and go in the case about leaks; 0: 10,000. Less is for engines to which that takes long.
	Churn int

	// Without names abilities that the engine is known to lack, each with the reason.
	Without map[Ability]string
	// Skip names categories that the engine is known to miss, each with the reason.
	Skip map[Category]string
}

// lacks is why the target has no ability; "": it has it.
func (t Target) lacks(a Ability) string {
	missing := map[Ability]bool{
		Slowness: t.Slow == nil, Losing: t.Lost == nil, ComputingNaN: t.NaN == nil, EndOfGeneration: t.EndOfGeneration == nil,
		BadFiles: len(t.BadLoads) == 0,
	}
	if reason := t.Without[a]; reason != "" || !missing[a] {
		return reason
	}
	return "the target has none"
}

// needs skips a case where the target has no ability for it.
func (s suite) needs(a Ability, run func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) {
		if reason := s.lacks(a); reason != "" {
			t.Skipf("without %s: %s", a, reason)
		}
		run(t)
	}
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
	cases := s.cases()
	for _, category := range Categories() {
		reason, skipped := s.Skip[category]
		t.Run(string(category), func(t *testing.T) {
			for _, c := range cases[category] {
				t.Run(c.name, func(t *testing.T) {
					if skipped {
						t.Skipf("without %s: %s", category, reason)
					}
					c.run(t)
				})
			}
		})
	}
	if err := goleak.Find(before); err != nil {
		t.Errorf("goroutines are left after every engine was closed: %v", err)
	}
}

// cases are those of every category.
func (s suite) cases() map[Category][]testCase {
	return map[Category][]testCase{
		Lifecycle:  s.lifecycleCases(),
		Load:       s.loadCases(),
		Open:       s.openCases(),
		Batches:    s.batchCases(),
		Reserved:   s.reservedCases(),
		Outputs:    s.outputCases(),
		Parity:     s.parityCases(),
		Isolation:  s.isolationCases(),
		GoingBack:  s.truncateCases(),
		Marking:    s.markCases(),
		Copying:    s.copyCases(),
		Cancelling: s.cancelCases(),
		Sampling:   append(s.samplingCases(), s.grammarCases()...),
		Text:       append(s.textCases(), s.chatCases()...),
		Observing:  s.observeCases(),
		Ownership:  s.ownershipCases(),
		Closing:    s.closeCases(),
		Faults:     s.faultCases(),
		Lasting:    s.lastingCases(),
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
