package mutants

const (
	draws  = "libs/engine/fake/sample.go"
	drains = "services/worker/internal/shard/drain.go"
)

// outsideMutants are what a careless reader of the contract would get wrong, thought of without looking at the cases.
func outsideMutants() []Mutant {
	return []Mutant{
		{"outside.attempt-signed", []string{"OPN-4"}, core, "open.GetAttempt() <= c.attempt", "int64(open.GetAttempt()) <= int64(c.attempt)"},
		{"outside.greatest-id-among-equals", []string{"GEN-4"}, draws, "cmp.Compare(a.id, b.id)", "cmp.Compare(b.id, a.id)"},
		{"outside.penalties-see-one-token", []string{"GEN-4"}, draws, "penalise(candidates, tokens, s)\n\tfor", "penalise(candidates, tokens[len(tokens)-1:], s)\n\tfor"},
		{"outside.logprob-after-penalties", []string{"GEN-5"}, draws, "sample.Logprob = float32(raw[chosen].logit - norm)", "sample.Logprob = float32(candidates[0].logit - logSumExp(candidates))"},
		{"outside.length-zero-is-none", []string{"STP-3"}, pump, "expect != nil && expect.Length != nil:", "expect.GetLength() != 0:"},
		{"outside.after-zero-always-fits", []string{"STP-2"}, pump, "case s.after != c.steps.top():", "case s.after != c.steps.top() && s.after != 0:"},
		{"outside.ids-without-gap", []string{"STP-1"}, hold, "case m.GetStepId() <= c.steps.last:", "case m.GetStepId() != c.steps.last+1:"},
		{"outside.receive-credit-replaces", []string{"FLO-4"}, hold, "c.flow.receive.give(uint64(kind.ReceiveCredit.GetTokens())", "c.flow.receive = credit{}\n\t\tc.flow.receive.give(uint64(kind.ReceiveCredit.GetTokens())"},
		{"outside.truncate-above-fails", []string{"FEN-5"}, pump, "to > 0 && to < length && !(", "to > 0 && !("},
		{"outside.longer-drain-wins", []string{"SHD-4"}, drains, "deadline.Before(d.deadline)", "deadline.After(d.deadline)"},
		{"outside.drain-told-as-configured", []string{"SHD-4"}, machine, "s.options.Residents.Drain(s.drain.left())", "s.options.Residents.Drain(s.options.Drain)"},
		{"outside.draining-is-not-ready", []string{"OPN-18"}, directory, "fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, \"worker %s takes", "fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, \"worker %s takes"},
		{"outside.stop-id-not-sent", []string{"GEN-2"}, outcome, "\tc.sampled(s, t, ended)\n", "\tif s.finish != workerpb.Finish_FINISH_STOP_TOKEN {\n\t\tc.sampled(s, t, ended)\n\t}\n"},
		{"outside.first-stop-id-alone", []string{"GEN-1"}, outcome, "slices.Contains(r.stops, uint32(t.Token))", "slices.Contains(r.stops[:min(1, len(r.stops))], uint32(t.Token))"},
		{"outside.unknown-session-is-an-error", []string{"CAN-4"}, directory, "d.absent(event) // the table answers OK\n\t\treturn nil", "return fault.New(workerpb.ErrorCode_ERROR_CODE_SESSION_UNKNOWN, \"session %v\", id)"},
		{"outside.hops-from-the-tail", []string{"OPN-13"}, opening, "o.Hops = append(o.Hops, h)", "o.Hops = append([]*workerpb.HopReport{h}, o.Hops...)"},
		{"outside.reach-of-before", []string{"CAC-3", "CAC-5"}, caches, "\tc.reach = s.Reach\n\tc.dropBehind", "\tc.dropBehind"},
		{"outside.ready-while-draining", []string{"HLT-1", "HLT-4"}, machine, "return fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, \"\")\n\tcase tables.ShardLoading", "return nil\n\tcase tables.ShardLoading"},
		{"outside.keeping-cancel-is-for-runs", []string{"CAN-1", "FEN-3"}, unwind, "\t\tif s.fault == nil {\n\t\t\ts.fault = c.cancelledBy()", "\t\tif s.run == nil && !m.GetUndo() {\n\t\t\tcontinue\n\t\t}\n\t\tif s.fault == nil {\n\t\t\ts.fault = c.cancelledBy()"},
		{"outside.credit-without-bytes", []string{"FLO-1"}, flow, "c.credit(1, s.size)", "c.credit(1, 0)"},
	}
}
