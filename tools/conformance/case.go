package conformance

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// Case tries one thing.
type Case struct {
	ID      string   // unique, as open.wrong-key
	Clauses []string // of contracts/SPEC.md, as OPN-3
	Says    string   // what is tried and what must come, one sentence
	// Skip says why the target cannot be tried with it; nil or "": it can. A reason names what the target lacks.
	Skip func(*Target) string
	Run  func(*T)
}

// Cases are all cases, by group, in the order in which they run.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		capabilityCases(), healthCases(), promiseCases(), strictCases(), revisionCases(), openCases(), routeCases(), attemptCases(), orderCases(),
		stepCases(), fenceCases(), decodeCases(), generateCases(), samplingCases(), cancelCases(), flowCases(), roomCases(), limitCases(), secretCases(), timeCases(), cacheCases(), markCases(), prefixCases(),
		endCases(), textCases(), hubCases(), peerCases(), ringCases(), shardCases(), lifecycleCases(), wholePairCases(), lossCases(), edgeCases(),
	} {
		all = append(all, group...)
	}
	return all
}

// T is one case at work. Its methods are for the goroutine of Case.Run, except Context.
type T struct {
	*Target
	ctx     context.Context
	faults  []string
	errors  []*workerpb.ShardError
	cleanup []func()
}

// stop ends a case early.
type stop struct{}

// Context ends with the case's time.
func (t *T) Context() context.Context { return t.ctx }

// Errorf notes a fault; the case goes on.
func (t *T) Errorf(format string, args ...any) {
	t.faults = append(t.faults, fmt.Sprintf(format, args...))
}

// Fatalf notes a fault and ends the case.
func (t *T) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	panic(stop{})
}

// Cleanup runs f when the case is over, last first.
func (t *T) Cleanup(f func()) { t.cleanup = append(t.cleanup, f) }

// Outcome of one case.
type Outcome struct {
	Case   Case
	Skip   string   // why it did not run
	Faults []string // none: it passed
	// Errors are those that the target raised, in order; what a peer of the case said is not among them.
	Errors []*workerpb.ShardError
	Took   time.Duration
}

// run runs a case within limit.
func run(ctx context.Context, target *Target, c Case, limit time.Duration) (o Outcome) {
	o.Case = c
	if c.Skip != nil {
		if o.Skip = c.Skip(target); o.Skip != "" {
			return o
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := &T{Target: target, ctx: ctx}
	began := time.Now()
	t.guard(func() { c.Run(t) })
	for i := len(t.cleanup) - 1; i >= 0; i-- {
		t.guard(t.cleanup[i])
	}
	o.Faults, o.Errors, o.Took = t.faults, t.errors, time.Since(began)
	return o
}

// guard keeps a panic of one case from ending the others.
func (t *T) guard(f func()) {
	defer func() {
		switch r := recover(); r.(type) {
		case nil, stop:
		default:
			t.Errorf("the case itself broke: %v\n%s", r, debug.Stack())
		}
	}()
	f()
}

// IDs are the ids of all cases, in order.
func IDs() []string {
	var ids []string
	for _, c := range Cases() {
		ids = append(ids, c.ID)
	}
	return ids
}
