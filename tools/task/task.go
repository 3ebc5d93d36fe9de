// Package task runs named pieces of work one after the other, says what runs and how long it took, goes on after a
// failure, and sums up at the end.
//
// What the work is stays out of it.
package task

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// List is a run of tasks. Not for several goroutines.
type List struct {
	out   io.Writer
	began time.Time
	done  []outcome
}

type outcome struct {
	name string
	took time.Duration
	skip string // why it was not run
	err  error
}

// New is an empty list that reports to out.
func New(out io.Writer) *List { return &List{out: out, began: time.Now()} }

// Do runs one task and notes how it ended.
func (l *List) Do(name string, work func() error) {
	fmt.Fprintf(l.out, "==> %s\n", name)
	began := time.Now()
	err := work()
	took := time.Since(began)
	l.done = append(l.done, outcome{name: name, took: took, err: err})
	if err != nil {
		fmt.Fprintf(l.out, "<== %s: FAILED after %s\n%s\n", name, round(took), indent(err.Error()))
		return
	}
	fmt.Fprintf(l.out, "<== %s: %s\n", name, round(took))
}

// Skip notes a task that is not run, and why.
func (l *List) Skip(name, reason string) {
	l.done = append(l.done, outcome{name: name, skip: reason})
	fmt.Fprintf(l.out, "==> %s: NOT RUN: %s\n", name, reason)
}

// Fail notes a task that cannot be run although it must.
func (l *List) Fail(name string, err error) { l.Do(name, func() error { return err }) }

// End prints the summary and returns an error that names what failed, nil when nothing did.
func (l *List) End() error {
	var failed []string
	fmt.Fprintln(l.out, "\nsummary")
	for _, o := range l.done {
		switch {
		case o.err != nil:
			failed = append(failed, o.name)
			fmt.Fprintf(l.out, "  FAILED   %-44s %s\n", o.name, round(o.took))
		case o.skip != "":
			fmt.Fprintf(l.out, "  NOT RUN  %-44s %s\n", o.name, o.skip)
		default:
			fmt.Fprintf(l.out, "  ok       %-44s %s\n", o.name, round(o.took))
		}
	}
	fmt.Fprintf(l.out, "  %d of %d failed, %s\n", len(failed), len(l.done), round(time.Since(l.began)))
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, "; "))
	}
	return nil
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }
