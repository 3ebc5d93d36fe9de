//go:build unix

package child

import (
	"context"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child/internal/wire"
)

// text is the TextEngine of a child.
type text struct{ engine *Engine }

func (t text) Tokenize(_ context.Context, s string, addSpecial, parseSpecial bool) ([]engine.TokenID, error) {
	reply, err := t.engine.quick("Tokenize", wire.Call{Text: s, Add: addSpecial, Special: parseSpecial})
	return reply.Tokens, err
}

func (t text) Detokenize(_ context.Context, tokens []engine.TokenID, special bool) ([]byte, error) {
	reply, err := t.engine.quick("Detokenize", wire.Call{Tokens: tokens, Special: special})
	return reply.Bytes, err
}

func (t text) HasChatTemplate() bool {
	t.engine.mu.Lock()
	defer t.engine.mu.Unlock()
	return t.engine.template
}
