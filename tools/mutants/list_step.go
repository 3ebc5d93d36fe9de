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
		{"step.vocabulary-off-by-one", []string{"STP-6"}, checkStep, "if id >= r.hop.Shard.Vocab {", "if id > r.hop.Shard.Vocab {"},
		{"step.id-without-its-place", []string{"STP-6"}, checkStep, "fmt.Sprintf(\"%s[%d]\", path, i),", "path+fmt.Sprint(\"\", i)[:0],"},
		{"step.stop-ids-unchecked", []string{"STP-6"}, checkStep, "checkIDs(r, \"step.generate.stop_tokens\", g.GetStopTokens())", "checkIDs(r, \"step.generate.stop_tokens\", nil)"},
		{"step.auxiliary-ignored", []string{"VER-8"}, checkStep, "if len(s.GetAuxiliary()) > 0 {", "if false {"},
		{"step.drafts-ignored", []string{"VER-8"}, checkStep, "case g.GetMtp() != nil:", "case false:"},
		{"step.want-assumed", []string{"VER-2"}, checkStep, "case d.GetWant() == workerpb.Want_WANT_UNSPECIFIED:", "case false:"},
		{"step.sampling-without-sample", []string{"VER-2"}, checkStep, "case samples != (d.GetSampling() != nil):", "case samples && d.GetSampling() == nil:"},
		{"step.run-in-hub-mode", []string{"GEN-9"}, checkStep, "case r.hub:", "case false:"},
		{"step.run-behind-the-head", []string{"GEN-9"}, checkStep, "case r.first && !r.hop.Shard.Head():", "case false:"},
		{"step.run-of-no-token", []string{"VER-2"}, checkStep, "case g.GetMaxTokens() == 0:", "case false:"},
		{"step.65-stop-ids", []string{"VER-2"}, checkStep, "len(g.GetStopTokens()) > 64", "len(g.GetStopTokens()) > 65"},
		{"step.truncate-to-nowhere", []string{"VER-2"}, checkStep, "if kind.Truncate.Length == nil {", "if false {"},
		{"step.boundary-at-the-head", []string{"STP-13"}, checkStep, "\t\tif b != nil {", "\t\tif false {"},
		{"step.boundary-of-other-rows", []string{"STP-13"}, checkStep, "case b.GetRows() != uint32(rows):", "case false:"},
		{"step.boundary-of-other-width", []string{"STP-13"}, checkStep, "case b.GetWidth() != width:", "case false:"},
		{"step.boundary-short-of-data", []string{"STP-13"}, checkStep, "size <= uint64(r.frameBytes) && uint64(len(b.GetData())) != size", "size <= uint64(r.frameBytes) && uint64(len(b.GetData())) > size"},
		{"step.reserved-encoding-read", []string{"VER-8"}, checkStep, "case b.GetEncoding() != workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32:", "case false:"},
		{"step.fault-ends-the-session", []string{"STP-7"}, checkStep, "e.Scope = workerpb.ErrorScope_ERROR_SCOPE_STEP", "e.Scope = workerpb.ErrorScope_ERROR_SCOPE_SESSION"},
		{"step.ids-may-repeat", []string{"STP-1"}, hold, "case m.GetStepId() <= c.steps.last:", "case m.GetStepId() < c.steps.last:"},
		{"step.ids-may-fall", []string{"STP-1"}, hold, "case m.GetStepId() <= c.steps.last:", "case m.GetStepId() == c.steps.last:"},
		{"step.frames-may-skip", []string{"FLO-5"}, flow, "index != c.index || uint64", "uint64"},
		{"step.frames-of-any-size", []string{"FLO-5"}, flow, "uint64(len(data)) != min(left, c.frame)", "uint64(len(data)) > left"},
		{"step.between-frames", []string{"FLO-5"}, hold, "case c.steps.incomplete():", "case false:"},
	}
}

// samplingMutants draw otherwise than they are told.
func samplingMutants() []Mutant {
	return []Mutant{
		{"sampling.top-p-zero", []string{"VER-2"}, checkStep, "(!between(s.TopP, 0, 1) || s.GetTopP() == 0)", "!between(s.TopP, 0, 1)"},
		{"sampling.infinite-temperature", []string{"VER-2"}, checkStep, "!between(s.Temperature, 0, math.MaxFloat32)", "!between(s.Temperature, 0, math.Inf(1))"},
		{"sampling.penalty-bound", []string{"VER-2"}, checkStep, "!between(s.FrequencyPenalty, -2, 2)", "!between(s.FrequencyPenalty, -2, 3)"},
		{"sampling.21-alternatives", []string{"VER-2"}, checkStep, "case s.GetLogprobs() > 20:", "case s.GetLogprobs() > 21:"},
		{"sampling.bias-may-be-nan", []string{"VER-2"}, checkStep, " || b.GetBias() != b.GetBias()", ""},
		{"sampling.grammar-ignored", []string{"VER-8"}, checkStep, "case s.GetGrammar() != nil && !r.hop.on(\"sampling.grammar\"):", "case false:"},
		{"sampling.seed-ignored", []string{"GEN-4"}, sampling, "Seed: s.GetSeed(),", "Seed: 1,"},
		{"sampling.seed-of-32-bits", []string{"GEN-4"}, sampling, "Seed: s.GetSeed(),", "Seed: s.GetSeed() & 0xffffffff,"},
		{"sampling.top-k-ignored", []string{"GEN-4"}, sampling, "TopK: s.GetTopK(), ", ""},
		{"sampling.min-p-ignored", []string{"GEN-4"}, sampling, "MinP: s.GetMinP(), ", ""},
		{"sampling.bias-ignored", []string{"GEN-4"}, sampling, "Bias: b.GetBias()})", "Bias: 0})"},
		{"sampling.one-alternative-less", []string{"GEN-5"}, sampling, "Logprobs: s.GetLogprobs(),", "Logprobs: max(s.GetLogprobs(), 1) - 1,"},
		{"sampling.no-logprob-at-zero", []string{"GEN-5"}, sampling, "WantLogprob: s.Logprobs != nil,", "WantLogprob: s.GetLogprobs() > 0,"},
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
		{"fence.run-wraps-around", []string{"STP-5"}, pump, "need += uint64(s.run.max) - 1", "need = uint64(uint32(need) + s.run.max - 1)"},
		{"fence.true-cache-not-told", []string{"STP-2", "STP-3"}, pump, "return fault.New(workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH, format, args...).\n\t\tWith(func(e *fault.Error) { e.Detail = c.cache.detail() })",
			"return fault.New(workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH, format, args...)"},
		{"fence.truncate-does-not-wait", []string{"FEN-4"}, pump, "s.frames != nil || s.truncate() != nil && c.steps.open[0] != s", "s.frames != nil"},
		{"fence.truncate-can-be-cancelled", []string{"FEN-4"}, steps, "return s.truncate() != nil && (!c.place.first", "return false && (!c.place.first"},
		{"fence.truncate-off-by-one", []string{"FEN-5"}, pump, "Length: engine.Pos(t.GetLength())}", "Length: engine.Pos(t.GetLength()) + 1}"},
		{"fence.cancel-ends-one-early", []string{"FEN-3"}, unwind, "s.id <= m.GetThrough() && !c.immune(s)", "s.id < m.GetThrough() && !c.immune(s)"},
		{"fence.cancel-swallowed", []string{"CAN-1", "GEN-7"}, unwind, "if c.cancels(m, s) {\n\t\t\tevent = ", "if c.cancels(m, s) && false {\n\t\t\tevent = "},
		{"fence.cancel-not-remembered", []string{"FEN-3"}, steps, "if to > q.last {\n\t\tq.cancels", "if false {\n\t\tq.cancels"},
		{"fence.cancel-reaches-further", []string{"FEN-3"}, steps, "span{max(from, q.last+1), to})", "span{max(from, q.last+1), to + 1})"},
		{"fence.cancel-backwards", []string{"VER-2"}, unwind, "m.GetStepId() == 0 || m.GetThrough() < m.GetStepId()", "m.GetStepId() == 0"},
		{"fence.not-undone", []string{"STP-10", "FEN-7"}, unwind, "case s.applied && length > s.start:", "case false:"},
		{"fence.undone-too-far", []string{"STP-10", "FEN-7"}, unwind, "return c.goBack(s.start)", "return c.goBack(max(s.start, 1) - 1)"},
		{"fence.undone-before-the-answer", []string{"FEN-1", "FEN-2"}, unwind, "case s.passed && s.answer == nil && s.refused == nil, c.job", "case c.job"},
		{"fence.cancel-not-passed-on", []string{"FEN-2", "CAN-1"}, unwind, "c.sendCancel(&workerpb.CancelStep{StepId: c.steps.unsent", "_ = (&workerpb.CancelStep{StepId: c.steps.unsent"},
		{"fence.cancel-passed-on-without-undo", []string{"FEN-2", "GEN-7"}, unwind, "Through: c.steps.through, Undo: true}", "Through: c.steps.through}"},
		{"fence.cache-not-told-on-failure", []string{"STP-10"}, unwind, "Error: s.fault.Proto(), Cache: c.routeCache(),", "Error: s.fault.Proto(),"},
	}
}
