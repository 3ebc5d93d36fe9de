//go:build unix

package child

import "github.com/distributed-gguf-runtime/dgr/libs/engine"

// Available says whether this system can.
const Available = true

// Factory makes engines that run in processes of their own.
func Factory(o Options) engine.Factory {
	return func() (engine.ShardEngine, engine.TextEngine, error) {
		e, err := New(o)
		if err != nil {
			return nil, nil, err
		}
		return e, text{e}, nil
	}
}
