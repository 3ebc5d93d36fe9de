package fence

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// openWriter keeps what the scenario of a counterexample of opening must know. These begin with caches that linger behind an attempt before the model's first, so attempts count one
// more for workers.
type openWriter struct {
	attempt string // the driver's newest
	steps   int    // of it
}

// openWordings are the moves of opening that can be replayed. Both ends of a link that a worker cut know it, so that the end
// of a stream going down needs no move.
func openWordings() []openWording {
	hop := func(name string) int { return int(name[0] - '1') }
	return []openWording{
		{regexp.MustCompile(`^driver: open attempt (\d+)$`), func(f []string, w *openWriter) []string {
			n, _ := strconv.Atoi(f[1]) // digits
			w.attempt, w.steps = f[1], 0
			return []string{fmt.Sprintf("open %d", n+1)}
		}},
		{regexp.MustCompile(`^driver: step to (\d+) `), func(f []string, w *openWriter) []string {
			n, _ := strconv.Atoi(f[1])
			w.steps++
			return []string{fmt.Sprintf("prefill %d %d %d 1%s%s", w.steps, w.steps-1, n-1, w.attempt, f[1])}
		}},
		{regexp.MustCompile(`^hop (\d): the engine ends a step`), func(f []string, _ *openWriter) []string {
			return []string{fmt.Sprintf("move engine %d", hop(f[1])), fmt.Sprintf("move books %d", hop(f[1]))}
		}},
		{regexp.MustCompile(`^hop (\d) loses its engine$`), func(f []string, _ *openWriter) []string {
			return []string{fmt.Sprintf("lose %d", hop(f[1]))}
		}},
		{regexp.MustCompile(`^the link into hop (\d) breaks`), func(f []string, _ *openWriter) []string {
			return []string{fmt.Sprintf("cut %d", hop(f[1]))}
		}},
		{regexp.MustCompile(`^hop (\d) gets (open|the step)[^,]* of attempt \d+$`), func(f []string, _ *openWriter) []string {
			return []string{fmt.Sprintf("move down %d %s", hop(f[1]), strings.TrimPrefix(f[2], "the ")), fmt.Sprintf("move books %d", hop(f[1]))}
		}},
		{regexp.MustCompile(`^hop (\d) gets opened .* from below$`), func(f []string, _ *openWriter) []string {
			return []string{fmt.Sprintf("move up %d opened", hop(f[1])+1), fmt.Sprintf("move books %d", hop(f[1]))}
		}},
		{regexp.MustCompile(`^hop (\d) gets the end of attempt \d+ from below$`), func(f []string, _ *openWriter) []string {
			return []string{fmt.Sprintf("move end %d", hop(f[1])+1)}
		}},
		{regexp.MustCompile(`^driver gets opened`), func([]string, *openWriter) []string { return []string{"move up 0 opened"} }},
		{regexp.MustCompile(`^(?:hop \d|driver) gets the end of attempt \d+$`), func([]string, *openWriter) []string { return nil }},
	}
}

type openWording struct {
	move     *regexp.Regexp
	commands func(found []string, w *openWriter) []string
}

// writeOpen says a counterexample of opening as a scenario; false if a move of it is none that workers can be led through.
// It needs hops that hold equal caches at first.
func (c Case) writeOpen(name string, v Verdict) (Scenario, bool) {
	w := &openWriter{}
	lines := []string{
		"# Written by fence-proof --write from a counterexample of the model. " + capital(c.Name) + ": " + v.Broken + ".",
		"# Real workers keep that rule: led the same way, they come to rest, and the next attempt finds equal caches.",
		"> route 0 1 3", "> open 1", "> prefill 1 0 0 11 12", "> cut 0",
	}
	for _, m := range v.Trace {
		said := false
		for _, as := range openWordings() {
			found := as.move.FindStringSubmatch(m)
			if found == nil {
				continue
			}
			said = true
			for _, command := range as.commands(found, w) {
				lines = append(lines, "> "+command+";")
			}
			break
		}
		if !said {
			return Scenario{}, false
		}
	}
	lines = append(lines, "> settle", "> open 9", "> equal")
	return Scenario{Name: name + ".txt", Text: strings.Join(lines, "\n") + "\n"}, true
}
