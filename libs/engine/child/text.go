//go:build unix

package child

import (
	"context"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child/internal/wire"
)

const (
	chatsAtOnce  = 2
	chatPatience = 4 // times the patience with other calls
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

func (t text) RenderChat(ctx context.Context, request engine.ChatRequest) (engine.ChatPrompt, error) {
	reply, err := t.engine.chat(ctx, "RenderChat", wire.Call{Chat: request})
	return reply.Prompt, err
}

func (t text) ParseChat(ctx context.Context, parser []byte, s string, partial bool) (string, error) {
	reply, err := t.engine.chat(ctx, "ParseChat", wire.Call{Parser: parser, Text: s, Partial: partial})
	return reply.Message, err
}

// chat makes a call that an engine may compute at for a while, by a bound of its own. Few run at once, so that none waits
// in the child for others; where one takes as long as no bound allows, native code hangs.
func (e *Engine) chat(ctx context.Context, method string, c wire.Call) (wire.Reply, error) {
	select {
	case e.chats <- struct{}{}:
		defer func() { <-e.chats }()
	case <-ctx.Done():
		return wire.Reply{}, engine.Errorf(engine.Cancelled, "%s was cancelled: %w", method, context.Cause(ctx))
	}
	return e.within(chatPatience*e.patience, method, c)
}

func (t text) CheckGrammar(_ context.Context, grammar engine.Grammar) error {
	_, err := t.engine.quick("CheckGrammar", wire.Call{Grammar: grammar})
	return err
}

func (t text) HasChatTemplate() bool {
	t.engine.mu.Lock()
	defer t.engine.mu.Unlock()
	return t.engine.template
}
