package fence

import "fmt"

// Names of the sets.
const (
	SetFixed  = "fixed"  // all rules hold
	SetAblate = "ablate" // each rule removed in turn gives a counterexample
	SetOpen   = "open"   // opening, adoption, broken links and lost engines, with and without its rules
)

// Case is one search and what it must give.
type Case struct {
	Set, Name string
	Broken    bool // a counterexample is wanted
	Large     bool // not for `mage test`
	run       func(Bounds) Verdict

	// For a counterexample that real workers are led through: the scenario's file, the letters of its steps, and the model
	// of its workers where that is no plain one.
	file, kinds, model string
}

// Run searches.
func (c Case) Run(b Bounds) Verdict { return c.run(b) }

// Judge is nil if the verdict is what the case must give; a bounded search has given what it found.
func (c Case) Judge(v Verdict) error {
	switch {
	case c.Broken && v.Broken == "":
		return fmt.Errorf("%s: %s: no counterexample in %d states: either another rule covers this one, or the check sees nothing", c.Set, c.Name, v.States)
	case !c.Broken && v.Broken != "":
		return fmt.Errorf("%s: %s: %s", c.Set, c.Name, v.Broken)
	}
	return nil
}

// Cases are all cases on the tables, in a fixed order.
func Cases(t *Tables) []Case {
	return append(append(fixedCases(t), ablateCases(t)...), openCases(t)...)
}

func (t *Tables) steps(r rules, sc scenario) func(Bounds) Verdict {
	return func(b Bounds) Verdict { return search[*state](&fence{r, sc, t.step}, b) }
}

// fixedCases are scenarios in which nothing may break.
func fixedCases(t *Tables) []Case {
	var all []Case
	add := func(large bool, name string, sc scenario) {
		all = append(all, Case{Set: SetFixed, Name: name, Large: large, run: t.steps(allRules(), sc)})
	}
	for _, overtake := range []bool{false, true} {
		for _, eager := range []bool{false, true} {
			large := !overtake || !eager
			how := fmt.Sprintf("overtake=%v eager=%v", overtake, eager)
			for _, kinds := range []string{"TTT", "TXT", "TTX"} {
				add(large || kinds == "TTT", kinds+" "+how, scenario{kinds: kinds, faults: 1, overtake: overtake, eager: eager, effect: true})
			}
			for _, kinds := range []string{"TG", "TGX", "GT"} {
				add(large || kinds != "TG", kinds+" "+how,
					scenario{kinds: kinds, tokens: 3, faults: 1, overtake: overtake, eager: eager, ring: true, effect: true})
			}
		}
	}
	for _, window := range []int8{1, 2} {
		add(true, fmt.Sprintf("TTT window %d", window), scenario{kinds: "TTT", faults: 1, overtake: true, effect: true, window: window})
	}
	add(false, "TTX window 1", scenario{kinds: "TTX", faults: 1, overtake: true, effect: true, window: 1})
	add(true, "TGX window 1", scenario{kinds: "TGX", tokens: 2, faults: 1, overtake: true, effect: true, window: 1, ring: true})
	add(false, "TX two faults", scenario{kinds: "TX", faults: 2, overtake: true})
	add(true, "TT two faults", scenario{kinds: "TT", faults: 2, overtake: true})
	add(true, "TTT two faults", scenario{kinds: "TTT", faults: 2, overtake: true})
	add(true, "TG two faults", scenario{kinds: "TG", tokens: 2, faults: 2, overtake: true, ring: true})
	for _, c := range append(cacheCases(), breakCases()...) {
		add(c.large, c.name, c.scenario)
	}
	return all
}

type cacheCase struct {
	name  string
	large bool
	scenario
}

// cacheCases are routes whose caches do not go back to every length.
func cacheCases() []cacheCase {
	none, window := [hops]cacheKind{cacheNone, cacheNone, cacheNone}, [hops]cacheKind{cacheWindow, cacheWindow, cacheWindow}
	mixed := [hops]cacheKind{cacheAny, cacheNone, cacheWindow}
	one, two := [hops]int8{1, 1, 1}, [hops]int8{2, 2, 2}
	return []cacheCase{
		{"untruncatable caches, a mark less than steps", false, scenario{kinds: "TDD", faults: 1, caches: none, marks: one, survives: true, back: true}},
		{"the same, a window within marks", false, scenario{kinds: "TDD", faults: 1, window: 1, caches: none, marks: one, survives: true, back: true, bounded: true}},
		{"untruncatable caches, two marks, overtaking", true, scenario{kinds: "TDDD", faults: 1, overtake: true, caches: none, marks: two, survives: true, back: true}},
		{"a prefill's end and two marks", false, scenario{kinds: "TDD", caches: none, marks: two, survives: true, back: true}},
		{"a prefill's end and two marks, eager", true, scenario{kinds: "TDD", faults: 1, overtake: true, eager: true, caches: none, marks: two, survives: true, back: true}},
		{"window caches, a mark", true, scenario{kinds: "TDDD", faults: 1, overtake: true, caches: window, marks: one, survives: true, back: true}},
		{"window caches, two marks, then truncated", false, scenario{kinds: "TDDD", caches: window, marks: two, survives: true, back: true}},
		{"none, window and any with unequal marks", true, scenario{kinds: "TDDD", faults: 1, overtake: true, caches: [hops]cacheKind{cacheNone, cacheWindow, cacheAny}, marks: [hops]int8{2, 1, 0}, survives: true, back: true}},
		{"any, none and window with unequal marks", true, scenario{kinds: "TDTD", faults: 1, overtake: true, caches: mixed, marks: [hops]int8{0, 1, 3}, survives: true, back: true}},
		{"a Truncate and untruncatable caches", true, scenario{kinds: "TXDD", faults: 1, overtake: true, caches: none, marks: one, survives: true, back: true}},
		{"a run and one mark", true, scenario{kinds: "TG", tokens: 2, faults: 1, overtake: true, ring: true, caches: none, marks: one, survives: true, back: true}},
		{"untruncatable caches, one mark, two faults", true, scenario{kinds: "TDD", faults: 2, caches: none, marks: one, survives: true, back: true}},
		{"untruncatable caches, marks", true, scenario{kinds: "TTT", faults: 1, overtake: true, caches: none, marks: [hops]int8{4, 4, 4}, survives: true}},
		{"untruncatable caches, window within marks", true, scenario{kinds: "TTT", faults: 1, overtake: true, window: 1, caches: none, marks: [hops]int8{4, 4, 4}, survives: true}},
		{"untruncatable caches, no marks", true, scenario{kinds: "TTT", faults: 1, overtake: true, caches: none}},
		{"window caches", true, scenario{kinds: "TTT", faults: 1, overtake: true, caches: window}},
		{"window caches, marks", true, scenario{kinds: "TTT", faults: 1, overtake: true, caches: window, marks: [hops]int8{4, 4, 4}, survives: true}},
		{"a route of any, none and window, marks", true, scenario{kinds: "TTT", faults: 1, overtake: true, caches: mixed, marks: [hops]int8{4, 4, 4}, survives: true}},
		{"a run on untruncatable caches", true, scenario{kinds: "TG", tokens: 3, faults: 1, overtake: true, ring: true, caches: none, marks: [hops]int8{3, 3, 3}, survives: true}},
		{"a run on window caches, marks", true, scenario{kinds: "TG", tokens: 3, faults: 1, overtake: true, ring: true, caches: window, marks: [hops]int8{3, 3, 3}, survives: true}},
	}
}
