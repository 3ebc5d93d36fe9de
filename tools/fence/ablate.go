package fence

import (
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/tablegen"
)

// ablateCases remove one rule each.
func ablateCases(t *Tables) []Case {
	none, window := [hops]cacheKind{cacheNone, cacheNone, cacheNone}, [hops]cacheKind{cacheWindow, cacheWindow, cacheWindow}
	last, one, two := [hops]cacheKind{cacheAny, cacheAny, cacheNone}, [hops]int8{1, 1, 1}, [hops]int8{2, 2, 2}
	var all []Case
	for _, a := range []struct {
		name   string
		file   string // of its scenario for real workers
		model  string
		remove func(*rules)
		scenario
	}{
		{"a forwarded step waits for the answer", "fence-failure-before-the-answer", "", func(r *rules) { r.wait = false }, scenario{kinds: "TTT", faults: 1, only: "c"}},
		{"the same, seen at rest", "fence-undone-before-the-answer", "", func(r *rules) { r.wait = false }, scenario{kinds: "TTT", faults: 1, only: "c", lasting: true}},
		{"CancelStep names through", "fence-cancel-overtakes-its-step", "", func(r *rules) { r.through = false }, scenario{kinds: "TTT", faults: 1, only: "c", overtake: true, effect: true}},
		{"Truncate waits for results", "fence-truncate-behind-a-failing-step", "", func(r *rules) { r.barrier = false }, scenario{kinds: "TTX", faults: 1, lasting: true}},
		{"the fence cancels a run with undo", "fence-an-iteration-fails", "", func(r *rules) { r.undo = false }, scenario{kinds: "TG", tokens: 3, faults: 1, only: "l"}},
		{"a stop acts at the head", "fence-stopped-in-the-middle", "", func(r *rules) { r.runEnd = false }, scenario{kinds: "TG", tokens: 3, faults: 1, only: "c"}},
		{"credit of a dropped step comes back", "fence-credit-of-a-failed-step", "", func(r *rules) { r.credit = false }, scenario{kinds: "TTT", faults: 1, window: 1}},
		{"a window cache goes back within reach", "fence-a-window-that-forgets", "window", func(r *rules) { r.reach = false }, scenario{kinds: "TTT", faults: 1, caches: window}},
		{"an untruncatable cache goes back within reach", "fence-a-cache-that-cannot-go-back", "none", func(r *rules) { r.reach = false }, scenario{kinds: "TTT", faults: 1, caches: none}},
		{"a step's start is marked", "", "", func(r *rules) { r.marks = false }, scenario{kinds: "TTT", faults: 1, caches: none, marks: [hops]int8{4, 4, 4}, survives: true}},
		{"a mark that a step needs is kept", "fence-a-mark-dropped-too-early", "none 2", func(r *rules) { r.needed = false }, scenario{kinds: "TTTT", faults: 1, only: "c", window: 2, caches: none, marks: two, survives: true}},
		{"the end of a prefill is given up last", "", "", func(r *rules) { r.turn = false }, scenario{kinds: "TDDD", window: 2, caches: none, marks: two}},
		{"reach is met on the way up", "", "", func(r *rules) { r.meets = false }, scenario{kinds: "TDD", caches: last, marks: one, back: true}},
		{"reach of a window cache is exact", "", "", func(r *rules) { r.narrow = false }, scenario{kinds: "TDDD", caches: window, marks: one, back: true}},
		{"a hop hears of a broken link", "", "", func(r *rules) { r.hears = false }, scenario{kinds: "T", breaks: 1}},
		{"a lost engine ends its session", "", "", func(r *rules) { r.ends = false }, scenario{kinds: "TT", losses: 1}},
		{"a new attempt compares tokens", "fence-a-new-attempt-compares-tokens", "", func(r *rules) { r.same = false }, scenario{kinds: "TXT", breaks: 1}},
		{"the window is within the marks", "", "", func(*rules) {}, scenario{kinds: "TTT", window: 2, caches: none, marks: one, bounded: true}},
	} {
		r := allRules()
		a.remove(&r)
		all = append(all, Case{Set: SetAblate, Name: "without: " + a.name, Broken: true, run: t.steps(r, a.scenario),
			Large: a.file != "", // searched in mage test for the worker's scenario
			file:  a.file, kinds: a.scenario.kinds, model: a.model})
	}
	for _, a := range []struct {
		state, event string
		change       func(*tablegen.Row)
	}{
		{"CANCELLING", "ResultDownstream", func(r *tablegen.Row) { r.Next = "FAILED" }},
		{"FORWARDED", "Cancelled", func(r *tablegen.Row) { r.Next = "FAILED" }},
		{"HELD", "Cancelled", func(r *tablegen.Row) { r.Next, r.Impossible = "", "INTERNAL" }},
	} {
		changed := *t
		changed.step = t.step.with(a.state, a.event, a.change)
		all = append(all, Case{Set: SetAblate, Name: "step table: other row " + a.state + " × " + a.event, Broken: true,
			run: changed.steps(allRules(), scenario{kinds: "TTT", faults: 1, only: "c", overtake: true})})
	}
	return all
}

// openCases try opening: with its rules, and without each.
func openCases(t *Tables) []Case {
	with := openRules{held: true, rest: true, newer: true}
	without := func(remove func(*openRules)) openRules {
		r := with
		remove(&r)
		return r
	}
	keeps := t.session
	for _, state := range []string{"OPENING", "ACTIVE", "LINGERING"} {
		keeps = keeps.with(state, "EngineLost", func(r *tablegen.Row) {
			r.Next, r.Effects = "LINGERING", slices.DeleteFunc(r.Effects, func(e string) bool { return e == "free_all" })
		})
	}
	deaf := t.session.with("ACTIVE", "DownstreamBroken", func(r *tablegen.Row) { r.Next, r.Effects = "ACTIVE", nil })
	var all []Case
	for _, c := range []struct {
		name          string
		broken, large bool
		rules         openRules
		table         *lifecycle
		openScenario
	}{
		{"caches of different lengths", false, false, with, t.session, openScenario{start: [hops]int8{2, 4, 3}, attempts: 1, steps: 2}},
		{"a newer attempt", false, false, with, t.session, openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, steps: 1}},
		{"a broken link while it opens", false, false, with, t.session, openScenario{start: [hops]int8{4, 4, 2}, attempts: 2, breaks: 1}},
		{"a broken link", false, false, with, t.session, openScenario{start: [hops]int8{4, 4, 2}, attempts: 2, breaks: 1, steps: 1}},
		{"a broken link, two steps", false, false, with, t.session, openScenario{start: [hops]int8{4, 4, 2}, attempts: 2, breaks: 1, steps: 2}},
		{"two broken links while it opens", false, false, with, t.session, openScenario{start: [hops]int8{3, 0, 5}, attempts: 2, breaks: 2}},
		{"two broken links of one attempt", false, false, with, t.session, openScenario{start: [hops]int8{3, 1, 5}, attempts: 1, breaks: 2, steps: 1}},
		{"a lost engine, one attempt", false, false, with, t.session, openScenario{start: [hops]int8{2, 3, 2}, attempts: 1, losses: 1, steps: 2}},
		{"a lost engine while it opens", false, false, with, t.session, openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, losses: 1}},
		{"a lost engine", false, false, with, t.session, openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, losses: 1, steps: 1}},
		{"a lost engine and a broken link", false, false, with, t.session, openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, breaks: 1, losses: 1, steps: 1}},
		{"two broken links, one step", false, false, with, t.session, openScenario{start: [hops]int8{3, 0, 5}, attempts: 2, breaks: 2, steps: 1}},
		{"two broken links, two steps", false, false, with, t.session, openScenario{start: [hops]int8{3, 3, 4}, attempts: 2, breaks: 2, steps: 2}},
		{"a lost engine, three steps", false, false, with, t.session, openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, losses: 1, steps: 3}},
		{"two lost engines, two steps", false, false, with, t.session, openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, losses: 2, steps: 2}},
		{"a lost engine and two broken links, two steps", false, true, with, t.session, openScenario{start: [hops]int8{2, 3, 2}, attempts: 2, breaks: 2, losses: 1, steps: 2}},
		{"three attempts", false, false, with, t.session, openScenario{start: [hops]int8{2, 4, 4}, attempts: 3, steps: 1}},
		{"three attempts, two broken links, two steps", false, true, with, t.session, openScenario{start: [hops]int8{3, 0, 5}, attempts: 3, breaks: 2, steps: 2}},
		{"three attempts, a lost engine, two steps", false, true, with, t.session, openScenario{start: [hops]int8{2, 2, 2}, attempts: 3, losses: 1, steps: 2}},
		{"three attempts, two lost engines and two broken links, three steps", false, true, with, t.session,
			openScenario{start: [hops]int8{2, 3, 2}, attempts: 3, breaks: 2, losses: 2, steps: 3}},
		{"without: Open says what is held", true, false, without(func(r *openRules) { r.held = false }), t.session,
			openScenario{start: [hops]int8{2, 4, 4}, attempts: 1, steps: 1}},
		{"without: Open says what is held, after a lost engine", true, false, without(func(r *openRules) { r.held = false }), t.session,
			openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, losses: 1}},
		{"without: a newer attempt waits for rest", true, false, without(func(r *openRules) { r.rest = false }), t.session,
			openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, steps: 1}},
		{"without: an older attempt changes nothing", true, false, without(func(r *openRules) { r.newer = false }), t.session,
			openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, steps: 2}},
		{"session table: a hop hears nothing of a broken link", true, false, with, deaf,
			openScenario{start: [hops]int8{2, 2, 2}, attempts: 1, breaks: 2, steps: 1}},
		{"session table: a lost engine keeps its sessions", true, false, with, keeps,
			openScenario{start: [hops]int8{2, 2, 2}, attempts: 2, losses: 1, steps: 1}},
	} {
		file := ""
		if c.broken && c.start == [hops]int8{2, 2, 2} { // workers get there by a prefill
			file = "fence-open-" + strings.NewReplacer("without: ", "", "session table: ", "", ",", "", " ", "-").Replace(strings.ToLower(c.name))
		}
		m := &opening{openRules: c.rules, openScenario: c.openScenario, table: c.table}
		all = append(all, Case{Set: SetOpen, Name: c.name, Broken: c.broken, Large: c.large, file: file,
			run: func(b Bounds) Verdict { return search[*openState](m, b) }})
	}
	return all
}
