package mutants

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// escaped stands where the case would that caught a fault.
const escaped = "ESCAPED"

// least is the part of the faults that must be caught.
const least = 0.95

// Verdict is what became of one mutant.
type Verdict struct {
	Mutant Mutant        `json:"-"`
	Mark                 // what caught it; no case: it escaped
	Fault  string        `json:"fault"` // that the case found
	Took   time.Duration `json:"took"`  // with its build
}

// Proof is a run over mutants.
type Proof struct {
	Space *workspace.Workspace
	Jobs  int           // tried at a time; 0: as many as there are cores
	Limit time.Duration // of one mutant, with its build; 0: four minutes. One that is not caught by then has escaped
	Hints string        // file of the cases that caught faults before; empty: none
	State string        // file by which a run that was broken off is gone on with; empty: it is not
}

// Mutants tries every mutant, several at a time, and tells w of each as it comes, then of all in a table. It fails when fewer
// than 95 % were caught, or one could not be tried.
func (p Proof) Mutants(ctx context.Context, all []Mutant, w io.Writer) (err error) {
	l, err := openLedger(p.Space, p.Hints, p.State)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	began := time.Now()
	r := &round{proof: p, ledger: l, dir: dir, out: w, all: len(all), verdicts: map[string]Verdict{}}
	r.each(ctx, all)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	verdicts := make([]Verdict, 0, len(all))
	for _, m := range all {
		if v, ok := r.verdicts[m.Name]; ok {
			verdicts = append(verdicts, v)
		}
	}
	r.broken = append(r.broken, table(w, verdicts), l.over(all))
	fmt.Fprintf(w, "took %s\n", time.Since(began).Round(time.Second))
	return errors.Join(r.broken...)
}

// round is one run at work.
type round struct {
	proof  Proof
	ledger *ledger
	dir    string
	all    int

	mu       sync.Mutex
	out      io.Writer
	tried    int
	verdicts map[string]Verdict
	broken   []error
}

// each tries all of them, until ctx ends.
func (r *round) each(ctx context.Context, all []Mutant) {
	jobs := r.proof.Jobs
	if jobs == 0 {
		jobs = runtime.NumCPU()
	}
	queue := make(chan Mutant)
	var workers sync.WaitGroup
	for range jobs {
		workers.Go(func() {
			for m := range queue {
				r.one(ctx, m)
			}
		})
	}
	for _, m := range all {
		select {
		case queue <- m:
		case <-ctx.Done():
		}
	}
	close(queue)
	workers.Wait()
}

// one tries one of them, unless that is known already.
func (r *round) one(ctx context.Context, m Mutant) {
	v, known := r.ledger.verdict(m)
	var err error
	if !known {
		v, err = r.try(ctx, m)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = r.ledger.note(v)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tried++
	if err != nil {
		r.broken = append(r.broken, err)
		fmt.Fprintf(r.out, "%3d of %d  %v\n", r.tried, r.all, err)
		return
	}
	r.verdicts[m.Name] = v
	fmt.Fprintf(r.out, "%3d of %d  %s: %s, %s\n", r.tried, r.all, m.Name, v, v.Took.Round(100*time.Millisecond))
}

// try builds a mutant in a folder of its own, which is gone afterwards, and runs cases against it until one fails or its
// time is over.
func (r *round) try(ctx context.Context, m Mutant) (v Verdict, err error) {
	limit := r.proof.Limit
	if limit == 0 {
		limit = 4 * time.Minute
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	dir, err := os.MkdirTemp(r.dir, "")
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := m.build(bounded, r.proof.Space, dir)
	if err != nil {
		return v, err
	}
	v, err = hunt(bounded, m, program, r.ledger.hint(m.Name))
	v.Took = time.Since(began)
	if bounded.Err() != nil {
		return v, nil // its time is over, and what was found counts; the end of ctx is for the caller to see
	}
	return v, err
}

// String is the case that caught it, or that it escaped.
func (v Verdict) String() string {
	if v.Case == "" {
		return escaped
	}
	return fmt.Sprintf("%s (%d)", v.Case, v.Hops)
}

// table prints fault → case. It fails when too many escaped.
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
	caught := len(verdicts) - len(free)
	fmt.Fprintf(w, "\n%d of %d faults caught (%.1f %%)\n", caught, len(verdicts), 100*float64(caught)/float64(max(1, len(verdicts))))
	if len(free) > 0 {
		fmt.Fprintf(w, "no case catches %s; add one to tools/conformance that does\n", strings.Join(free, ", "))
	}
	if float64(caught) < least*float64(len(verdicts)) {
		return fmt.Errorf("%d of %d faults were caught and %.0f %% must be: no case catches %s", caught, len(verdicts), 100*least, strings.Join(free, ", "))
	}
	return nil
}

// Named are those of some mutants whose names say yes.
func Named(all []Mutant, yes func(string) bool) []Mutant {
	return slices.DeleteFunc(slices.Clone(all), func(m Mutant) bool { return !yes(m.Name) })
}

// Files are where a run over a checkout keeps what it knows: hints in the tree, state beside what is built.
func Files(space *workspace.Workspace) (hints, state string) {
	return space.Path("tools/mutants/caught.json"), filepath.Join(space.Path(".build"), "mutants.json")
}
