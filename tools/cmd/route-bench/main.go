// Command route-bench measures one stream over workers on this machine beside the same llama.cpp unsplit.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/tools/routebench"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "route-bench:", strings.ReplaceAll(err.Error(), "\n", "; "))
		stop()
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := routebench.Options{
		Model: os.Getenv("DGR_BENCH_MODEL"), Store: os.Getenv("DGR_MODEL_STORE"), Workers: 2, Threads: max(1, runtime.NumCPU()/2), Tokens: 64, Rounds: 9, // cores divided as dgr up does
	}
	cmd := &cobra.Command{
		Use:           "route-bench",
		Short:         "Measure a route on this machine beside the same llama.cpp unsplit",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return measure(cmd, o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.Model, "model", "m", o.Model, "GGUF file, not under /home (default $DGR_BENCH_MODEL, else a random model is written)")
	f.StringVar(&o.Store, "store", o.Store, "folder for the random model, not under /home (default $DGR_MODEL_STORE, else that for temporary files)")
	f.IntVar(&o.Workers, "workers", o.Workers, "workers of the route")
	f.IntVar(&o.Threads, "threads", o.Threads, "compute threads of llama.cpp and of each worker")
	f.IntVar(&o.Tokens, "tokens", o.Tokens, "tokens to decode in a round")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "rounds")
	return cmd
}

// measure prints the report and keeps its raw form.
func measure(cmd *cobra.Command, o routebench.Options) error {
	w, err := workspace.Open(".")
	if err != nil {
		return err
	}
	r, err := routebench.Run(cmd.Context(), w, o, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	r.Print(cmd.OutOrStdout())
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	name := w.Path(".build", "bench", r.When.Format("20060102T150405Z")+".json")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make a folder for the report: %w", err)
	}
	if err := os.WriteFile(name, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "raw      %s\n", name)
	return nil
}
