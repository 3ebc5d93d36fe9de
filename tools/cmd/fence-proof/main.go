// Command fence-proof searches a model of the contract's rules for orders of events that break them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/tools/fence"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fence-proof:", err)
		stop()
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var sets []string
	var write string
	b := fence.Bounds{States: 2_000_000}
	cmd := &cobra.Command{
		Use:           "fence-proof",
		Short:         "Search a model of the contract's rules for orders of events that break them",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd, sets, write, b) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&sets, "set", []string{fence.SetFixed, fence.SetAblate, fence.SetOpen}, "sets of cases to run")
	f.IntVar(&b.States, "states", b.States, "states of a search at most; 0: no bound")
	f.IntVar(&b.Depth, "depth", b.Depth, "moves from the first state at most; 0: no bound")
	f.StringVar(&write, "write", "", "folder of the worker's scenarios: write the counterexamples there, and search nothing else")
	return cmd
}

func run(cmd *cobra.Command, sets []string, write string, b fence.Bounds) error {
	if b.States < 0 || b.Depth < 0 {
		return fmt.Errorf("--states is %d and --depth %d; give numbers ≥ 0", b.States, b.Depth)
	}
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	tables, err := fence.ReadTables(w.Path("contracts", "tables"))
	if err != nil {
		return err
	}
	if write != "" {
		return fence.WriteScenarios(write, fence.Scenarios(fence.Cases(tables)))
	}
	known := []string{fence.SetFixed, fence.SetAblate, fence.SetOpen}
	for _, s := range sets {
		if !slices.Contains(known, s) {
			return fmt.Errorf("there is no set %q; give %v", s, known)
		}
	}
	cases := slices.DeleteFunc(fence.Cases(tables), func(c fence.Case) bool { return !slices.Contains(sets, c.Set) })
	return fence.Prove(cmd.Context(), cases, b, cmd.OutOrStdout())
}
