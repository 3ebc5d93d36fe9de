package record

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The headings of an evidence README, in order. Under Commands each command has a heading of its own, the command in
// backticks, then a line `Result: …` and the output in a fence.
const (
	headClaims      = "Claims"
	headCommands    = "Commands and results"
	headFiles       = "Changed files"
	headEnvironment = "Environment"
	headLimitations = "Limitations"
	headHandOff     = "Hand-off"
)

var headings = []string{headClaims, headCommands, headFiles, headEnvironment, headLimitations, headHandOff}

// Evidence is one evidence README.
type Evidence struct {
	Claims      []Claim
	Commands    []Ran
	Files       []string // from the root
	Environment string
	Limitations string
	HandOff     map[string]string // story to what it can build on
}

// Claim is what is said of one criterion.
type Claim struct {
	Criterion int    // from 1
	Proved    bool   // else not proved
	Text      string // by what, or what is missing
}

// Ran is one command and what came of it.
type Ran struct {
	Command string
	Result  string // the line after `Result:`
	Output  string // inside the fence
}

var (
	claimLine   = regexp.MustCompile(`^(\d+)\. (proved|not proved): (.+)$`)
	commandLine = regexp.MustCompile("^### `([^`]+)`$")
	fileLine    = regexp.MustCompile("^- `([^`]+)`")
	handOffLine = regexp.MustCompile(`^- (DGR-\d{3}): (.+)$`)
	fenceLine   = regexp.MustCompile("^```")
)

// ParseEvidence reads a README; its error says which heading or line is not in the form.
func ParseEvidence(text string) (*Evidence, error) {
	sections, err := split(text)
	if err != nil {
		return nil, err
	}
	e := &Evidence{
		HandOff:     map[string]string{},
		Environment: prose(sections[headEnvironment]), Limitations: prose(sections[headLimitations]),
	}
	for _, line := range items(sections[headClaims]) {
		m := claimLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("under %q: %q is no claim as `1. proved: by what` or `1. not proved: what is missing`", headClaims, line)
		}
		number, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, fmt.Errorf("under %q: number of a criterion: %w", headClaims, err)
		}
		e.Claims = append(e.Claims, Claim{number, m[2] == "proved", m[3]})
	}
	for _, line := range sections[headFiles] {
		if m := fileLine.FindStringSubmatch(line); m != nil {
			e.Files = append(e.Files, m[1])
		}
	}
	for _, line := range items(sections[headHandOff]) {
		if m := handOffLine.FindStringSubmatch(line); m != nil {
			e.HandOff[m[1]] = m[2]
		}
	}
	e.Commands, err = commands(sections[headCommands])
	return e, err
}

// split cuts the text at its second-level headings and wants exactly ours, in order.
func split(text string) (map[string][]string, error) {
	var found []string
	sections := map[string][]string{}
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if fenceLine.MatchString(line) {
			fenced = !fenced
		}
		if head, ok := strings.CutPrefix(line, "## "); ok && !fenced {
			found = append(found, head)
			continue
		}
		if len(found) > 0 {
			head := found[len(found)-1]
			sections[head] = append(sections[head], line)
		}
	}
	if fenced {
		return nil, fmt.Errorf("a fence (```) is not closed")
	}
	if !slices.Equal(found, headings) {
		return nil, fmt.Errorf("headings are %q; wanted are %q, in this order", found, headings)
	}
	return sections, nil
}

// items joins wrapped lines: a line that begins with white space goes on with the item before.
func items(lines []string) []string {
	var all []string
	for _, line := range lines {
		switch {
		case strings.TrimSpace(line) == "":
		case line[0] == ' ' && len(all) > 0:
			all[len(all)-1] += " " + strings.TrimSpace(line)
		default:
			all = append(all, line)
		}
	}
	return all
}

func prose(lines []string) string { return strings.TrimSpace(strings.Join(lines, "\n")) }

// commands reads the section of commands.
func commands(lines []string) ([]Ran, error) {
	var all []Ran
	fenced := false
	for _, line := range lines {
		if m := commandLine.FindStringSubmatch(line); m != nil && !fenced {
			all = append(all, Ran{Command: m[1]})
			continue
		}
		if strings.HasPrefix(line, "### ") && !fenced {
			return nil, fmt.Errorf("under %q: %q is no command in backticks", headCommands, line)
		}
		if len(all) == 0 {
			continue
		}
		ran := &all[len(all)-1]
		switch result, ok := strings.CutPrefix(line, "Result: "); {
		case fenceLine.MatchString(line):
			fenced = !fenced
		case fenced:
			ran.Output += line + "\n"
		case ok:
			ran.Result = strings.TrimSpace(result)
		}
	}
	return all, nil
}
