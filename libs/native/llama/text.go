//go:build llama && cgo

package llama

import (
	"context"
	"sync"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// textEngine is the TextEngine of a shardEngine.
type textEngine struct {
	mu     sync.RWMutex  // held for reading inside native code, so that it is not freed there
	native *native       // nil unless the engine is Loaded
	absent error         // why native is nil; nil: nothing was loaded yet
	chats  chan struct{} // one for each chat call that runs
}

func (t *textEngine) attach(n *native) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.native = n
}

// detach waits for running calls and lets later ones fail with reason.
func (t *textEngine) detach(reason error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.native, t.absent = nil, reason
}

// refusal is nil when there is a vocabulary. The caller holds mu for reading.
func (t *textEngine) refusal() error {
	switch {
	case t.native != nil:
		return nil
	case t.absent != nil:
		return t.absent
	}
	return engine.Errorf(engine.LifecycleViolation, "the llama.cpp engine holds no vocabulary; load a shard first")
}

// Tokenize returns the ids of text.
func (t *textEngine) Tokenize(ctx context.Context, text string, addSpecial, parseSpecial bool) ([]engine.TokenID, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.refusal(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, interrupted(ctx)
	}
	ids, message := make([]engine.TokenID, len(text)/2+8), make([]byte, 256)
	count, short, err := t.native.tokenize(text, addSpecial, parseSpecial, ids, message)
	if short {
		ids = make([]engine.TokenID, count)
		count, _, err = t.native.tokenize(text, addSpecial, parseSpecial, ids, message)
	}
	if err != nil {
		return nil, err
	}
	return ids[:count:count], nil
}

// Detokenize returns the bytes of ids.
func (t *textEngine) Detokenize(ctx context.Context, tokens []engine.TokenID, special bool) ([]byte, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.refusal(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, interrupted(ctx)
	}
	for _, token := range tokens {
		if err := checkToken(token, t.native.info.vocab); err != nil {
			return nil, err
		}
	}
	return t.native.bytes(tokens, special, make([]byte, 256))
}

// bytes detokenises ids that are all in the vocabulary. message is room of the caller's.
func (n *native) bytes(ids []engine.TokenID, special bool, message []byte) ([]byte, error) {
	out := make([]byte, 8*len(ids)+8)
	count, short, err := n.detokenize(ids, special, out, message)
	if short {
		out = make([]byte, count)
		count, _, err = n.detokenize(ids, special, out, message)
	}
	if err != nil {
		return nil, err
	}
	return out[:count:count], nil
}

// CheckGrammar compiles a grammar and forgets it.
func (t *textEngine) CheckGrammar(ctx context.Context, source engine.Grammar) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.refusal(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return interrupted(ctx)
	}
	g, err := t.native.compile(&source, make([]byte, 512))
	g.free()
	return err
}

// HasChatTemplate says whether the header has a template.
func (t *textEngine) HasChatTemplate() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.native != nil && t.native.info.chatTemplate
}

func checkToken(token engine.TokenID, vocab uint32) error {
	if uint32(token) >= vocab {
		return engine.Errorf(engine.TokenOutOfRange, "token %d is out of range; the vocabulary ends before %d", token, vocab)
	}
	return nil
}
