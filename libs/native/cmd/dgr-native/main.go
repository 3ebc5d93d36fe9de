// Command dgr-native fetches, patches, builds and tests the native library.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/native/build"
	"github.com/distributed-gguf-runtime/dgr/libs/native/source"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dgr-native:", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
		stop()
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dgr-native",
		Short: "Fetch, patch, build and test the native library",
		Long: "Works on libs/native of the repository it is run in. Sources and builds are kept in $" + source.CacheVariable +
			", or in dgr/native of the user's cache directory.\n\nWhere llama.cpp cannot be downloaded, DGR_LLAMA_SOURCE names a git repository, a git bundle or a directory with it. " +
			build.PortableVariable + "=1 builds for the least instruction set instead of this machine's. CC and CXX choose the compilers.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(fetch(), patch(), buildCommand(), env(), test())
	return cmd
}

// stderr is where progress goes, so that standard output stays with results.
func stderr(cmd *cobra.Command) func(string) {
	return func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
}

func open(cmd *cobra.Command) (*source.Store, error) {
	return source.Open(source.Options{Report: stderr(cmd)})
}

func builder(cmd *cobra.Command) (*build.Builder, error) {
	return build.New(build.Options{Report: stderr(cmd)})
}

func fetch() *cobra.Command {
	return &cobra.Command{
		Use:   "fetch",
		Short: "Fetch the pinned llama.cpp, check its tree hash and print its directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := open(cmd)
			if err != nil {
				return err
			}
			dir, err := store.Fetch(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), dir)
			return nil
		},
	}
}

func patch() *cobra.Command {
	cmd := &cobra.Command{Use: "patch", Short: "Verify or refresh the patch queue"}
	verify := &cobra.Command{
		Use:   "verify",
		Short: "Prove that pin, source and patches are what they should be",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := open(cmd)
			if err != nil {
				return err
			}
			return store.Verify(cmd.Context())
		},
	}
	var from string
	refresh := &cobra.Command{
		Use:   "refresh",
		Short: "Write the queue and its series anew for the source that pin.json names",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := open(cmd)
			if err != nil {
				return err
			}
			return store.Refresh(cmd.Context(), from)
		},
	}
	refresh.Flags().StringVar(&from, "from", "", "git work tree whose commits behind the pinned tree become the queue")
	cmd.AddCommand(verify, refresh)
	return cmd
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the native library, or find it built, and print its directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := builder(cmd)
			if err != nil {
				return err
			}
			result, err := b.Build(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), result.Dir)
			return nil
		},
	}
}

func env() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Build, and print the environment that `go build -tags llama` needs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := builder(cmd)
			if err != nil {
				return err
			}
			result, err := b.Build(cmd.Context())
			if err != nil {
				return err
			}
			for _, v := range result.Env() {
				fmt.Fprintln(cmd.OutOrStdout(), v)
			}
			return nil
		},
	}
}

func test() *cobra.Command {
	return &cobra.Command{
		Use:   "test",
		Short: "Build and run the native tests (CTest)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := builder(cmd)
			if err != nil {
				return err
			}
			return b.Test(cmd.Context(), cmd.ErrOrStderr())
		},
	}
}
