package conformance

import (
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const talk = `[{"role":"user","content":"Grüße, 世界! 🎈"}]`

// chatCases are about the model's chat template.
func chatCases() []Case {
	render := func(t *T, h *Hop, change func(*workerpb.RenderChatRequest)) *workerpb.RenderChatResponse {
		r := &workerpb.RenderChatRequest{Fingerprint: t.head().Is.GetShard().GetFingerprint(), MessagesJson: talk}
		change(r)
		a, err := h.Text.RenderChat(t.ctx, r)
		if err != nil {
			t.Fatalf("RenderChat at %s: %v", h.Address, err)
		}
		return a
	}
	plain := func(*workerpb.RenderChatRequest) {}
	parse := func(t *T, h *Hop, parser []byte, text string, partial bool) string {
		a, err := h.Text.ParseChat(t.ctx, &workerpb.ParseChatRequest{
			Fingerprint: t.head().Is.GetShard().GetFingerprint(), Parser: parser, Text: text, Partial: partial,
		})
		if err != nil {
			t.Fatalf("ParseChat at %s: %v", h.Address, err)
		}
		var m struct{ Role, Content string }
		if err := json.Unmarshal([]byte(a.GetMessageJson()), &m); err != nil || m.Role != "assistant" {
			t.Fatalf("%q is no message of the assistant: %v", a.GetMessageJson(), err)
		}
		return m.Content
	}
	cases := []Case{
		{ID: "chat.same-everywhere", Clauses: []string{"TXT-6"}, Says: "Every hop renders alike, with the message in the prompt.", Run: func(t *T) {
			want := render(t, t.head(), plain)
			if !strings.Contains(want.GetPrompt(), "Grüße, 世界! 🎈") {
				t.Errorf("the prompt is %q", want.GetPrompt())
			}
			for _, h := range t.Hops {
				if got := render(t, h, plain); !proto.Equal(got, want) {
					t.Errorf("%s says %v, %s says %v", h.Address, got, t.head().Address, want)
				}
			}
		}},
		{ID: "chat.generation-prompt", Clauses: []string{"TXT-6"}, Says: "The generation prompt is at the end unless it is refused.", Run: func(t *T) {
			absent := render(t, t.head(), plain).GetPrompt()
			with := render(t, t.head(), func(r *workerpb.RenderChatRequest) { r.AddGenerationPrompt = proto.Bool(true) }).GetPrompt()
			without := render(t, t.head(), func(r *workerpb.RenderChatRequest) { r.AddGenerationPrompt = proto.Bool(false) }).GetPrompt()
			if absent != with || len(without) >= len(with) || !strings.HasPrefix(with, without) {
				t.Errorf("absent %q, true %q, false %q", absent, with, without)
			}
		}},
		{ID: "chat.tokens", Clauses: []string{"TXT-7"}, Says: "The tokens are those of the prompt, with special ones once.", Run: func(t *T) {
			got := render(t, t.head(), plain)
			want, err := t.head().Text.Tokenize(t.ctx, &workerpb.TokenizeRequest{
				Fingerprint: t.head().Is.GetShard().GetFingerprint(), Text: got.GetPrompt(), AddSpecial: true, ParseSpecial: true,
			})
			if err != nil || !slices.Equal(got.GetTokens(), want.GetTokens()) {
				t.Errorf("tokens %v, the prompt's are %v, %v", got.GetTokens(), want.GetTokens(), err)
			}
		}},
		{ID: "chat.parsed-anywhere", Clauses: []string{"TXT-9"}, Says: "What one worker rendered, any reads answers to, whole and in part.", Run: func(t *T) {
			const answer = "Hallo, 世界."
			parser := render(t, t.head(), plain).GetParser()
			for _, h := range t.Hops {
				if got := parse(t, h, parser, answer, false); got != answer {
					t.Errorf("%s read %q", h.Address, got)
				}
				for end := range answer {
					if got := parse(t, h, parser, answer[:end], true); !strings.HasPrefix(answer, got) {
						t.Errorf("%s read %q of %q", h.Address, got, answer[:end])
					}
				}
			}
		}},
		{ID: "chat.strange-parser", Clauses: []string{"TXT-9"}, Says: "A parser that nobody gave is MALFORMED.", Run: func(t *T) {
			for _, parser := range [][]byte{nil, []byte("{}"), random(64)} {
				_, err := t.head().Text.ParseChat(t.ctx, &workerpb.ParseChatRequest{
					Fingerprint: t.head().Is.GetShard().GetFingerprint(), Parser: parser, Text: "a",
				})
				t.want(t.errorOf(err), malformed)
			}
		}},
		{ID: "chat.render-other-model", Clauses: []string{"TXT-2"}, Says: "RenderChat for another fingerprint is SHARD_MISMATCH.", Run: func(t *T) {
			_, err := t.head().Text.RenderChat(t.ctx, &workerpb.RenderChatRequest{Fingerprint: random(32), MessagesJson: talk})
			t.want(t.errorOf(err), otherShard)
		}},
		{ID: "chat.parse-other-model", Clauses: []string{"TXT-2"}, Says: "ParseChat for another fingerprint is SHARD_MISMATCH.", Run: func(t *T) {
			_, err := t.head().Text.ParseChat(t.ctx, &workerpb.ParseChatRequest{Fingerprint: random(32), Text: "a"})
			t.want(t.errorOf(err), otherShard)
		}},
	}
	cases = append(cases, brokenChats()...)
	for i := range cases {
		cases[i].Skip = either(needs("text.chat"), func(t *Target) string {
			if !t.head().Is.GetText().GetChatTemplate() {
				return "the model has no chat template"
			}
			return ""
		})
	}
	return cases
}

// brokenChats are requests that are refused, each for one field.
func brokenChats() []Case {
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	var cases []Case
	for _, c := range []struct {
		id, clause, says string
		change           func(*workerpb.RenderChatRequest)
		code             workerpb.ErrorCode
	}{
		{"messages", "TXT-8", "Messages that are no JSON are MALFORMED.", func(r *workerpb.RenderChatRequest) { r.MessagesJson = `[{"role":` }, malformed},
		{"no-messages", "TXT-8", "No message is MALFORMED.", func(r *workerpb.RenderChatRequest) { r.MessagesJson = `[]` }, malformed},
		{"tools", "TXT-8", "Tools that are no JSON are MALFORMED.", func(r *workerpb.RenderChatRequest) { r.ToolsJson = `[{]` }, malformed},
		{"choice", "TXT-8", "A tool that there is not is MALFORMED.", func(r *workerpb.RenderChatRequest) { r.ToolChoice = "look_up" }, malformed},
		{"arguments", "TXT-8", "Arguments that are no object are MALFORMED.", func(r *workerpb.RenderChatRequest) { r.TemplateArgumentsJson = `[]` }, malformed},
		{"schema", "TXT-8", "A schema of no known type is INVALID_GRAMMAR.", func(r *workerpb.RenderChatRequest) { r.JsonSchema = `{"type":"martian"}` }, workerpb.ErrorCode_ERROR_CODE_INVALID_GRAMMAR},
		{"deep-messages", "TXT-10", "Messages that nest without end are MALFORMED, and the worker lives.", func(r *workerpb.RenderChatRequest) { r.MessagesJson = deep }, malformed},
		{"deep-schema", "TXT-10", "A schema that nests without end is MALFORMED, and the worker lives.", func(r *workerpb.RenderChatRequest) { r.JsonSchema = deep }, malformed},
	} {
		cases = append(cases, Case{ID: "chat.broken-" + c.id, Clauses: []string{c.clause}, Says: c.says, Run: func(t *T) {
			r := &workerpb.RenderChatRequest{Fingerprint: t.head().Is.GetShard().GetFingerprint(), MessagesJson: talk}
			c.change(r)
			_, err := t.head().Text.RenderChat(t.ctx, r)
			t.want(t.errorOf(err), c.code)
			if _, err := t.head().Text.RenderChat(t.ctx, &workerpb.RenderChatRequest{
				Fingerprint: t.head().Is.GetShard().GetFingerprint(), MessagesJson: talk,
			}); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		}})
	}
	return cases
}
