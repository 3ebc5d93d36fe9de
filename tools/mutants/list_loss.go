package mutants

const (
	suspects = "services/worker/internal/session/live/suspects.go"
	machine  = "services/worker/internal/shard/machine.go"
)

// lossMutants bring a fault of an engine back, or blame who had no part in it.
func lossMutants() []Mutant {
	return []Mutant{
		{"loss.replayed-once-more", []string{"LOS-5"}, suspects, "tooManyFaults = 2", "tooManyFaults = 3"},
		{"loss.condemned-at-once", []string{"LOS-5", "LOS-3"}, suspects, "tooManyFaults = 2", "tooManyFaults = 1"},
		{"loss.condemned-opens", []string{"LOS-5"}, directory, ".refusal(); err != nil {", ".refusal(); false {"},
		{"loss.bystanders-counted", []string{"LOS-5"}, live, "\tif why.Code == workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT {\n",
			"\tif why.Code == workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT {\n\t\ts.directory.suspects.lost(s.memory.who)\n"},
		{"loss.memory-not-counted", []string{"LOS-5"}, suspects, "r.fatal, r.code = r.fatal+1, code", "r.code = code"},
		{"loss.numeric-always-tried-again", []string{"LOS-6"}, suspects, "again := r.numeric", "again := r.numeric && false"},
		{"loss.numeric-never-tried-again", []string{"LOS-6"}, suspects, "again := r.numeric", "again := r.numeric || true"},
		{"loss.batch-shared-at-once", []string{"LOS-7"}, packing, "s.options.Deterministic || j.Alone || (*queue)[0].Alone", "s.options.Deterministic"},
		{"loss.no-restart", []string{"LOS-3"}, machine, "l.restart, l.after = true, s.nextRestart()", "l.restart, l.after = true, time.Hour"},
		{"loss.same-instance", []string{"LOS-3", "CAP-3"}, machine, "s.instance, s.served = s.loaded.Instance, time.Now()", "s.served = time.Now()\n\tif s.instance == [16]byte{} {\n\t\ts.instance = s.loaded.Instance\n\t}"},
		{"loss.called-a-drain", []string{"LOS-3"}, machine, "s.errand(s.evictor(s.loss()))", "_ = s.loss()"},
	}
}
