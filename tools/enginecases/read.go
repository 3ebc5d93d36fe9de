package enginecases

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Outcome is how a case ended.
type Outcome int

// The outcomes.
const (
	Passed Outcome = iota + 1
	Skipped
	Failed
)

// Case is one case on one engine.
type Case struct {
	Outcome Outcome
	Ability string // that the engine lacks, with Skipped
	Reason  string // with Skipped
}

// Report is the cases of one engine by `category/case`.
type Report struct {
	Engine string
	Cases  map[string]Case
	Order  []string // as they ran
}

// without is how enginetest says why a case is skipped.
var without = regexp.MustCompile(`without (\w+): (.+)`)

// event is a line of go test -json.
type event struct{ Action, Test, Output string }

// Read reads what go test -json printed about the suite whose test is root. Tests below a case belong to it; what the suite does
// before its cases is none.
func Read(in io.Reader, root string) (Report, error) {
	r := Report{Cases: map[string]Case{}}
	output := map[string]string{}
	lines := json.NewDecoder(in)
	for {
		var e event
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return r, nil
		} else if err != nil {
			return r, fmt.Errorf("read what go test -json printed: %w", err)
		}
		name, below := strings.CutPrefix(e.Test, root+"/")
		if parts := strings.Split(name, "/"); !below || len(parts) < 2 {
			continue
		} else if len(parts) > 2 {
			name = parts[0] + "/" + parts[1]
			if e.Action == "skip" { // a part of a case that is left out is told like a case that is
				r.Cases[name] = skipped(output[e.Test])
			}
			if e.Action != "output" {
				continue
			}
		}
		switch e.Action {
		case "run":
			r.Order = append(r.Order, name)
		case "output":
			output[e.Test] += e.Output
		case "pass":
			if r.Cases[name].Outcome != Skipped {
				r.Cases[name] = Case{Outcome: Passed}
			}
		case "fail":
			r.Cases[name] = Case{Outcome: Failed}
		case "skip":
			r.Cases[name] = skipped(output[e.Test])
		}
	}
}

// skipped is a case that said output.
func skipped(output string) Case {
	c := Case{Outcome: Skipped, Reason: strings.TrimSpace(output)}
	if found := without.FindStringSubmatch(output); found != nil {
		c.Ability, c.Reason = found[1], found[2]
	}
	return c
}
