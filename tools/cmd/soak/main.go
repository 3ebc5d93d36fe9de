// Command soak drives real workers with sessions at random and shows that all that they used comes back.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/distributed-gguf-runtime/dgr/tools/soak"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "soak: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	sessions := flags.Int("sessions", 1000, "sessions at a time")
	duration := flags.Duration("duration", 5*time.Minute, "how long they are driven")
	seed := flags.Uint64("seed", 1, "of what is done at random")
	if err := flags.Parse(args); err != nil {
		return err
	}
	space, err := workspace.Open(".")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "soak")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "dgr-worker")
	if err := space.Run(ctx, "", []string{"CGO_ENABLED=0"}, "go", "build", "-o", program, "./services/worker/cmd/dgr-worker"); err != nil {
		return err
	}
	return soak.Run(ctx, soak.Options{Worker: program, Sessions: *sessions, Duration: *duration, Seed: *seed, Out: os.Stdout})
}
