package fence

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Scenario is a counterexample in the language of the worker's scenarios: the commands that lead real workers the same way.
// Name is that of the file. Where a worker keeps the rule that the model had lost, a message of the counterexample does
// not exist: the command then does nothing.
type Scenario struct {
	Name, Text string
}

// wording is how a move of the model is said to the worker's scenarios; hops count from 0 there.
type wording struct {
	move     *regexp.Regexp
	commands func(found []string, w *writer) []string
}

// writer keeps what a scenario's driver must know.
type writer struct {
	kinds  string
	length map[string]int // after each step, as far as the driver can know
}

// wordings are all moves that can be replayed; others, as a time that is over, are the models' own.
func wordings() []wording {
	hop := func(name string) int { return int(name[0] - '1') }
	move := func(what string, at int, rest string) []string {
		return []string{fmt.Sprintf("move %s %d%s", what, at, rest)}
	}
	return []wording{
		{regexp.MustCompile(`^driver: step (\d+) after (\d+)$`), func(f []string, w *writer) []string { return []string{w.step(f[1], f[2])} }},
		{regexp.MustCompile(`^driver: step (\d+) after (\d+) truncates to (\d+)$`), func(f []string, w *writer) []string {
			return []string{fmt.Sprintf("truncate %s %s %d %s", f[1], f[2], w.length[f[2]], f[3])}
		}},
		{regexp.MustCompile(`^driver: cancel (\d+) to (\d+) undo (\w+)$`), func(f []string, _ *writer) []string {
			return []string{"cancel " + f[1] + " " + f[2] + " " + map[string]string{"true": "undo", "false": "keep"}[f[3]]}
		}},
		{regexp.MustCompile(`^hop (\d) gets credit$`), func(f []string, _ *writer) []string { return move("up", hop(f[1])+1, " credit") }},
		{regexp.MustCompile(`^driver gets credit$`), func([]string, *writer) []string { return move("up", 0, " credit") }},
		{regexp.MustCompile(`^hop (\d) gets (step|iteration|cancel) (\d+)`), func(f []string, _ *writer) []string {
			return move("down", hop(f[1]), " "+f[2]+" "+f[3])
		}},
		{regexp.MustCompile(`^hop (\d) gets (result of|failed|token \d+ of) step (\d+)$`), func(f []string, _ *writer) []string {
			return move("up", hop(f[1])+1, " "+f[2]+" step "+f[3])
		}},
		{regexp.MustCompile(`^driver gets (result of|failed|token \d+ of) step (\d+)$`), func(f []string, _ *writer) []string {
			return move("up", 0, " "+f[1]+" step "+f[2])
		}},
		{regexp.MustCompile(`^hop (\d) runs `), func(f []string, _ *writer) []string { return move("engine", hop(f[1]), "") }},
		{regexp.MustCompile(`^hop (\d) fails `), func(f []string, _ *writer) []string {
			return append([]string{fmt.Sprintf("fail %d NUMERIC_FAULT", hop(f[1]))}, move("engine", hop(f[1]), "")...)
		}},
		{regexp.MustCompile(`^the link into hop (\d) breaks$`), func(f []string, _ *writer) []string {
			return []string{fmt.Sprintf("cut %d", hop(f[1]))} // both ends learn it at once
		}},
		{regexp.MustCompile(`^(?:hop \d ends the attempt|the driver learns that the attempt is over)$`), func([]string, *writer) []string { return nil }},
		{regexp.MustCompile(`^the driver opens anew$`), func([]string, *writer) []string { return []string{"open 2"} }},
		{regexp.MustCompile(`^hop 1 begins iteration `), func([]string, *writer) []string { return move("engine", 0, "") }},
	}
}

// step is the driver's command for a step.
func (w *writer) step(id, after string) string {
	kind, length := byte('T'), w.length[after]
	if at := int(id[0] - '1'); at < len(w.kinds) {
		kind = w.kinds[at]
	}
	switch kind {
	case 'X':
		w.length[id] = 0
		return fmt.Sprintf("truncate %s %s %d 0", id, after, length)
	case 'G':
		w.length[id] = length + 3
		return fmt.Sprintf("generate %s %s %d 3 1%s", id, after, length, id)
	}
	w.length[id] = length + 1
	if kind == 'D' {
		return fmt.Sprintf("decode %s %s %d NONE 1%s", id, after, length, id)
	}
	return fmt.Sprintf("prefill %s %s %d 1%s", id, after, length, id)
}

// write says a counterexample as a scenario; false if a move of it is none that workers can be led through.
func (c Case) write(name string, v Verdict, kinds, model string) (Scenario, bool) {
	w := &writer{kinds: kinds, length: map[string]int{}}
	lines := []string{
		"# Written by fence-proof --write from a counterexample of the model. " + capital(c.Name) + ": " + v.Broken + ".",
		"# Real workers keep that rule: led the same way, they come to rest with equal caches.",
	}
	if model != "" {
		lines = append(lines, "> model "+model)
	}
	lines = append(lines, "> route 0 1 3", "> open 1")
	for _, m := range v.Trace {
		commands, ok := w.say(m)
		if !ok {
			return Scenario{}, false
		}
		for _, command := range commands {
			lines = append(lines, "> "+command+";")
		}
	}
	lines = append(lines, "> settle")
	last := "> open 2"
	if slices.Contains(v.Trace, "the driver opens anew") {
		last = "> open 3"
	} else if model == "" {
		lines = append(lines, "> equal")
	}
	lines = append(lines, last, "> equal")
	return Scenario{Name: name + ".txt", Text: strings.Join(lines, "\n") + "\n"}, true
}

func (w *writer) say(move string) ([]string, bool) {
	for _, as := range wordings() {
		if found := as.move.FindStringSubmatch(move); found != nil {
			return as.commands(found, w), true
		}
	}
	return nil, false
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// Scenarios are the counterexamples of the cases without one rule that workers can be led through, in the order of the cases.
func Scenarios(cases []Case) []Scenario {
	var all []Scenario
	for _, c := range cases {
		if c.file == "" {
			continue
		}
		v := c.Run(Bounds{})
		write := func() (Scenario, bool) { return c.write(c.file, v, c.kinds, c.model) }
		if c.Set == SetOpen {
			write = func() (Scenario, bool) { return c.writeOpen(c.file, v) }
		}
		if s, ok := write(); ok {
			all = append(all, s)
		}
	}
	return all
}

// WriteScenarios writes those that folder does not hold with the same commands; what they lead to is then for the worker's
// test to write. It removes those that no case gives any more.
func WriteScenarios(folder string, all []Scenario) error {
	stale, err := filepath.Glob(filepath.Join(folder, "fence-*.txt"))
	if err != nil {
		return fmt.Errorf("look for scenarios: %w", err)
	}
	for _, s := range all {
		path := filepath.Join(folder, s.Name)
		stale = slices.DeleteFunc(stale, func(old string) bool { return old == path })
		old, err := os.ReadFile(path)
		if err == nil && Commands(string(old)) == Commands(s.Text) {
			continue
		}
		if err := os.WriteFile(path, []byte(s.Text), 0o644); err != nil {
			return fmt.Errorf("write a scenario: %w", err)
		}
	}
	for _, path := range stale {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove a scenario that no case gives: %w", err)
		}
	}
	return nil
}

// Commands are the lines of a scenario that are said, without what they lead to.
func Commands(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "> ") {
			b.WriteString(line)
		}
	}
	return b.String()
}
