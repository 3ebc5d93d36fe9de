package mutants

const (
	answer  = "services/worker/internal/session/answer.go"
	outcome = "services/worker/internal/session/outcome.go"
	caches  = "services/worker/internal/session/cache.go"
	hop     = "services/worker/internal/session/hop.go"
	apply   = "services/worker/internal/session/live/apply.go"
	chain   = "libs/client/cachehash/cachehash.go"
)

// flowMutants give and take credit and room otherwise than was said.
func flowMutants() []Mutant {
	return []Mutant{
		{"flow.window-off-by-one", []string{"FLO-2"}, hold, "!c.flow.in.has(1, int64(size))", "!c.flow.in.has(0, int64(size))"},
		{"flow.credit-not-taken", []string{"FLO-2"}, hold, "c.flow.in.take(1, int64(size))", "c.flow.in.take(0, int64(size))"},
		{"flow.credit-twice", []string{"FLO-1"}, flow, "\ts.refunded = true\n", "\ts.refunded = s.id%2 == 0\n"},
		{"flow.credit-of-failed-steps-lost", []string{"FLO-1"}, unwind, "\ts.frames = nil\n\tc.refund(s)\n", "\ts.frames = nil\n"},
		{"flow.credit-of-truncations-lost", []string{"FLO-1"}, pump, "\t\t\tc.refund(s)\n\t\t\tc.truncated(s)", "\t\t\tc.truncated(s)"},
		{"flow.window-never-grows", []string{"FLO-9"}, flow, "if more := min(window.steps, int64(WindowSteps(limits.MaxWindowSteps, c.opened.GetAbility()))-window.steps); more > 0 {", "if more := int64(0); more > 0 {"},
		{"flow.window-grows-without-use", []string{"FLO-9"}, flow, "\tif s.tightSteps {\n", "\t{\n"},
		{"flow.window-without-end", []string{"FLO-9"}, flow, "min(window.steps, int64(WindowSteps(limits.MaxWindowSteps, c.opened.GetAbility()))-window.steps)", "window.steps"},
		{"flow.buffered-not-counted", []string{"FLO-7"}, flow, "n += uint64(cap(s.data)) + s.frames.held()", "_ = s"},
		{"flow.buffered-for-ever", []string{"FLO-7"}, apply, "\ts.over = true\n\ts.count(0)\n", "\ts.over = true\n"},
		{"flow.one-token-beyond-the-room", []string{"FLO-4"}, pump, "if !c.flow.receive.has(1, 0) {", "if !c.flow.receive.has(0, 0) {"},
	}
}

// limitMutants forget what a principal may have.
func limitMutants() []Mutant {
	return []Mutant{
		{"limit.control-not-counted", []string{"LIM-2"}, worker, "case *workerpb.SessionRequest_CancelStep, *workerpb.SessionRequest_ReceiveCredit, *workerpb.SessionRequest_Close:", "case *workerpb.SessionRequest_Close:"},
		{"limit.metadata-of-any-size", []string{"LIM-3"}, server, "grpc.MaxHeaderListSize(options.MetadataBytes)", "grpc.MaxHeaderListSize(1<<24)"},
		{"limit.messages-of-any-size", []string{"LIM-3"}, server, "grpc.MaxRecvMsgSize(size)", "grpc.MaxRecvMsgSize(1<<30)"},
		{"limit.pings-at-any-rate", []string{"LIM-5"}, server, "MinTime: options.pingInterval()", "MinTime: time.Nanosecond"},
		{"limit.not-told", []string{"CAP-6"}, capability, "Handshake: durationpb.New(o.Handshake), ", ""},
	}
}

// runMutants lose tokens, or do not know when to end.
func runMutants() []Mutant {
	return []Mutant{
		{"run.indices-from-one", []string{"GEN-2"}, outcome, "StepId: s.id, Index: proto.Uint32(s.sampled), Id", "StepId: s.id, Index: proto.Uint32(s.sampled + 1), Id"},
		{"run.last-not-marked", []string{"GEN-2"}, outcome, "c.sampled(s, t, ended)", "c.sampled(s, t, false)"},
		{"run.one-token-more", []string{"GEN-1"}, outcome, "case n >= r.max:", "case n > r.max:"},
		{"run.stop-ids-ignored", []string{"GEN-1"}, outcome, "case slices.Contains(r.stops, uint32(t.Token)):", "case slices.Contains(r.stops, uint32(t.Token)) && false:"},
		{"run.stop-called-length", []string{"GEN-1"}, outcome, "return workerpb.Finish_FINISH_STOP_TOKEN", "return workerpb.Finish_FINISH_LENGTH"},
		{"run.ignores-the-end", []string{"GEN-1"}, hold, "anyEnd: !g.GetIgnoreEog()", "anyEnd: false"},
		{"run.ends-though-told-not-to", []string{"GEN-1"}, hold, "anyEnd: !g.GetIgnoreEog()", "anyEnd: true"},
	}
}

// timeMutants wait too long, or blame another.
func timeMutants() []Mutant {
	return []Mutant{
		{"time.budget-does-not-run", []string{"TIM-1"}, hold, "s.received, s.frames = c.now, nil\n\ts.deadline = c.now.Add(s.message.GetBudget().AsDuration())",
			"s.received, s.frames = c.now, nil\n\ts.deadline = c.now.Add(time.Hour)"},
		{"time.frames-wait-for-ever", []string{"FLO-6"}, hold, "c.usage.bytesIn += uint64(len(data))\n\ts.deadline = c.now.Add(m.GetBudget().AsDuration())",
			"s.deadline = c.now.Add(time.Hour)"},
		{"time.gap-not-watched", []string{"GEN-6"}, outcome, "r.gapTo = c.now.Add(r.gap + 2*linkSlack)", "r.gapTo = c.now.Add(time.Hour)"},
		{"time.next-hop-waited-for", []string{"FEN-6"}, hop, "const linkSlack = 200 * time.Millisecond", "const linkSlack = 20 * time.Second"},
		{"time.late-step-succeeds-elsewhere", []string{"TIM-2"}, ending, "c.fire(tables.SessionEventDownstreamBroken, cause{err: c.lost(nil)})", "c.fire(tables.SessionEventDownstreamBroken, cause{err: c.mine(c.late(s))})"},
		{"time.late-open-blames-itself", []string{"OPN-17", "TIM-2"}, ending, "if c.opening.stage == stageDial {", "if false {"},
		{"time.open-waits-for-ever", []string{"OPN-17"}, opening, "c.openDeadline = c.now.Add(o.GetBudget().AsDuration())", "c.openDeadline = c.now.Add(time.Hour)"},
	}
}

// cacheMutants say something else of the cache than is so.
func cacheMutants() []Mutant {
	return []Mutant{
		{"cache.stale-hash", []string{"CAC-1"}, caches, "Length: proto.Uint32(c.length()), ChainHash: c.hash(c.length()), Reach: spansOf(c.reach),",
			"Length: proto.Uint32(c.length()), ChainHash: c.hash(max(c.length(), 1) - 1), Reach: spansOf(c.reach),"},
		{"cache.big-endian-hash", []string{"CAC-1"}, chain, "binary.LittleEndian.PutUint32", "binary.BigEndian.PutUint32"},
		{"cache.hash-of-nothing", []string{"CAC-1"}, chain, "sum := sha256.Sum256(fingerprint[:])", "sum := sha256.Sum256(fingerprint[:31])"},
		{"cache.reach-without-zero", []string{"CAC-3"}, caches, "From: proto.Uint32(uint32(s.From)), To: proto", "From: proto.Uint32(max(uint32(s.From), 1)), To: proto"},
		{"cache.reach-of-this-hop-alone", []string{"CAC-3", "STP-9"}, answer, "Reach: spansOf(meet(c.cache.reach, c.belowReach)),\n", "Reach: spansOf(c.cache.reach),\n"},
		{"cache.reach-one-short", []string{"CAC-5"}, caches, "To: proto.Uint32(uint32(s.To))}", "To: proto.Uint32(max(uint32(s.To), 1) - 1)}"},
		{"cache.length-not-told", []string{"STP-3", "STP-2"}, caches, "Length: proto.Uint32(c.length()), ChainHash: c.hash(c.length()), Capacity", "ChainHash: c.hash(c.length()), Capacity"},
		{"cache.not-made-equal", []string{"OPN-14"}, opening, "if c.cache.length() > c.opening.target {", "if false {"},
		{"cache.other-tokens-adopted", []string{"OPN-14"}, opening, "n <= c.cache.length() && !c.cache.at(n, held.GetChainHash())", "n == 1<<31"},
	}
}

// chainMutants forget the hops below.
func chainMutants() []Mutant {
	return []Mutant{
		{"chain.other-tokens-taken", []string{"FEN-7"}, answer, "case !c.cache.at(m.GetCache().GetLength(), m.GetCache().GetChainHash()):", "case false:"},
		{"chain.token-of-any-index", []string{"GEN-2"}, answer, "if t.GetIndex() != s.sampled || t.Id == nil {", "if t.Id == nil {"},
		{"chain.unasked-result-taken", []string{"STP-8"}, answer, "\tcase s == nil || !s.passed || s.answer != nil || s.refused != nil:", "\tcase s == nil:\n\t\treturn\n\tcase !s.passed || s.answer != nil || s.refused != nil:"},
		{"chain.steps-of-the-strongest", []string{"OPN-15"}, opening, "min(o.MaxStepTokens, b.GetMaxStepTokens())", "max(o.MaxStepTokens, b.GetMaxStepTokens())"},
		{"chain.frames-of-the-strongest", []string{"OPN-15"}, opening, "min(o.FrameBytes, b.GetFrameBytes())", "o.FrameBytes"},
		{"chain.ability-of-the-strongest", []string{"OPN-15"}, marks, "max(a.GetTruncate(), b.GetTruncate())", "min(a.GetTruncate(), b.GetTruncate())"},
		{"chain.linger-of-the-longest", []string{"OPN-15"}, opening, "if b.GetLinger().AsDuration() < c.linger {", "if b.GetLinger().AsDuration() > c.linger {"},
	}
}
