//go:build llama && cgo

package llama

import (
	"context"
	"encoding/json"
	"unicode/utf8"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// chatsAtOnce bounds what rendering takes beside the batches: each may hold as much memory as the shim allows.
const chatsAtOnce = 2

// nativeRequest is a request as dgr_chat_render takes it.
type nativeRequest struct {
	Messages  string `json:"messages"`
	Tools     string `json:"tools"`
	Choice    string `json:"choice"`
	Schema    string `json:"schema"`
	Arguments string `json:"arguments"`
	Generate  bool   `json:"generate"`
}

// nativePrompt is a prompt as dgr_chat_render gives it.
type nativePrompt struct {
	Prompt  string           `json:"prompt"`
	Tokens  []engine.TokenID `json:"tokens"`
	Stops   []string         `json:"stops"`
	Parser  string           `json:"parser"`
	Grammar *struct {
		Text     string           `json:"text"`
		Lazy     bool             `json:"lazy"`
		Patterns []string         `json:"patterns"`
		Tokens   []engine.TokenID `json:"tokens"`
		Prefill  string           `json:"prefill"`
	} `json:"grammar"`
}

// RenderChat makes a prompt of a conversation.
func (t *textEngine) RenderChat(ctx context.Context, r engine.ChatRequest) (engine.ChatPrompt, error) {
	for field, text := range map[string]string{
		"messages_json": r.Messages, "tools_json": r.Tools, "tool_choice": r.ToolChoice, "json_schema": r.JSONSchema,
		"template_arguments_json": r.TemplateArguments,
	} {
		if !utf8.ValidString(text) {
			return engine.ChatPrompt{}, engine.Errorf(engine.Malformed, "%s is no UTF-8", field)
		}
	}
	request, err := json.Marshal(nativeRequest{r.Messages, r.Tools, r.ToolChoice, r.JSONSchema, r.TemplateArguments, r.AddGenerationPrompt})
	if err != nil {
		return engine.ChatPrompt{}, engine.Errorf(engine.Malformed, "write the request: %w", err)
	}
	answer, err := t.chat(ctx, func(n *native, message []byte) ([]byte, error) { return n.renderChat(request, message) })
	if err != nil {
		return engine.ChatPrompt{}, err
	}
	var p nativePrompt
	if err := json.Unmarshal(answer, &p); err != nil {
		return engine.ChatPrompt{}, engine.Errorf(engine.EngineFault, "read what the chat code wrote: %w", err)
	}
	prompt := engine.ChatPrompt{Prompt: p.Prompt, Tokens: p.Tokens, Stops: p.Stops, Parser: []byte(p.Parser)}
	if g := p.Grammar; g != nil {
		prompt.Grammar = &engine.Grammar{
			Text: g.Text, Lazy: g.Lazy, TriggerPatterns: g.Patterns, TriggerTokens: g.Tokens, Prefill: g.Prefill,
		}
	}
	return prompt, nil
}

// ParseChat makes a message of an answer.
func (t *textEngine) ParseChat(ctx context.Context, parser []byte, text string, partial bool) (string, error) {
	answer, err := t.chat(ctx, func(n *native, message []byte) ([]byte, error) { return n.parseChat(parser, text, partial, message) })
	return string(answer), err
}

// chat makes a native call when there are not too many. Native code bounds its own time.
func (t *textEngine) chat(ctx context.Context, call func(n *native, message []byte) ([]byte, error)) ([]byte, error) {
	select {
	case t.chats <- struct{}{}:
		defer func() { <-t.chats }()
	case <-ctx.Done():
		return nil, interrupted(ctx)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.refusal(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, interrupted(ctx)
	}
	return call(t.native, make([]byte, 1024))
}
