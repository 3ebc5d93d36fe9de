package tablegen

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Lifecycle is one table of states × events.
type Lifecycle struct {
	Version int      `yaml:"version"`
	Table   string   `yaml:"table"`   // lower case, as `session`
	Initial string   `yaml:"initial"` // state that a fresh thing is in
	Final   []string `yaml:"final"`   // states that nothing leaves
	States  []string `yaml:"states"`
	Events  []string `yaml:"events"`
	Rows    []Row    `yaml:"rows"`

	// Proposed was a note for reviewers; it is read over.
	Proposed []string `yaml:"proposed_events"`
}

// Row is the outcome of one event in one state. Exactly one of Next, Error and Impossible is set.
type Row struct {
	State      string   `yaml:"state"`
	Event      string   `yaml:"event"`
	Next       string   `yaml:"next"`       // new state
	Error      string   `yaml:"error"`      // refused with this code, state kept
	Impossible string   `yaml:"impossible"` // INTERNAL: cannot happen; state kept, counted
	Effects    []string `yaml:"effects"`    // what the room does, in order

	line int
}

// UnmarshalYAML keeps the line, for messages, and refuses unknown keys.
func (r *Row) UnmarshalYAML(node *yaml.Node) error {
	type plain Row
	if err := onlyKeys(node, "state", "event", "next", "error", "impossible", "effects"); err != nil {
		return err
	}
	if err := node.Decode((*plain)(r)); err != nil {
		return err
	}
	r.line = node.Line
	return nil
}

// String is as `NONE × OpenNew`.
func (r Row) String() string { return r.State + " × " + r.Event }

// Effects lists every effect that the table names, once each, in alphabetical order.
func (l *Lifecycle) Effects() []string {
	var all []string
	for _, r := range l.Rows {
		all = append(all, r.Effects...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Row is the outcome of event in state; the table was checked, so it exists.
func (l *Lifecycle) Row(state, event string) Row {
	row, _ := l.Find(state, event)
	return row
}

// Find is the outcome of event in state, if the table knows both.
func (l *Lifecycle) Find(state, event string) (Row, bool) {
	i := slices.IndexFunc(l.Rows, func(r Row) bool { return r.State == state && r.Event == event })
	if i < 0 {
		return Row{}, false
	}
	return l.Rows[i], true
}

// ParseLifecycle reads and checks a lifecycle table; file is its name in messages, t the codes it may use.
func ParseLifecycle(file string, data []byte, t *Taxonomy) (*Lifecycle, error) {
	var l Lifecycle
	if err := decodeStrict(data, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	f := faults{file: file}
	checkHead(&f, &l)
	checkPairs(&f, &l)
	for _, r := range l.Rows {
		checkRow(&f, &l, t, r)
	}
	if len(f.all) == 0 {
		checkReach(&f, &l)
		checkNames(&f, &l)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return &l, nil
}

func checkHead(f *faults, l *Lifecycle) {
	if l.Version != 1 {
		f.add(0, "version is %d; this generator reads version 1", l.Version)
	}
	if !isLowerName(l.Table) {
		f.add(0, "table %q is no name in lower case", l.Table)
	}
	if len(l.States) == 0 || len(l.Events) == 0 {
		f.add(0, "states or events are empty")
	}
	if !slices.Contains(l.States, l.Initial) {
		f.add(0, "initial %q is no state", l.Initial)
	}
	for _, s := range l.Final {
		if !slices.Contains(l.States, s) {
			f.add(0, "final %q is no state", s)
		}
	}
	for i, s := range l.States {
		if !isUpperName(s) {
			f.add(0, "state %q is no name in upper case", s)
		}
		if slices.Index(l.States, s) != i {
			f.add(0, "state %s is listed twice", s)
		}
	}
	for i, e := range l.Events {
		if !isCamelName(e) {
			f.add(0, "event %q is no name in CamelCase", e)
		}
		if slices.Index(l.Events, e) != i {
			f.add(0, "event %s is listed twice", e)
		}
	}
}

// checkPairs finds pairs without a row and pairs with two.
func checkPairs(f *faults, l *Lifecycle) {
	type pair struct{ state, event string }
	lines := map[pair]int{}
	for _, r := range l.Rows {
		p := pair{r.State, r.Event}
		if first, double := lines[p]; double {
			f.add(r.line, "row %v is already at line %d", r, first)
			continue
		}
		lines[p] = r.line
	}
	for _, s := range l.States {
		for _, e := range l.Events {
			if _, ok := lines[pair{s, e}]; !ok {
				f.add(0, "no row for %v", Row{State: s, Event: e})
			}
		}
	}
}

func checkRow(f *faults, l *Lifecycle, t *Taxonomy, r Row) {
	if !slices.Contains(l.States, r.State) {
		f.add(r.line, "row %v: %q is no state of this table", r, r.State)
	}
	if !slices.Contains(l.Events, r.Event) {
		f.add(r.line, "row %v: %q is no event of this table", r, r.Event)
	}
	outcomes := 0
	for _, set := range []string{r.Next, r.Error, r.Impossible} {
		if set != "" {
			outcomes++
		}
	}
	if outcomes != 1 {
		f.add(r.line, "row %v: has %d of next, error and impossible; exactly one is wanted", r, outcomes)
	}
	if r.Next != "" && !slices.Contains(l.States, r.Next) {
		f.add(r.line, "row %v: next %q is no state of this table", r, r.Next)
	}
	if r.Error != "" && !t.Has(r.Error) {
		f.add(r.line, "row %v: error %q is no code of the taxonomy", r, r.Error)
	}
	if r.Impossible != "" && r.Impossible != "INTERNAL" {
		f.add(r.line, "row %v: impossible is %q; only INTERNAL is possible", r, r.Impossible)
	}
	if slices.Contains(l.Final, r.State) && r.Next != "" && r.Next != r.State {
		f.add(r.line, "row %v: %s is final, yet it goes to %s", r, r.State, r.Next)
	}
	for i, e := range r.Effects {
		if !isEffectName(e) {
			f.add(r.line, "row %v: effect %q is no name", r, e)
		}
		if slices.Index(r.Effects, e) != i {
			f.add(r.line, "row %v: effect %s is listed twice", r, e)
		}
	}
}

// checkReach finds states that no chain of events leads to.
func checkReach(f *faults, l *Lifecycle) {
	seen := map[string]bool{l.Initial: true}
	for grown := true; grown; {
		grown = false
		for _, r := range l.Rows {
			if seen[r.State] && r.Next != "" && !seen[r.Next] {
				seen[r.Next], grown = true, true
			}
		}
	}
	for _, s := range l.States {
		if !seen[s] {
			f.add(0, "state %s cannot be reached from %s", s, l.Initial)
		}
	}
}

// checkNames finds two names of the table that would become one name in Go.
func checkNames(f *faults, l *Lifecycle) {
	taken := map[string]string{}
	claim := func(goName, from string) {
		if other, double := taken[goName]; double {
			f.add(0, "%s and %s would both be called %s in Go", other, from, goName)
		}
		taken[goName] = from
	}
	prefix := goName(l.Table)
	for _, s := range []string{"State", "Event", "Effect", "Row", "States", "Events", "Transition", "Initial"} {
		claim(prefix+s, "the generated "+prefix+s)
	}
	for _, s := range l.States {
		claim(prefix+goName(s), "state "+s)
	}
	for _, e := range l.Events {
		claim(prefix+"Event"+goName(e), "event "+e)
	}
	for _, e := range l.Effects() {
		claim(prefix+"Effect"+goName(e), "effect "+e)
	}
}
