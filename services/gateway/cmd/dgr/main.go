// Command dgr is the command line of the distributed GGUF runtime: it continues prompts over workers, starts workers on
// this machine, and looks at models.
//
// main joins the commands and says how they failed; each command lives in a room of services/gateway/internal.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/demo"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/inspect"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/plan"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/run"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/split"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/up"
)

// version of dgr, semantic.
const version = "0.1.0"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends dgr at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute is the whole program; it returns the exit code.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := command()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return fail.Fine
	}
	if ctx.Err() != nil && errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_CANCELLED)) {
		err = fail.ErrInterrupted
	}
	asJSON, _ := ran.Flags().GetBool("json")       // false where there is no such flag
	if asJSON || slices.Contains(args, "--json") { // also when reading the flags failed before it came to this one
		fmt.Fprintf(stdout, "%s\n", fail.JSON(err))
	} else {
		fmt.Fprintf(stderr, "dgr: %s\n", fail.Text(err))
	}
	return fail.Code(err)
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "dgr",
		Short: "Run one GGUF model over several machines",
		Long: `dgr runs one GGUF model over several workers, each of which holds some of its layers.

Exit codes: 0 fine, 1 failed, 2 wrong command line. Every failure is one sentence on standard error, or with --json one
JSON object on standard output.`,
		Example: `  dgr demo                                             see it work, without a download
  dgr up --model m.gguf --workers 2                    two workers on this machine
  dgr run --route 127.0.0.1:7711,127.0.0.1:7721 -p "Once upon a time"
  dgr inspect m.gguf                                   what is in a model file
  dgr plan --model m.gguf --memory 8GiB,4GiB           which layers go to which machine
  dgr split m.gguf --layers 0:12,12:                   a file for each of them`,
		Version: version, SilenceErrors: true, SilenceUsage: true,
	}
	root.SetVersionTemplate("dgr {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(run.Command(), up.Command(), demo.Command(), inspect.Command(), plan.Command(), split.Command())
	for _, c := range append(root.Commands(), root) {
		strict(c)
	}
	return root
}

// strict makes every fault of the command line one of exit code 2 that says where help is.
func strict(c *cobra.Command) {
	path := c.CommandPath()
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) { // whose own words are those of the number's parser
			return fail.Usagef("%q is no value for --%s; %s --help shows all flags", invalid.GetValue(), invalid.GetFlag().Name, path)
		}
		return fail.Usagef("%w; %s --help shows all flags", err, path)
	})
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, given []string) error {
			if err := args(c, given); err != nil {
				return fail.Usagef("%w; %s --help shows how it is used", err, path)
			}
			return nil
		}
	}
	if c.RunE == nil && c.Run == nil {
		c.Args = func(_ *cobra.Command, given []string) error {
			if len(given) > 0 {
				return fail.Usagef("there is no command %q; dgr --help shows all: %s", given[0], strings.Join(names(c), ", "))
			}
			return nil
		}
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
}

func names(c *cobra.Command) []string {
	var list []string
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			list = append(list, sub.Name())
		}
	}
	return list
}
