package up

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/layers"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/progress"
)

// Command is `dgr up`.
func Command() *cobra.Command {
	o := Default()
	var parts string
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "up --model MODEL.gguf",
		Short: "Start workers for a model on this machine, for trying",
		Long: `Starts workers on free loopback ports, cuts the model's layers among them so that each reads about as many bytes, waits
until all are ready and prints how to use them. They run until Ctrl-C, and end together: when one dies, it is named and
all stop. On many machines, start dgr-worker on each instead.`,
		Example: `  dgr up --model m.gguf --workers 2
  dgr up --model m-00001-of-00003.gguf --layers 0:10,10:32 --context 8192
  dgr up --model fake:layers=6 --workers 3        without a model, for trying a client
  dgr up --model m.gguf --json                    one line of JSON once all are ready`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Model == "" {
				return fail.Usagef("--model names no model; give the path of a GGUF file")
			}
			if parts != "" {
				if cmd.Flags().Changed("workers") {
					return fail.Usagef("--layers and --workers both say how many workers there are; give one")
				}
				list, err := layers.Parse(parts)
				if err != nil {
					return err
				}
				o.Layers = list
			}
			if o.Workers < 1 || o.Workers > 32 || len(o.Layers) > 32 {
				return fail.Usagef("a route has 1 to 32 workers")
			}
			return serve(cmd.Context(), o, asJSON, verbose, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Model, "model", "m", "", "GGUF file, or any of its parts")
	f.Uint32Var(&o.Workers, "workers", o.Workers, "how many workers")
	f.StringVar(&parts, "layers", "", "which layers each worker gets, as 0:2,2:5, instead of --workers")
	f.StringVar(&o.Engine, "engine", "", "llama, or fake for a model named fake; chosen by the model's name if absent")
	f.StringVar(&o.Binary, "worker-binary", "", "the dgr-worker program; looked for beside dgr and in $PATH if absent")
	f.Uint32Var(&o.Context, "context", 0, "longest context of a session, tokens; 0 is the worker's default")
	f.Uint32Var(&o.Sessions, "sessions", 0, "sessions at once; 0 is the worker's default")
	f.Uint32Var(&o.Threads, "threads", 0, "compute threads of each worker; 0 divides the cores of this machine")
	f.DurationVar(&o.Patience, "ready-timeout", o.Patience, "how long the workers may take to be ready")
	f.BoolVarP(&verbose, "verbose", "v", false, "show the workers' logs")
	f.BoolVar(&asJSON, "json", false, "print one line of JSON once all workers are ready, also for an error")
	return cmd
}

func serve(ctx context.Context, o Options, asJSON, verbose bool, stdout, stderr io.Writer) error {
	finish := o.Show(stderr, verbose)
	g, err := Start(ctx, o)
	finish()
	if err != nil {
		return err
	}
	defer g.Stop()
	if asJSON {
		err = json.NewEncoder(stdout).Encode(struct {
			Route   string   `json:"route"`
			Workers []Worker `json:"workers"`
		}{strings.Join(g.Route(), ","), g.Workers})
	} else {
		err = g.print(stdout)
	}
	if err != nil {
		return fmt.Errorf("the workers' addresses cannot be written: %w", err)
	}
	return g.Wait(ctx)
}

// print is a table for a person, and what to do next.
func (g *Group) print(w io.Writer) error {
	if err := g.Table(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nReady. In another terminal:\n  dgr run --route %s -p \"Once upon a time\"\n\nCtrl-C stops all workers.\n", strings.Join(g.Route(), ","))
	return err
}

// Table is who holds what.
func (g *Group) Table(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "hop\tlayers\tprocess\taddress\tadmin")
	for i, worker := range g.Workers {
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\thttp://%s/\n", i, worker.Layers, worker.PID, worker.Address, worker.Admin)
	}
	return table.Flush()
}

// Show lets a person see what goes on while workers start: a bar on a terminal while the model is identified, now and then
// how far each load is, and all of the workers' logs if verbose. finish takes the bar away.
func (o *Options) Show(w io.Writer, verbose bool) (finish func()) {
	bar := progress.New(w, "identifying the model")
	o.Progress = bar.Show
	var lines sync.Mutex
	say := func(part engine.LayerRange, text string) {
		lines.Lock()
		defer lines.Unlock()
		fmt.Fprintf(w, "layers %s | %s\n", layers.Show(part), text)
	}
	if verbose {
		o.Log = say
	} else {
		o.Loading = func(part engine.LayerRange, phase string, done, total uint64) {
			if total > 0 {
				phase += fmt.Sprintf(", %d %%", 100*done/total)
			}
			say(part, phase)
		}
	}
	return bar.Finish
}
