package fence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Prove runs cases within bounds, says what it does while it runs, and ends with a table. A search that a bound ended fails
// nothing: the table says so, since what it did not visit is not known. The context is asked between cases.
func Prove(ctx context.Context, cases []Case, b Bounds, out io.Writer) error {
	var wrong []error
	var lines []string
	complete := 0
	for i, c := range cases {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("the proof ended after %d of %d cases: %w", i, len(cases), err)
		}
		fmt.Fprintf(out, "[%d/%d] %s: %s\n", i+1, len(cases), c.Set, c.Name)
		began := time.Now()
		v := c.Run(b)
		err := c.Judge(v)
		word := word(c, v, err)
		if err != nil {
			wrong = append(wrong, err)
			for _, move := range v.Trace {
				fmt.Fprintf(out, "        %s\n", move)
			}
		}
		if !v.Bounded {
			complete++
		}
		lines = append(lines, fmt.Sprintf("%s\t%s\t%d\t%d\t%d\t%.1fs\t%s", c.Set, c.Name, v.States, v.AtRest, v.Depth, time.Since(began).Seconds(), word))
	}
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "\nset\tcase\tstates\tat rest\tdepth\ttime\tverdict")
	for _, l := range lines {
		fmt.Fprintln(table, l)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	fmt.Fprintf(out, "\n%d cases: %d complete, %d bounded, %d wrong\n", len(cases), complete, len(cases)-complete, len(wrong))
	return errors.Join(wrong...)
}

// word is the verdict in a word or two.
func word(c Case, v Verdict, err error) string {
	switch {
	case err != nil:
		return "WRONG"
	case c.Broken:
		return fmt.Sprintf("counterexample of %d moves: %s", len(v.Trace), v.Broken)
	case v.Bounded:
		return fmt.Sprintf("bounded: nothing found in %d states, %d moves deep", v.States, v.Depth)
	}
	return "complete: holds"
}
