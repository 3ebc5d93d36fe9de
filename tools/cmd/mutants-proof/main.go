// Command mutants-proof seeds the faults of tools/mutants into workers and shows which case of dgr-conformance catches each.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"

	"github.com/distributed-gguf-runtime/dgr/tools/mutants"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants-proof: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutants-proof", flag.ContinueOnError)
	only := flags.String("run", "", "try only faults whose name matches this regular expression; nothing is kept for a later run")
	jobs := flags.Int("jobs", 0, "faults tried at a time; 0: as many as there are cores")
	limit := flags.Duration("limit", 0, "longest time of one fault; 0: four minutes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	space, err := workspace.Open(".")
	if err != nil {
		return err
	}
	p := mutants.Proof{Space: space, Jobs: *jobs, Limit: *limit}
	p.Hints, p.State = mutants.Files(space)
	all := mutants.All()
	if *only != "" {
		name, err := regexp.Compile(*only)
		if err != nil {
			return fmt.Errorf("--run: %w", err)
		}
		all, p.State = mutants.Named(all, name.MatchString), ""
	}
	return p.Mutants(ctx, all, os.Stdout)
}
