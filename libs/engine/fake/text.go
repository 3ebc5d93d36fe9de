package fake

import (
	"context"
	"fmt"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// The vocabulary: a few special tokens, then the 256 bytes, then special tokens without meaning up to Options.Vocab.
const (
	BeginOfText engine.TokenID = 0
	EndOfText   engine.TokenID = 1 // ends an answer
	Unknown     engine.TokenID = 2
	FirstByte   engine.TokenID = 3
	MinVocab    uint32         = 256 + uint32(FirstByte)
)

// ByteToken is the token of one byte.
func ByteToken(b byte) engine.TokenID { return FirstByte + engine.TokenID(b) }

func isByte(id engine.TokenID) bool { return id >= FirstByte && uint32(id) < MinVocab }

func readable(id engine.TokenID) bool {
	return id == ByteToken(' ') || id >= ByteToken('a') && id <= ByteToken('z')
}

// tokenBytes is a token detokenised alone; special tokens are empty.
func tokenBytes(id engine.TokenID) []byte {
	if isByte(id) {
		return []byte{byte(id - FirstByte)}
	}
	return nil
}

func specialText(id engine.TokenID) string {
	switch id {
	case BeginOfText:
		return "<s>"
	case EndOfText:
		return "</s>"
	case Unknown:
		return "<unk>"
	}
	return fmt.Sprintf("<x%d>", id)
}

// text is the TextEngine of a fake.
type text struct{ engine *fakeEngine }

func (t *text) Tokenize(_ context.Context, input string, addSpecial, parseSpecial bool) ([]engine.TokenID, error) {
	if err := t.engine.loaded(); err != nil {
		return nil, err
	}
	tokens := make([]engine.TokenID, 0, len(input)+1)
	if addSpecial {
		tokens = append(tokens, BeginOfText)
	}
	for i := 0; i < len(input); {
		if id, size := t.special(input[i:]); parseSpecial && size > 0 {
			tokens = append(tokens, id)
			i += size
			continue
		}
		tokens = append(tokens, ByteToken(input[i]))
		i++
	}
	return tokens, nil
}

// special finds a special token at the start of s; size is 0 when there is none.
func (t *text) special(s string) (id engine.TokenID, size int) {
	for _, id := range []engine.TokenID{BeginOfText, EndOfText, Unknown} {
		if strings.HasPrefix(s, specialText(id)) {
			return id, len(specialText(id))
		}
	}
	var number uint32
	if n, _ := fmt.Sscanf(s, "<x%d>", &number); n != 1 || number < MinVocab || number >= t.engine.options.Vocab {
		return 0, 0
	}
	written := specialText(engine.TokenID(number))
	if !strings.HasPrefix(s, written) { // as <x0300> or <x300
		return 0, 0
	}
	return engine.TokenID(number), len(written)
}

func (t *text) Detokenize(_ context.Context, tokens []engine.TokenID, special bool) ([]byte, error) {
	if err := t.engine.loaded(); err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(tokens))
	for _, id := range tokens {
		if uint32(id) >= t.engine.options.Vocab {
			return nil, outOfRange(id, t.engine.options.Vocab)
		}
		if special && !isByte(id) {
			out = append(out, specialText(id)...)
			continue
		}
		out = append(out, tokenBytes(id)...)
	}
	return out, nil
}

func (t *text) CheckGrammar(context.Context, engine.Grammar) error {
	if err := t.engine.loaded(); err != nil {
		return err
	}
	return noGrammars()
}

func (t *text) HasChatTemplate() bool {
	return t.engine.options.ChatTemplate && t.engine.loaded() == nil
}

func outOfRange(id engine.TokenID, vocab uint32) error {
	return engine.Errorf(engine.TokenOutOfRange, "token %d is not in the vocabulary of %d", id, vocab)
}
