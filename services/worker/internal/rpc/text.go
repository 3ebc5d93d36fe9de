package rpc

import (
	"bytes"
	"context"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// textService is TextService.
type textService struct {
	workerpb.UnimplementedTextServiceServer
	server *Server
}

// text is the vocabulary of the model that the caller means.
func (t *textService) text(fingerprint []byte) (engine.TextEngine, error) {
	l := t.server.options.Shard.Status().Loaded
	switch {
	case len(fingerprint) != 32:
		return nil, session.Malformed("fingerprint", "32 bytes")
	case l == nil:
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "worker %s", t.server.options.WorkerID)
	case !bytes.Equal(fingerprint, l.Fingerprint[:]):
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, "worker %s holds the model %x, the caller means %x",
			t.server.options.WorkerID, l.Fingerprint[:6], fingerprint[:6])
	}
	return l.Text, nil
}

func (t *textService) Tokenize(ctx context.Context, r *workerpb.TokenizeRequest) (*workerpb.TokenizeResponse, error) {
	text, err := t.text(r.GetFingerprint())
	if err != nil {
		return nil, err
	}
	ids, err := text.Tokenize(ctx, r.GetText(), r.GetAddSpecial(), r.GetParseSpecial())
	if err != nil {
		return nil, err
	}
	return &workerpb.TokenizeResponse{Tokens: numbersOf(ids)}, nil
}

func (t *textService) Detokenize(ctx context.Context, r *workerpb.DetokenizeRequest) (*workerpb.DetokenizeResponse, error) {
	text, err := t.text(r.GetFingerprint())
	if err != nil {
		return nil, err
	}
	ids := make([]engine.TokenID, len(r.GetTokens()))
	for i, id := range r.GetTokens() {
		ids[i] = engine.TokenID(id)
	}
	data, err := text.Detokenize(ctx, ids, r.GetSpecial())
	return &workerpb.DetokenizeResponse{Data: data}, err
}

func (t *textService) RenderChat(ctx context.Context, r *workerpb.RenderChatRequest) (*workerpb.RenderChatResponse, error) {
	text, err := t.chat(r.GetFingerprint())
	if err != nil {
		return nil, err
	}
	prompt, err := text.RenderChat(ctx, engine.ChatRequest{
		Messages: r.GetMessagesJson(), Tools: r.GetToolsJson(), ToolChoice: r.GetToolChoice(), JSONSchema: r.GetJsonSchema(),
		TemplateArguments: r.GetTemplateArgumentsJson(), AddGenerationPrompt: r.AddGenerationPrompt == nil || r.GetAddGenerationPrompt(),
	})
	if err != nil {
		return nil, err
	}
	answer := &workerpb.RenderChatResponse{
		Prompt: prompt.Prompt, Tokens: numbersOf(prompt.Tokens), Stops: prompt.Stops, Parser: prompt.Parser,
	}
	if g := prompt.Grammar; g != nil {
		answer.Grammar = &workerpb.Grammar{
			Text: g.Text, Lazy: g.Lazy, TriggerPatterns: g.TriggerPatterns, TriggerTokens: numbersOf(g.TriggerTokens), Prefill: g.Prefill,
		}
	}
	return answer, nil
}

func (t *textService) ParseChat(ctx context.Context, r *workerpb.ParseChatRequest) (*workerpb.ParseChatResponse, error) {
	text, err := t.chat(r.GetFingerprint())
	if err != nil {
		return nil, err
	}
	message, err := text.ParseChat(ctx, r.GetParser(), r.GetText(), r.GetPartial())
	if err != nil {
		return nil, err
	}
	return &workerpb.ParseChatResponse{MessageJson: message}, nil
}

// chat is text of a model that has a chat template.
func (t *textService) chat(fingerprint []byte) (engine.TextEngine, error) {
	text, err := t.text(fingerprint)
	if err != nil {
		return nil, err
	}
	if !text.HasChatTemplate() {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_NO_TEMPLATE, "")
	}
	return text, nil
}

func numbersOf(tokens []engine.TokenID) []uint32 {
	numbers := make([]uint32, len(tokens))
	for i, token := range tokens {
		numbers[i] = uint32(token)
	}
	return numbers
}
