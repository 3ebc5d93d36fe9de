package mutants

const (
	capability = "services/worker/internal/rpc/capability.go"
	worker     = "services/worker/internal/rpc/worker.go"
	shard      = "services/worker/internal/rpc/shard.go"
	server     = "services/worker/internal/rpc/server.go"
	text       = "services/worker/internal/rpc/text.go"
	features   = "services/worker/internal/session/live/live.go"
	report     = "services/worker/internal/session/live/report.go"
	upstream   = "services/worker/internal/session/live/upstream.go"

	batches = "services/worker/internal/batch/scheduler.go"
	packing = "services/worker/internal/batch/pack.go"
	faults  = "libs/client/fault/fault.go"
	wire    = "libs/client/fault/wire.go"
)

// errorMutants tell errors otherwise than the table.
func errorMutants() []Mutant {
	return []Mutant{
		{"error.no-retry-after", []string{"ERR-2", "OPN-10"}, wire, "p.RetryAfter = durationpb.New(e.RetryAfter)", "_ = durationpb.New(e.RetryAfter)"},
		{"error.predecessor-waits", []string{"STP-2"}, faults, "if retries(e.Recovery) && code != workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED {", "if retries(e.Recovery) {"},
		{"error.key-told", []string{"ERR-8"}, live, "\"session %v has another key\", s.id)", "\"session %v has another key than %x\", s.id, key)"},
		{"error.no-origin", []string{"ERR-1"}, access, "return f.At(me, me)", "return f.At(nil, me)"},
		{"error.stream-ends-well", []string{"ERR-6"}, ending, "{Closed: closed}})\n\tc.emit(EndUp{err})", "{Closed: closed}})\n\tc.emit(EndUp{nil})"},
		{"error.closed-without-why", []string{"ERR-6", "ERR-1"}, ending, "closed.Error = err.Proto()", "closed.Error = nil"},
		{"error.no-closed", []string{"ERR-6"}, ending, "c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: closed}})", "_ = closed"},
		{"error.usage-not-told", []string{"HLT-5", "ERR-6"}, ending, "Reason: reason, Usage: used,", "Reason: reason, Usage: map[bool]*workerpb.Usage{false: used}[true],"},
	}
}

// serviceMutants are in what a worker says of itself, and in its other services.
func serviceMutants() []Mutant {
	return []Mutant{
		{"capability.head-everywhere", []string{"CAP-5"}, capability, "Head: l.Info.Head(),", "Head: true,"},
		{"capability.no-boundary", []string{"CAP-5"}, capability, "BoundaryIn: layoutOf(l.Info.BoundaryIn)", "BoundaryIn: layoutOf(nil)"},
		{"capability.reserved-called-off", []string{"CAP-4"}, features, "list = append(list, not(name, kept,", "list = append(list, not(name, min(off, kept),"},
		{"capability.off-without-reason", []string{"CAP-4"}, features, "Status: workerpb.FeatureStatus(f.Status), Reason: f.Reason}", "Status: workerpb.FeatureStatus(f.Status)}"},
		{"capability.feature-not-listed", []string{"CAP-4"}, features, "engineFeature(c, engine.FeatureChat), engineFeature(c, engine.FeatureGrammar), engineFeature", "engineFeature(c, engine.FeatureChat), engineFeature"},
		{"health.probe-not-told", []string{"HLT-1"}, worker, "if status.Probed {", "if false {"},
		{"health.sessions-not-counted", []string{"HLT-1"}, report, "proto.Uint32(open), proto.Uint32(lingering)", "proto.Uint32(0), proto.Uint32(lingering)"},
		{"health.room-not-counted", []string{"HLT-1"}, report, "reserved += uint64(s.info().ContextTokens)", "reserved += 0"},
		{"health.standard-service-unnamed", []string{"HLT-4"}, server, "\"\", workerpb.WorkerService_ServiceDesc.ServiceName, ", "\"\", "},
		{"health.watch-waits-for-a-change", []string{"HLT-3"}, worker, "\tfor {\n\t\tstatus, changed := w.server.options.Shard.Watch()\n", "\tfor {\n\t\tstatus, changed := w.server.options.Shard.Watch()\n\t\t<-changed\n"},
		{"metrics.tokens-not-counted", []string{"HLT-5"}, report, "t.TokensEvaluated += u.GetTokensEvaluated()", "_ = t"},
		{"metrics.rows-not-counted", []string{"HLT-5"}, batches, "s.totals.Rows += rows", "_ = rows"},
		{"metrics.sessions-not-counted", []string{"HLT-5"}, report, "d.totals.opened++", "d.totals.opened += 0"},
		{"metrics.errors-not-counted", []string{"HLT-5"}, directory, "d.totals.errors[code]++", "d.totals.errors[code] += 0"},
		{"metrics.samples-not-counted", []string{"HLT-5"}, outcome, "c.usage.sampled++", "c.usage.sampled += 0"},
		{"stream.end-not-noticed", []string{"CAN-6"}, upstream, "u.session.upstreamEnded(u)", "_ = u.session"},
		{"text.any-model", []string{"TXT-2"}, text, "case !bytes.Equal(fingerprint, l.Fingerprint[:]):", "case bytes.Equal(fingerprint, nil):"},
		{"text.spaces-trimmed", []string{"TXT-3"}, text, "return &workerpb.DetokenizeResponse{Data: data}, err", "return &workerpb.DetokenizeResponse{Data: bytes.TrimSpace(data)}, err"},
		{"text.chat-of-any-model", []string{"TXT-2"}, text, "text, err := t.chat(r.GetFingerprint())\n\tif err != nil {\n\t\treturn nil, err\n\t}\n\tprompt", "f := t.server.options.Shard.Status().Loaded.Fingerprint\n\ttext, err := t.chat(f[:])\n\tif err != nil {\n\t\treturn nil, err\n\t}\n\tprompt"},
		{"text.template-denied", []string{"TXT-6"}, text, "if !text.HasChatTemplate() {", "if text.HasChatTemplate() {"},
		{"text.absent-is-no-generation-prompt", []string{"TXT-6"}, text, "r.AddGenerationPrompt == nil || r.GetAddGenerationPrompt()", "r.GetAddGenerationPrompt()"},
		{"text.generation-prompt-always", []string{"TXT-6"}, text, "r.AddGenerationPrompt == nil || r.GetAddGenerationPrompt()", "true"},
		{"text.prompt-without-bos", []string{"TXT-7"}, text, "Tokens: numbersOf(prompt.Tokens)", "Tokens: numbersOf(prompt.Tokens)[1:]"},
		{"text.refusal-swallowed", []string{"TXT-8"}, text, "if err != nil {\n\t\treturn nil, err\n\t}\n\tanswer := &workerpb.RenderChatResponse{", "answer := &workerpb.RenderChatResponse{"},
		{"text.tools-not-read", []string{"TXT-8"}, text, "Tools: r.GetToolsJson(), ", ""},
		{"text.parser-not-given", []string{"TXT-9"}, text, "Parser: prompt.Parser", "Parser: nil"},
		{"text.answer-cut", []string{"TXT-9"}, text, "r.GetText(), r.GetPartial()", "string(bytes.TrimRight([]byte(r.GetText()), \".\")), r.GetPartial()"},
		{"shard.load-without-a-name", []string{"VER-2"}, shard, "r.GetModel() == \"\" || len", "len"},
		{"shard.load-read-leniently", []string{"VER-1"}, shard, "if err := s.server.strict(r); err != nil {\n\t\treturn shard.Order{}, err", "if err := s.server.strict(r); false {\n\t\treturn shard.Order{}, err"},
		{"hub.boundary-kept", []string{"HUB-1"}, outcome, "s.output = &workerpb.Output{Kind: &workerpb.Output_Boundary{Boundary: rowsOf(r.Boundary)}}", "s.output = nil"},
		{"hub.no-samples-at-the-tail", []string{"HUB-3"}, checkStep, "case r.hub && r.lastHop && !r.hop.Shard.Tail() && d", "case r.hub && r.lastHop && d"},
	}
}
