package mutants

const (
	marks    = "services/worker/internal/session/mark.go"
	prefix   = "services/worker/internal/session/prefix.go"
	prefixes = "services/worker/internal/session/live/prefix.go"
)

// markMutants go back to where they cannot, or not to where they could.
func markMutants() []Mutant {
	return []Mutant{
		{"mark.none-before-a-step", []string{"MRK-1"}, pump, "w.Unmark, w.Mark = positions(unmark), mark != nil", "w.Unmark = positions(unmark)"},
		{"mark.not-dropped", []string{"MRK-1"}, pump, "w.Unmark, w.Mark = positions(unmark), mark != nil", "w.Mark = mark != nil"},
		{"mark.needed-one-dropped", []string{"MRK-1"}, marks, "if !c.needs(m) && (idle < 0", "if (m.at > 0 || !c.needs(m)) && (idle < 0"},
		{"mark.end-of-prefill-dropped", []string{"MRK-4"}, marks, "idle < 0 || c.cache.marks[idle].at == end", "idle < 0 || end == 1<<31"},
		{"mark.more-steps-than-marks", []string{"MRK-3"}, marks, "return min(steps, max(a.GetMarks(), 1))", "return steps"},
		{"mark.counted-down-by-any", []string{"MRK-2"}, marks, "marks = b.GetMarks()\n", "marks = min(marks, b.GetMarks())\n"},
		{"mark.reach-of-the-next-hop-ignored", []string{"FEN-5", "CAC-3"}, pump, "!(c.cache.canBe(to) && (c.place.last || holds(c.belowReach, to)))", "!c.cache.canBe(to)"},
		{"mark.reach-too-large", []string{"CAC-3"}, caches, "c.reach = s.Reach\n\tc.dropBehind", "c.reach = []engine.Span{{To: s.Length}}\n\tc.dropBehind"},
	}
}

// prefixMutants keep what nobody asked to be kept, give it to whom it does not belong, or lose it.
func prefixMutants() []Mutant {
	return []Mutant{
		{"prefix.kept-unasked", []string{"KEP-1"}, ending, "case c.keep && c.job == nil", "case c.job == nil"},
		{"prefix.never-kept", []string{"KEP-1"}, core, "c.keep = kind.Close.GetKeepPrefix()", "c.keep = false"},
		{"prefix.keep-not-passed-on", []string{"KEP-1"}, ending, "Close: &workerpb.Close{KeepPrefix: c.keep}", "Close: &workerpb.Close{}"},
		{"prefix.of-any-principal", []string{"KEP-5"}, prefixes, "if x.domain != of {\n\t\t\tcontinue", "if false {\n\t\t\tcontinue"},
		{"prefix.principals-not-told-apart", []string{"KEP-5"}, prefixes, "[]byte(c.Principal), []byte(c.OnBehalfOf), within}", "[]byte(c.Principal), within}"},
		{"prefix.moved-not-copied", []string{"KEP-3"}, prefixes, "\tp.touch(best)\n\terr := p.scheduler.Submit", "\tdefer p.drop(len(p.all) - 1)\n\terr := p.scheduler.Submit"},
		{"prefix.hash-not-compared", []string{"KEP-4"}, prefix, "ok && copied && string(h[:]) == string(o.GetChainHash()) && n <= most", "ok && copied && len(h) > 0 && n <= most"},
		{"prefix.longer-than-the-room", []string{"KEP-4"}, prefix, "string(o.GetChainHash()) && n <= most", "string(o.GetChainHash()) && most > 0"},
		{"prefix.shortest-taken", []string{"KEP-2"}, prefix, "longest = max(longest, n)", "longest = n"},
		{"prefix.offers-not-struck", []string{"KEP-2"}, prefix, "if c.cache.canBe(o.GetLength()) && c.cache.at(o.GetLength(), o.GetChainHash()) {", "if o.GetLength() > 0 {"},
		{"prefix.holds-its-room", []string{"KEP-6"}, live, "return s.residence.prefixes.evict() || s.directory", "return s.directory"},
		{"prefix.left-by-a-failed-open", []string{"KEP-7"}, ending, "c.cache.length() > 0 && !failed", "c.cache.length() > 0 && (!failed || c.linger > 0)"},
		{"prefix.domain-from-a-driver", []string{"KEP-8"}, checkOpen, "case len(o.GetCacheDomain()) > 0:", "case false:"},
		{"prefix.counted-as-nothing", []string{"KEP-1"}, prefixes, "\tp.use.Tokens += uint64(k.Reserved)\n\tp.use.Kept++", "\tp.use.Tokens += uint64(k.Reserved)\n\tp.use.Kept += 0"},
	}
}
