//go:build !(llama && cgo)

package llama

import "github.com/distributed-gguf-runtime/dgr/libs/engine"

// New fails: this program was built without llama.cpp.
func New() (engine.ShardEngine, engine.TextEngine, error) {
	return nil, nil, engine.Errorf(engine.UnsupportedFeature,
		"this program was built without llama.cpp: run `go tool mage native:build`, then build with `-tags llama` and the environment that `dgr-native env` prints")
}
