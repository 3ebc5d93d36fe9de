package conformance

import (
	"context"
	"regexp"
	"time"
)

// Options of a run.
type Options struct {
	Only  *regexp.Regexp  // ids to run; nil: all
	Limit time.Duration   // of one case
	Known map[string]bool // ids that are known to fail
	Among func(Case) bool // further choice of what to run; nil: all
	// FailFast ends the run behind the first case that fails.
	FailFast bool
	// Each is told of every outcome as it comes; nil: nobody is.
	Each func(Outcome)
}

// Report is the outcomes of a run, in order.
type Report struct {
	Outcomes []Outcome
	Known    map[string]bool
}

// Run runs the cases one after the other against target.
func Run(ctx context.Context, target *Target, o Options) *Report {
	r := &Report{Known: o.Known}
	for _, c := range Cases() {
		if ctx.Err() != nil {
			break
		}
		if o.Only != nil && !o.Only.MatchString(c.ID) || o.Among != nil && !o.Among(c) {
			continue
		}
		outcome := run(ctx, target, c, o.Limit)
		r.Outcomes = append(r.Outcomes, outcome)
		if o.Each != nil {
			o.Each(outcome)
		}
		if o.FailFast && len(outcome.Faults) > 0 {
			break
		}
	}
	return r
}

// Verdict of one outcome.
type Verdict string

// The verdicts.
const (
	Passed       Verdict = "passed"
	Skipped      Verdict = "skipped"
	Failed       Verdict = "failed"
	KnownFailure Verdict = "known failure"      // it failed, as was said
	Surprise     Verdict = "unexpected success" // it is listed as known to fail, and passed
)

// Verdict says what an outcome means. Failed and Surprise fail the run.
func (r *Report) Verdict(o Outcome) Verdict {
	known := r.Known[o.Case.ID]
	switch {
	case o.Skip != "":
		return Skipped
	case len(o.Faults) > 0 && known:
		return KnownFailure
	case len(o.Faults) > 0:
		return Failed
	case known:
		return Surprise
	}
	return Passed
}

// Counts is how many outcomes have which verdict.
func (r *Report) Counts() map[Verdict]int {
	n := map[Verdict]int{}
	for _, o := range r.Outcomes {
		n[r.Verdict(o)]++
	}
	return n
}

// OK says whether nothing failed unexpectedly and nothing that is known to fail passed.
func (r *Report) OK() bool {
	n := r.Counts()
	return n[Failed] == 0 && n[Surprise] == 0
}
