package enginetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const conversation = `[{"role":"system","content":"Be brief."},{"role":"user","content":"Grüße, 世界 🎈"}]`

// chatCases are about the model's chat template, and about its want.
func (s suite) chatCases() []testCase {
	return []testCase{
		{"no_template_is_an_error", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			if sh.text.HasChatTemplate() {
				t.Skipf("without %s: the model has one", LackingTemplate)
			}
			_, err := sh.text.RenderChat(t.Context(), engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
			wantCode(t, err, engine.NoTemplate)
			_, err = sh.text.ParseChat(t.Context(), []byte("{}"), "hello", false)
			wantCode(t, err, engine.NoTemplate)
		}},
		{"a_prompt_holds_its_messages", func(t *testing.T) {
			sh := s.loadChat(t)
			p := sh.render(t, engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
			for _, part := range []string{"Be brief.", "Grüße, 世界 🎈"} {
				if !strings.Contains(p.Prompt, part) {
					t.Errorf("%q is not in the prompt %q", part, p.Prompt)
				}
			}
		}},
		{"the_tokens_are_those_of_the_prompt", func(t *testing.T) {
			sh := s.loadChat(t)
			p := sh.render(t, engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
			if want := sh.tokenize(t, p.Prompt, true, true); !slices.Equal(p.Tokens, want) {
				t.Errorf("tokens %v, the prompt's are %v", p.Tokens, want)
			}
			if len(p.Tokens) > 1 && p.Tokens[0] == p.Tokens[1] {
				t.Errorf("token %d stands twice at the beginning", p.Tokens[0])
			}
		}},
		{"the_generation_prompt_is_at_the_end_or_not", func(t *testing.T) {
			sh := s.loadChat(t)
			with := sh.render(t, engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true}).Prompt
			without := sh.render(t, engine.ChatRequest{Messages: conversation}).Prompt
			if len(with) <= len(without) || !strings.HasPrefix(with, without) {
				t.Errorf("with generation prompt %q, without %q", with, without)
			}
		}},
		{"broken_requests_are_refused_by_field", func(t *testing.T) {
			sh := s.loadChat(t)
			for field, r := range map[string]engine.ChatRequest{
				"messages_json":           {Messages: `[{"role":`},
				"messages_json ":          {Messages: `[]`},
				"messages_json  ":         {Messages: `{}`},
				"messages_json   ":        {Messages: "[{\"role\":\"user\",\"content\":\"\xff\"}]"},
				"tools_json":              {Messages: conversation, Tools: `[{]`},
				"tools_json ":             {Messages: conversation, Tools: `[{"type":"function","function":{}}]`},
				"tool_choice":             {Messages: conversation, ToolChoice: "look_up"},
				"tool_choice ":            {Messages: conversation, ToolChoice: "required"},
				"json_schema":             {Messages: conversation, JSONSchema: `{"type":`},
				"template_arguments_json": {Messages: conversation, TemplateArguments: `[]`},
			} {
				_, err := sh.text.RenderChat(t.Context(), r)
				wantCode(t, err, engine.Malformed)
				if field = strings.TrimSpace(field); err != nil && !strings.Contains(err.Error(), field) {
					t.Errorf("%q does not name %s", err, field)
				}
			}
		}},
		{"an_answer_becomes_a_message", func(t *testing.T) {
			sh := s.loadChat(t)
			p := sh.render(t, engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
			const answer = "Hello, 世界. (See [1].)"
			if got := sh.parse(t, p.Parser, answer, false); got != answer {
				t.Errorf("the content is %q", got)
			}
			for end := range answer {
				if got := sh.parse(t, p.Parser, answer[:end], true); !strings.HasPrefix(answer, got) {
					t.Errorf("the content of %q is %q", answer[:end], got)
				}
			}
		}},
		{"strange_parsers_are_refused", func(t *testing.T) {
			sh := s.loadChat(t)
			for _, parser := range []string{"", "{}", "[]", "\x00\xff", strings.Repeat("[", 100_000), `{"messages":1}`} {
				_, err := sh.text.ParseChat(t.Context(), []byte(parser), "hello", false)
				wantCode(t, err, engine.Malformed)
			}
		}},
		{"every_shard_renders_and_parses_alike", func(t *testing.T) {
			whole := s.loadChat(t)
			want := whole.render(t, engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
			for _, sh := range s.loadChain(t, whole.info.NLayer, s.cuts(whole.info.NLayer)...) {
				got := sh.render(t, engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("layers %s: %v, want %v", sh.info.Layers, got, want)
				}
				if got := sh.parse(t, want.Parser, "hello", false); got != "hello" {
					t.Errorf("layers %s: the content is %q", sh.info.Layers, got)
				}
			}
		}},
		{"chats_from_many_goroutines", func(t *testing.T) {
			sh := s.loadChat(t)
			want := sh.render(t, engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
			var group sync.WaitGroup
			for range 4 {
				group.Go(func() {
					for range 3 {
						got, err := sh.text.RenderChat(t.Context(), engine.ChatRequest{Messages: conversation, AddGenerationPrompt: true})
						if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
							t.Errorf("%v, %v, want %v", got, err, want)
						}
						if _, err := sh.text.ParseChat(t.Context(), want.Parser, "hello", false); err != nil {
							t.Error(err)
						}
					}
				})
			}
			within(t, "rendering", group.Wait)
		}},
	}
}

// loadChat is a shard of a model with a chat template.
func (s suite) loadChat(t *testing.T) *shard {
	t.Helper()
	sh := s.load(t, engine.LayerRange{})
	if !sh.text.HasChatTemplate() {
		t.Skipf("without %s: the model has none", HavingTemplate)
	}
	return sh
}

func (sh *shard) render(t *testing.T, r engine.ChatRequest) engine.ChatPrompt {
	t.Helper()
	p, err := sh.text.RenderChat(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// parse is the content of a message.
func (sh *shard) parse(t *testing.T, parser []byte, answer string, partial bool) string {
	t.Helper()
	text, err := sh.text.ParseChat(t.Context(), parser, answer, partial)
	if err != nil {
		t.Fatal(err)
	}
	var message struct{ Role, Content string }
	if err := json.Unmarshal([]byte(text), &message); err != nil || message.Role != "assistant" {
		t.Fatalf("%q is no message of the assistant: %v", text, err)
	}
	return message.Content
}
