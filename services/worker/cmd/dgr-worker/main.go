// Command dgr-worker serves one shard of a GGUF model: it loads layers [FIRST, END), takes sessions over gRPC, and hands
// boundaries on to the next worker of a route.
//
// main chooses the engine, builds the rooms of services/worker/internal and joins them; it holds no rule of the contract.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/config"
)

// version of the worker, semantic.
const version = "0.1.0"

// Exit codes.
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	calm()
	if len(os.Args) > 1 && os.Args[1] == engineProcess {
		os.Exit(serveEngine(context.Background(), os.Args[2:]))
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	os.Exit(run(process{args: os.Args[1:], environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, signals: signals}))
}

// process is what the operating system gives to a program.
type process struct {
	args, environ  []string
	stdin          io.Reader
	stdout, stderr *os.File
	signals        <-chan os.Signal
}

// usage is a fault of the command line or of the configuration.
type usage struct{ error }

// run is the whole program; it returns the exit code.
func run(p process) int {
	command := &cobra.Command{
		Use: "dgr-worker", Version: version, Args: flagsOnly, SilenceErrors: true, SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := config.Load(c.Flags(), p.environ)
			if err != nil {
				return usage{err}
			}
			return work(c.Context(), p, cfg)
		},
	}
	command.SetArgs(p.args)
	command.SetOut(p.stdout)
	command.SetErr(p.stderr)
	command.CompletionOptions.DisableDefaultCmd = true
	command.SetVersionTemplate("dgr-worker {{.Version}}\n")
	command.SetHelpFunc(func(*cobra.Command, []string) { fmt.Fprint(p.stdout, help()) })
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage{fmt.Errorf("%w; dgr-worker --help lists all flags", err)}
	})
	config.AddFlags(command.Flags())
	return report(p.stderr, command.ExecuteContext(context.Background()))
}

// report prints an error, a sentence a line, and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitFine
	}
	for line := range strings.SplitSeq(sentence(err), "\n") {
		fmt.Fprintf(w, "dgr-worker: %s\n", line)
	}
	if u := (usage{}); errors.As(err, &u) {
		return exitUsage
	}
	return exitFailed
}

// flagsOnly refuses anything that is no flag.
func flagsOnly(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usage{fmt.Errorf("%q is no flag, and the worker takes nothing else; dgr-worker --help lists all flags", args[0])}
}

// sentence is what a person reads of err. An engine's own words are nearer to the matter than the table's.
func sentence(err error) string {
	var e *engine.Error
	if errors.As(err, &e) {
		return e.Message
	}
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Message
	}
	return err.Error()
}

// help teaches the command.
func help() string {
	return `dgr-worker serves layers [FIRST, END) of a GGUF model. Several workers whose layers follow one another form a
route that answers like the whole model; dgr run and the gateway drive it.

Usage:
  dgr-worker --model PATH [--layers FIRST:END] [flags]

Examples:
  A whole model on this machine:
    dgr-worker --model m.gguf

  A model of 5 layers over two workers; the first may dial the second:
    dgr-worker --model m.gguf --layers 0:3 --listen 127.0.0.1:7711 --admin 127.0.0.1:7712 --chain-allow 127.0.0.1:7721
    dgr-worker --model m.gguf --layers 3:  --listen 127.0.0.1:7721 --admin 127.0.0.1:7722
    dgr run --route 127.0.0.1:7711,127.0.0.1:7721 -p "Once upon a time"

  For others on the network, who prove by certificates who they are:
    dgr-worker --model m.gguf --layers 0:3 --listen 10.0.0.1:7711 --tls-cert w0.pem --tls-key w0.key --tls-client-ca fleet.pem \
      --tls-allow 'driver.example=infer+text+observe' --chain-ca fleet.pem --chain-allow '10.0.0.2:7711=w1.example'

  Without a model, for trying a client:
    dgr-worker --engine fake --model fake:layers=5

  Is it ready, how far is the load:
    curl http://127.0.0.1:7712/readyz
` + config.Usage() + `
Every flag can also stand in the environment (--cache-type is DGR_CACHE_TYPE) and in the file that --config or
DGR_CONFIG names (cache_type; --chain-allow is allow below chain). Flags go before environment, environment before file.

  -c, --config PATH              YAML file with any of these options
  -h, --help                     this text
      --version                  the version

SIGTERM and SIGINT drain: no new sessions, open ones get --drain to end. A second signal ends the worker at once.

Exit codes:
  0  ended as asked
  1  could not load, listen or go on
  2  a flag, a variable or the file is wrong; every fault is named
`
}
