// Package demo is `dgr demo`: the whole system in one command, without a download. It takes the embedded handbook model,
// starts two workers on it, continues a prompt over them, says what ran where, and ends.
package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/run"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/up"
)

// options are what to show.
type options struct {
	up      up.Options
	run     run.Options
	json    bool
	verbose bool
}

// Command is `dgr demo`.
func Command() *cobra.Command {
	o := options{up: up.Default(), run: run.Default()}
	o.run.Prompt, o.run.MaxTokens = "A shard is", 80
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work: a small model over two workers, without a download",
		Long: `Starts two workers on this machine, each with half of a small model that is built into dgr, continues a prompt over them and
says what ran where. The model has read one short handbook about DGR and nothing else.`,
		Example: `  dgr demo
  dgr demo --prompt "A worker is" -n 40
  dgr demo --workers 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.run.Prompt == "" || o.run.MaxTokens == 0 || o.up.Workers < 1 || o.up.Workers > 32 {
				return fail.Usagef("give a --prompt, -n of 1 or more and --workers of 1 to 32")
			}
			return o.play(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.run.Prompt, "prompt", "p", o.run.Prompt, "text to continue")
	f.Uint32VarP(&o.run.MaxTokens, "tokens", "n", o.run.MaxTokens, "most tokens to generate")
	f.Uint32Var(&o.up.Workers, "workers", o.up.Workers, "how many workers")
	f.StringVarP(&o.up.Model, "model", "m", "", "another model than the built-in one")
	f.StringVar(&o.up.Engine, "engine", "", "llama, or fake for a model named fake")
	f.StringVar(&o.up.Binary, "worker-binary", "", "the dgr-worker program; looked for beside dgr and in $PATH if absent")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show the workers' logs")
	f.BoolVar(&o.json, "json", false, "print one JSON object at the end, also for an error")
	return cmd
}

// result is the form of --json.
type result struct {
	Prompt  string      `json:"prompt"`
	Answer  *run.Report `json:"answer"`
	Workers []up.Worker `json:"workers"`
}

// play starts the workers, runs the prompt and stops the workers.
func (o options) play(ctx context.Context, stdout, stderr io.Writer) error {
	if o.up.Model == "" {
		path, err := handbook.WriteFile("")
		if err != nil {
			return err
		}
		o.up.Model = path
	}
	finish := o.up.Show(stderr, o.verbose)
	group, err := up.Start(ctx, o.up)
	finish()
	if err != nil {
		return err
	}
	defer group.Stop()
	o.run.Route = group.Route()
	if o.json {
		report, err := run.Generate(ctx, o.run, func(string) error { return nil })
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(result{o.run.Prompt, report, group.Workers})
	}
	fmt.Fprintf(stdout, "%d workers hold the model:\n", len(group.Workers))
	if err := group.Table(stdout); err != nil {
		return fmt.Errorf("the workers cannot be shown: %w", err)
	}
	fmt.Fprintf(stdout, "\n%s", o.run.Prompt)
	report, err := run.Generate(ctx, o.run, func(text string) error {
		_, err := io.WriteString(stdout, text)
		return err
	})
	fmt.Fprint(stdout, "\n\n")
	if err != nil {
		return err
	}
	return tell(stdout, report, group)
}

// tell says what ran where.
func tell(w io.Writer, report *run.Report, group *up.Group) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "hop\tlayers\tprocess\taddress\tcompute")
	for i, hop := range report.Hops {
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%.3f ms a token\n", hop.Index, hop.Layers, group.Workers[i].PID, hop.Address, hop.ComputeMS)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("the summary cannot be written: %w", err)
	}
	fmt.Fprintf(w, "%s\n", report.Speeds())
	fmt.Fprintf(w, "\nEach token went through %d processes. To keep the workers and ask them again:\n  dgr up --workers %d --model %s\n",
		len(group.Workers), len(group.Workers), quote(group.Path))
	return nil
}

// quote makes a path one word of a shell.
func quote(path string) string {
	if strings.ContainsAny(path, " '\"$\\") {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}
