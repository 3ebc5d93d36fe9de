package mutants

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// limit is the longest time of one case.
const limit = 20 * time.Second

// escaped stands where the case would that caught a fault.
const escaped = "ESCAPED"

// Verdict is what became of one mutant.
type Verdict struct {
	Mutant Mutant
	Case   string // that caught it; empty: none did
	Hops   int    // of the route on which it was caught
	Fault  string // that the case found
}

// Prove tries every mutant and tells w of each as it comes, then of all in a table. While one is tried the next one is
// built. It fails when one escaped, or could not be tried.
func Prove(ctx context.Context, space *workspace.Workspace, all []Mutant, w io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	programs := make(chan built, 1)
	go ahead(ctx, space, all, dir, programs)
	defer func() {
		cancel()
		for range programs { // until the builder has ended
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	verdicts := make([]Verdict, 0, len(all))
	var broken []error
	for b := range programs {
		v, err := b.try(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			broken = append(broken, err)
			fmt.Fprintf(w, "%3d of %d  %v\n", len(broken)+len(verdicts), len(all), err)
		default:
			verdicts = append(verdicts, v)
			fmt.Fprintf(w, "%3d of %d  %s: %s\n", len(broken)+len(verdicts), len(all), v.Mutant.Name, v)
		}
	}
	return errors.Join(append(broken, table(w, verdicts))...)
}

// built is a mutant's program, or why there is none.
type built struct {
	mutant  Mutant
	program string
	err     error
}

// ahead builds mutants one after the other, each in a folder of its own below dir, until all are built or ctx ends.
func ahead(ctx context.Context, space *workspace.Workspace, all []Mutant, dir string, programs chan<- built) {
	defer close(programs)
	for i, m := range all {
		b := built{mutant: m}
		own := filepath.Join(dir, strconv.Itoa(i))
		if b.err = os.Mkdir(own, 0o700); b.err == nil {
			b.program, b.err = m.build(ctx, space, own)
		}
		select {
		case programs <- b:
		case <-ctx.Done():
			return
		}
	}
}

// String is the case that caught it, or that it escaped.
func (v Verdict) String() string {
	if v.Case == "" {
		return escaped
	}
	return fmt.Sprintf("%s (%d)", v.Case, v.Hops)
}

// table prints fault → case. It fails when one escaped.
func table(w io.Writer, verdicts []Verdict) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nFAULT\tCLAUSES\tCAUGHT BY (HOPS)")
	var free []string
	for _, v := range verdicts {
		fmt.Fprintf(t, "%s\t%s\t%s\n", v.Mutant.Name, strings.Join(v.Mutant.Clauses, " "), v)
		if v.Case == "" {
			free = append(free, v.Mutant.Name)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%d of %d faults caught\n", len(verdicts)-len(free), len(verdicts))
	if len(free) > 0 {
		return fmt.Errorf("no case catches %s; add one to tools/conformance that does", strings.Join(free, ", "))
	}
	return nil
}

// try runs the cases against a mutant until one fails: those that cite its clauses on one worker and on a route of three, then
// all others. Its program is gone afterwards.
func (b built) try(ctx context.Context) (v Verdict, err error) {
	v.Mutant = b.mutant
	if b.err != nil {
		return v, b.err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(filepath.Dir(b.program))) }()
	routes := [][]string{{"0:"}, {"0:2", "2:4", "4:"}}
	fleets := make([]*fleet, len(routes))
	for _, near := range []bool{true, false} {
		for i, layers := range routes {
			if fleets[i] == nil {
				if fleets[i], err = start(ctx, b.program, layers...); err != nil {
					return v, fmt.Errorf("mutant %s: %w", b.mutant.Name, err)
				}
				defer func() { err = errors.Join(err, fleets[i].close()) }()
			}
			caught(ctx, &v, fleets[i].target, func(c conformance.Case) bool { return near == b.mutant.breaks(c) })
			if v.Case != "" {
				return v, nil
			}
		}
	}
	return v, ctx.Err()
}

// breaks says whether a case proves a clause that the mutant breaks.
func (m Mutant) breaks(c conformance.Case) bool {
	return slices.ContainsFunc(c.Clauses, func(id string) bool { return slices.Contains(m.Clauses, id) })
}

// caught notes the first of some cases that fails.
func caught(ctx context.Context, v *Verdict, target *conformance.Target, some func(conformance.Case) bool) {
	report := conformance.Run(ctx, target, conformance.Options{Limit: limit, Among: some, FailFast: true})
	for _, o := range report.Outcomes {
		if len(o.Faults) > 0 && ctx.Err() == nil {
			v.Case, v.Hops, v.Fault = o.Case.ID, len(target.Hops), o.Faults[0]
		}
	}
}
