package conformance

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// jsonCase is one case in the JSON report.
type jsonCase struct {
	ID      string   `json:"id"`
	Clauses []string `json:"clauses"`
	Says    string   `json:"says"`
	Verdict Verdict  `json:"verdict"`
	Reason  string   `json:"reason,omitempty"` // of a skip
	Faults  []string `json:"faults,omitempty"`
	Seconds float64  `json:"seconds"`
}

// WriteJSON writes the report as one JSON object: `ok`, `counts` by verdict, and `cases`.
func (r *Report) WriteJSON(w io.Writer) error {
	cases := make([]jsonCase, len(r.Outcomes))
	for i, o := range r.Outcomes {
		cases[i] = jsonCase{o.Case.ID, o.Case.Clauses, o.Case.Says, r.Verdict(o), o.Skip, o.Faults, o.Took.Seconds()}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		OK     bool            `json:"ok"`
		Counts map[Verdict]int `json:"counts"`
		Cases  []jsonCase      `json:"cases"`
	}{r.OK(), r.Counts(), cases})
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string       `xml:"classname,attr"`
	Name    string       `xml:"name,attr"`
	Seconds string       `xml:"time,attr"`
	Skipped *junitReason `xml:"skipped,omitempty"`
	Failure *junitReason `xml:"failure,omitempty"`
}

type junitReason struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the report as JUnit XML. A known failure counts as skipped, an unexpected success as failed.
func (r *Report) WriteJUnit(w io.Writer) error {
	n := r.Counts()
	s := junitSuite{Name: "dgr-conformance", Tests: len(r.Outcomes), Failures: n[Failed] + n[Surprise], Skipped: n[Skipped] + n[KnownFailure]}
	for _, o := range r.Outcomes {
		c := junitCase{Class: strings.Join(o.Case.Clauses, " "), Name: o.Case.ID, Seconds: fmt.Sprintf("%.3f", o.Took.Seconds())}
		switch v := r.Verdict(o); v {
		case Skipped:
			c.Skipped = &junitReason{Message: o.Skip}
		case KnownFailure:
			c.Skipped = &junitReason{Message: string(v), Text: strings.Join(o.Faults, "\n")}
		case Failed:
			c.Failure = &junitReason{Message: o.Faults[0], Text: strings.Join(o.Faults, "\n")}
		case Surprise:
			c.Failure = &junitReason{Message: string(v) + ": take the case off the list of known failures"}
		case Passed:
		}
		s.Cases = append(s.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	return e.Encode(s)
}
