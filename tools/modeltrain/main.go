// Command modeltrain trains the model that libs/native/handbook carries, in plain Go and on one core, from the handbook's
// text. With its defaults it repeats the recipe of the committed file; on the same kind of machine the bytes are the same.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/golden"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/recipe"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a fault in the flags.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand(recipe.Default(), golden.Prompts()).ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "modeltrain: %v\n", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}
