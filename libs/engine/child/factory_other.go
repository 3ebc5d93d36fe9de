//go:build !unix

package child

import (
	"context"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Available says whether this system can.
const Available = false

var errNoProcess = engine.Errorf(engine.UnsupportedFeature, "an engine cannot run in a process of its own on this system yet; run it in the worker's")

// Factory makes nothing here.
func Factory(Options) engine.Factory {
	return func() (engine.ShardEngine, engine.TextEngine, error) { return nil, nil, errNoProcess }
}

// Serve serves nothing here.
func Serve(context.Context, engine.Factory) error { return errNoProcess }
