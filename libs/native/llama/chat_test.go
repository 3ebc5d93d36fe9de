//go:build llama && cgo

package llama

import (
	_ "embed"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// answersJSON are expectations of llama.cpp's own tests/test-chat.cpp at the pin, as data.
//
//go:embed testdata/answers.json
var answersJSON []byte

const (
	specialTool = `[{"type":"function","function":{"name":"special_function","description":"I'm special",
		"parameters":{"type":"object","properties":{"arg1":{"type":"integer","description":"The arg."}},"required":["arg1"]}}}]`
	twoTools = `[{"type":"function","function":{"name":"look_up","parameters":{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}}},
		{"type":"function","function":{"name":"send","parameters":{"type":"object","properties":{}}}}]`
	hello = `[{"role":"user","content":"Hey there!"}]`
)

// message is what ParseChat gives.
type message struct {
	Role      string  `json:"role"`
	Content   *string `json:"content"`
	Reasoning string  `json:"reasoning_content"`
	Calls     []call  `json:"tool_calls"`
}

type call struct {
	ID       string
	Type     string
	Function struct{ Name, Arguments string }
}

func parsed(t *testing.T, e *loaded, parser []byte, text string, partial bool) message {
	t.Helper()
	answer, err := e.text.ParseChat(t.Context(), parser, text, partial)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	var m message
	if err := json.Unmarshal([]byte(answer), &m); err != nil || m.Role != "assistant" {
		t.Fatalf("%s: %v", answer, err)
	}
	return m
}

func (m message) content() string {
	if m.Content == nil {
		return ""
	}
	return *m.Content
}

func rendered(t *testing.T, e *loaded, r engine.ChatRequest) engine.ChatPrompt {
	t.Helper()
	r.AddGenerationPrompt = true
	p, err := e.text.RenderChat(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAnswersAreRead reads answers as llama.cpp's own tests expect them, whole, and each beginning of them without an error.
func TestAnswersAreRead(t *testing.T) {
	var cases []struct {
		Template, Text         string
		Tools, Partial, Schema bool
		Thinking               *bool
		Want                   struct {
			Content, Reasoning string
			Calls              []struct{ Name, Arguments string }
		}
	}
	if err := json.Unmarshal(answersJSON, &cases); err != nil {
		t.Fatal(err)
	}
	texts, engines := templates(t), map[string]*loaded{}
	for _, c := range cases {
		if engines[c.Template] == nil {
			engines[c.Template] = chat(t, texts[c.Template])
		}
		e, r := engines[c.Template], engine.ChatRequest{Messages: hello}
		if c.Tools {
			r.Tools = specialTool
		}
		if c.Schema {
			r.JSONSchema = `{"const": "42"}`
		}
		if c.Thinking != nil && !*c.Thinking {
			r.TemplateArguments = `{"enable_thinking":false}`
		}
		parser := rendered(t, e, r).Parser
		m := parsed(t, e, parser, c.Text, c.Partial)
		if !sameWords(m.content(), c.Want.Content) || !sameWords(m.Reasoning, c.Want.Reasoning) || len(m.Calls) != len(c.Want.Calls) {
			t.Errorf("%s: %q is content %q, reasoning %q, calls %v, want %+v", c.Template, c.Text, m.content(), m.Reasoning, m.Calls, c.Want)
			continue
		}
		for i, want := range c.Want.Calls {
			if got := m.Calls[i].Function; got.Name != want.Name || !sameJSON(got.Arguments, want.Arguments) {
				t.Errorf("%s: %q calls %+v, want %+v", c.Template, c.Text, got, want)
			}
		}
		for end := 1; end < len(c.Text); end += 7 {
			if _, err := e.text.ParseChat(t.Context(), parser, c.Text[:end], true); err != nil {
				t.Errorf("%s: the part %q: %v", c.Template, c.Text[:end], err)
			}
		}
	}
}

// sameWords compares as llama.cpp's tests do: space at the ends does not count.
func sameWords(a, b string) bool { return strings.TrimSpace(a) == strings.TrimSpace(b) }

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return a == b
	}
	return reflect.DeepEqual(x, y)
}

func TestToolsAreCalled(t *testing.T) {
	e := chat(t, templates(t)["Qwen-Qwen2.5-7B-Instruct"])
	p := rendered(t, e, engine.ChatRequest{Messages: hello, Tools: twoTools})
	if p.Grammar == nil || !p.Grammar.Lazy || p.Grammar.Prefill != "" || len(p.Grammar.TriggerPatterns)+len(p.Grammar.TriggerTokens) == 0 {
		t.Errorf("the grammar is %+v, want a lazy one", p.Grammar)
	}
	const answer = "Let me see.\n<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"word\": \"über\"}}\n</tool_call>"
	m := parsed(t, e, p.Parser, answer, false)
	if len(m.Calls) != 1 || m.Calls[0].Type != "function" || m.Calls[0].Function.Name != "look_up" || !sameJSON(m.Calls[0].Function.Arguments, `{"word":"über"}`) {
		t.Fatalf("%+v", m)
	}
	if !regexp.MustCompile(`^[a-z0-9]{9}$`).MatchString(m.Calls[0].ID) {
		t.Errorf("the id is %q", m.Calls[0].ID)
	}
	if again := parsed(t, e, p.Parser, answer, false); again.Calls[0].ID != m.Calls[0].ID {
		t.Errorf("the id was %q, then %q", m.Calls[0].ID, again.Calls[0].ID)
	}
	other := rendered(t, e, engine.ChatRequest{Messages: strings.Replace(hello, "Hey", "Ho", 1), Tools: twoTools})
	if later := parsed(t, e, other.Parser, answer, false); later.Calls[0].ID == m.Calls[0].ID {
		t.Errorf("two conversations have the id %q", m.Calls[0].ID)
	}
	for choice, check := range map[string]func(p engine.ChatPrompt) bool{
		"none":     func(p engine.ChatPrompt) bool { return p.Grammar == nil },
		"required": func(p engine.ChatPrompt) bool { return p.Grammar != nil && !p.Grammar.Lazy },
		"send": func(p engine.ChatPrompt) bool {
			return p.Grammar != nil && !p.Grammar.Lazy && strings.Contains(p.Grammar.Text, "send") && !strings.Contains(p.Grammar.Text, "look_up")
		},
	} {
		if p := rendered(t, e, engine.ChatRequest{Messages: hello, Tools: twoTools, ToolChoice: choice}); !check(p) {
			t.Errorf("tool_choice %s: the grammar is %+v", choice, p.Grammar)
		}
	}
}

func TestThoughtsStandApart(t *testing.T) {
	e := chat(t, templates(t)["Qwen-Qwen3-0.6B"])
	p := rendered(t, e, engine.ChatRequest{Messages: hello})
	m := parsed(t, e, p.Parser, "<think>\nWell.\n</think>\n\nHello.", false)
	if strings.TrimSpace(m.Reasoning) != "Well." || strings.TrimSpace(m.content()) != "Hello." {
		t.Errorf("%q, %q", m.Reasoning, m.content())
	}
	quiet := rendered(t, e, engine.ChatRequest{Messages: hello, TemplateArguments: `{"enable_thinking":false}`})
	if !strings.HasSuffix(quiet.Prompt, "<think>\n\n</think>\n\n") {
		t.Errorf("the prompt ends with %q", quiet.Prompt[max(0, len(quiet.Prompt)-40):])
	}
	if m := parsed(t, e, quiet.Parser, "Hello.", false); m.Reasoning != "" || m.content() != "Hello." {
		t.Errorf("%q, %q", m.Reasoning, m.content())
	}
}

func TestSchemas(t *testing.T) {
	e := chat(t, templates(t)["Qwen-Qwen2.5-7B-Instruct"])
	p := rendered(t, e, engine.ChatRequest{Messages: hello, JSONSchema: `{"type":"object","properties":{"age":{"type":"integer"}},"required":["age"]}`})
	if p.Grammar == nil || p.Grammar.Lazy || !strings.Contains(p.Grammar.Text, "root ::=") || !strings.Contains(p.Grammar.Text, "age") {
		t.Errorf("the grammar is %+v", p.Grammar)
	}
	for schema, where := range map[string]string{
		`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"martian"}}}`: "properties/b",
		`{"$ref":"#/definitions/none"}`:                     "#/definitions/none",
		`{"type":"string","pattern":"no anchors"}`:          "no anchors",
		`{"type":"string","pattern":"^(unbalanced$"}`:       "unbalanced",
		`{"type":"array","items":{"$ref":"https://a.b/c"}}`: "https://a.b/c",
	} {
		_, err := e.text.RenderChat(t.Context(), engine.ChatRequest{Messages: hello, JSONSchema: schema})
		wantCode(t, err, engine.InvalidGrammar)
		if err != nil && (!strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), "json_schema")) {
			t.Errorf("%s: %v does not say %q", schema, err, where)
		}
	}
}

// TestHandlesAreShort: what reading an answer does not need stays out of the parser.
func TestHandlesAreShort(t *testing.T) {
	e := chat(t, templates(t)["Qwen-Qwen2.5-7B-Instruct"])
	long := `[{"role":"user","content":"` + strings.Repeat("Grüße ", 40_000) + `"}]`
	p := rendered(t, e, engine.ChatRequest{Messages: long, Tools: twoTools})
	if len(p.Prompt) < 200_000 || len(p.Parser) > 2_000 {
		t.Errorf("a prompt of %d bytes, a parser of %d", len(p.Prompt), len(p.Parser))
	}
	if m := parsed(t, e, p.Parser, "Hello.", false); m.content() != "Hello." {
		t.Errorf("%+v", m)
	}
}

func TestTheTemplateMayRefuse(t *testing.T) {
	all := templates(t)
	for name, messages := range map[string]string{
		"mistralai-Mistral-Nemo-Instruct-2407": `[{"role":"user","content":"a"},{"role":"user","content":"b"}]`,
		"google-gemma-2-2b-it":                 `[{"role":"martian","content":"a"},{"role":"martian","content":"b"}]`,
	} {
		_, err := chat(t, all[name]).text.RenderChat(t.Context(), engine.ChatRequest{Messages: messages})
		wantCode(t, err, engine.Malformed)
		if err != nil && (!strings.Contains(err.Error(), "template") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q", err)
		}
	}
}

// TestHostileTemplates: no template takes the process, or its time.
func TestHostileTemplates(t *testing.T) {
	for name, c := range map[string]struct {
		template string
		code     engine.Code
	}{
		"no_jinja":         {"{% for x in %}", engine.NoTemplate},
		"unknown_filter":   {"{{ messages | martian }}", engine.Malformed},
		"raises":           {"{{ raise_exception('no') }}", engine.Malformed},
		"endless_loops":    {"{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}", engine.Malformed},
		"endless_range":    {"{% for a in range(99999999999) %}{% endfor %}", engine.Malformed},
		"endless_text":     {"{{ 'abcdefgh' * 99999999999 }}", engine.Malformed},
		"doubled_text":     {"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}", engine.Malformed},
		"endless_macro":    {"{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", engine.Malformed},
		"nested_brackets":  {"{{ " + strings.Repeat("(", 50_000) + "1" + strings.Repeat(")", 50_000) + " }}", engine.NoTemplate},
		"nested_negations": {"{{ " + strings.Repeat("not ", 20_000) + "1 }}", ""},
		"nested_blocks":    {strings.Repeat("{% if 1 %}", 5_000) + "a" + strings.Repeat("{% endif %}", 5_000), ""},
		"long_sum":         {"{{ 1" + strings.Repeat("+1", 30_000) + " }}", ""},
		"too_long":         {strings.Repeat("a", 200_000), engine.NoTemplate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := chat(t, c.template)
			for range 2 {
				_, err := e.text.RenderChat(t.Context(), engine.ChatRequest{Messages: hello, AddGenerationPrompt: true})
				if c.code != "" && engine.CodeOf(err) != c.code && !(c.code == engine.Malformed && engine.CodeOf(err) == engine.NoTemplate) {
					t.Errorf("%v, want %s", err, c.code)
				}
			}
			if _, err := e.text.Tokenize(t.Context(), "hello", true, true); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHostileRequests(t *testing.T) {
	e := chat(t, templates(t)["Qwen-Qwen2.5-7B-Instruct"])
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for _, r := range []engine.ChatRequest{
		{Messages: deep}, {Messages: hello, Tools: deep}, {Messages: hello, JSONSchema: deep}, {Messages: hello, TemplateArguments: deep},
		{Messages: hello, TemplateArguments: `{"messages":[]}`}, {Messages: hello, TemplateArguments: `{"enable_thinking":"yes"}`},
		{Messages: `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]`},
		{Messages: `[{"role":"user"}]`}, {Messages: `[{"content":"a"}]`}, {Messages: `[7]`}, {Messages: `[{"role":7,"content":"a"}]`},
	} {
		_, err := e.text.RenderChat(t.Context(), r)
		wantCode(t, err, engine.Malformed)
	}
	p := rendered(t, e, engine.ChatRequest{Messages: hello, Tools: twoTools})
	_, err := e.text.ParseChat(t.Context(), p.Parser, "<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"word\": "+deep, true)
	wantCode(t, err, engine.Malformed)
}

func TestNoTemplateIsMadeUp(t *testing.T) {
	e := chat(t, "")
	if e.text.HasChatTemplate() {
		t.Error("a model without template has one")
	}
	_, err := e.text.RenderChat(t.Context(), engine.ChatRequest{Messages: hello})
	wantCode(t, err, engine.NoTemplate)
}
