package mutants

const (
	checkStep = "services/worker/internal/session/checkstep.go"
	hold      = "services/worker/internal/session/hold.go"
	pump      = "services/worker/internal/session/pump.go"
	unwind    = "services/worker/internal/session/unwind.go"
	steps     = "services/worker/internal/session/step.go"
	sampling  = "services/worker/internal/session/sampling.go"
	flow      = "services/worker/internal/session/flow.go"
)

// stepMutants let a step through that must fail, or fail it otherwise.
func stepMutants() []Mutant {
	return []Mutant{
		{"step.builds-on-itself", []string{"VER-2"}, checkStep, "s.GetAfter() >= s.GetStepId()", "s.GetAfter() > s.GetStepId()"},
		{"step.length-always-optional", []string{"VER-2", "STP-3"}, checkStep, "if !r.runBefore {", "if false {"},
		{"step.hash-of-15-bytes", []string{"VER-2"}, checkStep, "len(s.GetExpectCache().GetChainHash()) != 16", "len(s.GetExpectCache().GetChainHash()) > 16"},
		{"step.budget-zero", []string{"VER-2"}, checkStep, "s.GetBudget() == nil || !within(s.GetBudget(), 1, maxDuration)", "s.GetBudget() == nil"},
		{"step.one-token-too-many", []string{"CAP-6", "OPN-15"}, checkStep, "n > int(r.stepTokens)", "n > int(r.stepTokens)+1"},
		{"step.no-tokens", []string{"VER-2"}, checkStep, "n == 0 || n > int", "n > int"},
	}
}

// samplingMutants draw otherwise than they are told.
func samplingMutants() []Mutant {
	return []Mutant{
		{"sampling.top-p-zero", []string{"VER-2"}, checkStep, "(!between(s.TopP, 0, 1) || s.GetTopP() == 0)", "!between(s.TopP, 0, 1)"},
		{"sampling.typical-zero", []string{"VER-2"}, checkStep, "(!between(s.Typical, 0, 1) || s.GetTypical() == 0)", "!between(s.Typical, 0, 1)"},
		{"sampling.typical-ignored", []string{"GEN-4"}, sampling, "Typical: s.GetTypical(),", ""},
		{"sampling.infinite-temperature", []string{"VER-2"}, checkStep, "!between(s.Temperature, 0, math.MaxFloat32)", "!between(s.Temperature, 0, math.Inf(1))"},
		{"sampling.penalty-bound", []string{"VER-2"}, checkStep, "!between(s.FrequencyPenalty, -2, 2)", "!between(s.FrequencyPenalty, -2, 3)"},
		{"sampling.21-alternatives", []string{"VER-2"}, checkStep, "case s.GetLogprobs() > 20:", "case s.GetLogprobs() > 21:"},
		{"sampling.decoded-end-untold", []string{"STP-15"}, outcome, "if r.Sample.EndOfGeneration {", "if false {"},
		{"sampling.bias-may-be-nan", []string{"VER-2"}, checkStep, " || b.GetBias() != b.GetBias()", ""},
	}
}

// fenceMutants lose the order of steps, or what a failed one leaves.
func fenceMutants() []Mutant {
	return []Mutant{
		{"fence.after-not-looked-at", []string{"STP-2"}, pump, "case s.after != c.steps.top():", "case false:"},
		{"fence.predecessor-forgotten", []string{"STP-2"}, pump, "case s.after != c.steps.top() && c.steps.hasFailed(s.after):", "case false:"},
		{"fence.length-not-compared", []string{"STP-3"}, pump, "case expect.GetLength() != length && expect != nil && expect.Length != nil:", "case false:"},
		{"fence.hash-not-compared", []string{"STP-3"}, pump, "case len(expect.GetChainHash()) > 0 && !c.cache.at(length, expect.GetChainHash()):", "case false:"},
		{"fence.context-off-by-one", []string{"STP-5"}, pump, "if need > uint64(c.open.GetContextTokens()) {", "if need > uint64(c.open.GetContextTokens())+1 {"},
		{"fence.run-counted-whole", []string{"STP-5"}, pump, "need += uint64(s.run.max) - 1", "need += uint64(s.run.max)"},
		{"fence.truncate-does-not-wait", []string{"FEN-4"}, pump, "s.frames != nil || s.truncate() != nil && c.steps.open[0] != s", "s.frames != nil"},
		{"fence.truncate-can-be-cancelled", []string{"FEN-4"}, steps, "return s.truncate() != nil && (!c.place.first", "return false && (!c.place.first"},
	}
}
