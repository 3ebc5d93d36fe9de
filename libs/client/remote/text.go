package remote

import (
	"context"
	"unicode/utf8"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// text is the worker's TextService.
type text struct{ e *Engine }

// Tokenize returns the ids of text, which must be UTF-8.
func (t text) Tokenize(ctx context.Context, text string, addSpecial, parseSpecial bool) ([]engine.TokenID, error) {
	if err := t.e.allowed(loaded); err != nil {
		return nil, err
	}
	if !utf8.ValidString(text) {
		return nil, engine.Errorf(engine.Malformed, "the text is no UTF-8, and the wire carries nothing else; tokenize it where the model is")
	}
	ids, err := t.e.client.Tokenize(ctx, t.e.fingerprint, text, addSpecial, parseSpecial)
	if err != nil {
		return nil, refused(err)
	}
	return tokensOf(ids), nil
}

// Detokenize returns the bytes of ids.
func (t text) Detokenize(ctx context.Context, tokens []engine.TokenID, special bool) ([]byte, error) {
	if err := t.e.allowed(loaded); err != nil {
		return nil, err
	}
	data, err := t.e.client.Detokenize(ctx, t.e.fingerprint, ids(tokens), special)
	return data, refused(err)
}

// CheckGrammar is UNSUPPORTED_FEATURE: the wire has no call for it.
func (t text) CheckGrammar(context.Context, engine.Grammar) error {
	if err := t.e.allowed(loaded); err != nil {
		return err
	}
	return engine.Errorf(engine.UnsupportedFeature, "the wire has no call that checks a grammar alone; a step that has it says what is wrong before anything is evaluated")
}

// HasChatTemplate says what the worker's capability said.
func (t text) HasChatTemplate() bool {
	t.e.mu.Lock()
	defer t.e.mu.Unlock()
	return t.e.template
}

// RenderChat makes a prompt of a conversation.
func (t text) RenderChat(ctx context.Context, r engine.ChatRequest) (engine.ChatPrompt, error) {
	if err := t.e.allowed(loaded); err != nil {
		return engine.ChatPrompt{}, err
	}
	for _, field := range []struct{ name, value string }{
		{"messages_json", r.Messages}, {"tools_json", r.Tools}, {"tool_choice", r.ToolChoice}, {"json_schema", r.JSONSchema},
		{"template_arguments_json", r.TemplateArguments},
	} {
		if !utf8.ValidString(field.value) {
			return engine.ChatPrompt{}, engine.Errorf(engine.Malformed, "%s is no UTF-8; send nothing else", field.name)
		}
	}
	m, err := t.e.client.RenderChat(ctx, t.e.fingerprint, &workerpb.RenderChatRequest{
		MessagesJson: r.Messages, ToolsJson: r.Tools, ToolChoice: r.ToolChoice, JsonSchema: r.JSONSchema,
		TemplateArgumentsJson: r.TemplateArguments, AddGenerationPrompt: &r.AddGenerationPrompt,
	})
	if err != nil {
		return engine.ChatPrompt{}, refused(err)
	}
	p := engine.ChatPrompt{Prompt: m.GetPrompt(), Tokens: tokensOf(m.GetTokens()), Stops: m.GetStops(), Parser: m.GetParser()}
	if g := m.GetGrammar(); g != nil {
		p.Grammar = &engine.Grammar{
			Text: g.GetText(), Lazy: g.GetLazy(), TriggerPatterns: g.GetTriggerPatterns(), TriggerTokens: tokensOf(g.GetTriggerTokens()), Prefill: g.GetPrefill(),
		}
	}
	return p, nil
}

// ParseChat makes a message of an answer.
func (t text) ParseChat(ctx context.Context, parser []byte, text string, partial bool) (string, error) {
	if err := t.e.allowed(loaded); err != nil {
		return "", err
	}
	if !utf8.ValidString(text) {
		return "", engine.Errorf(engine.Malformed, "the answer is no UTF-8; hold back a character until it is whole")
	}
	message, err := t.e.client.ParseChat(ctx, t.e.fingerprint, parser, text, partial)
	return message, refused(err)
}

func tokensOf(ids []uint32) []engine.TokenID {
	out := make([]engine.TokenID, len(ids))
	for i, id := range ids {
		out[i] = engine.TokenID(id)
	}
	return out
}

func ids(tokens []engine.TokenID) []uint32 {
	out := make([]uint32, len(tokens))
	for i, token := range tokens {
		out[i] = uint32(token)
	}
	return out
}
