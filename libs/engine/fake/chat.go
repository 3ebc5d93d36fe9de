package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// The fake's chat template: a line `role: content` for each message, before them `tools: name name`, after them
// `assistant:`. The model is imagined to answer `call name arguments` to use a tool, and to think aloud between <think> and
// </think> first.
const (
	thinkBegin = "<think>"
	thinkEnd   = "</think>"
	callBegin  = "call "
)

type fakeMessage struct {
	Role      string     `json:"role"`
	Content   *string    `json:"content"`
	Reasoning string     `json:"reasoning_content,omitempty"`
	Calls     []fakeCall `json:"tool_calls,omitempty"`
}

type fakeCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function fakeFunction `json:"function"`
}

type fakeFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// fakeParser is what ParseChat needs of a request.
type fakeParser struct {
	Format string   `json:"format"`
	Tools  []string `json:"tools,omitempty"`
}

func (t *text) RenderChat(ctx context.Context, r engine.ChatRequest) (engine.ChatPrompt, error) {
	if err := t.chat(); err != nil {
		return engine.ChatPrompt{}, err
	}
	var prompt strings.Builder
	tools, err := toolNames(r)
	if err != nil {
		return engine.ChatPrompt{}, err
	}
	if len(tools) > 0 {
		fmt.Fprintf(&prompt, "tools: %s\n", strings.Join(tools, " "))
	}
	var messages []fakeMessage
	if err := read("messages_json", r.Messages, &messages); err != nil {
		return engine.ChatPrompt{}, err
	}
	if len(messages) == 0 {
		return engine.ChatPrompt{}, engine.Errorf(engine.Malformed, "messages_json: an array of at least one message is wanted")
	}
	for i, m := range messages {
		if !slices.Contains([]string{"system", "user", "assistant", "tool"}, m.Role) {
			return engine.ChatPrompt{}, engine.Errorf(engine.Malformed, "messages_json: message %d has the role %q, which the template does not know", i, m.Role)
		}
		prompt.WriteString(m.line())
	}
	if r.AddGenerationPrompt {
		prompt.WriteString("assistant:")
	}
	parser, err := json.Marshal(fakeParser{Scheme, tools})
	if err != nil {
		return engine.ChatPrompt{}, engine.Errorf(engine.EngineFault, "write the parser: %w", err)
	}
	tokens, err := t.Tokenize(ctx, prompt.String(), true, true)
	return engine.ChatPrompt{Prompt: prompt.String(), Tokens: tokens, Stops: []string{"\nuser:"}, Parser: parser}, err
}

func (m fakeMessage) line() string {
	line := m.Role + ":"
	if m.Content != nil {
		line += " " + *m.Content
	}
	for _, c := range m.Calls {
		line += " " + callBegin + c.Function.Name + " " + c.Function.Arguments
	}
	return line + "\n"
}

// toolNames checks all of a request but its messages. Nothing here can hold an answer to a form.
func toolNames(r engine.ChatRequest) ([]string, error) {
	var tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	var arguments, schema map[string]any
	for _, part := range []struct {
		field, text string
		into        any
	}{{"tools_json", r.Tools, &tools}, {"template_arguments_json", r.TemplateArguments, &arguments}, {"json_schema", r.JSONSchema, &schema}} {
		if part.text == "" {
			continue
		}
		if err := read(part.field, part.text, part.into); err != nil {
			return nil, err
		}
	}
	names := make([]string, len(tools))
	for i, tool := range tools {
		if names[i] = tool.Function.Name; names[i] == "" {
			return nil, engine.Errorf(engine.Malformed, "tools_json: tool %d has no name", i)
		}
	}
	switch choice := r.ToolChoice; {
	case r.JSONSchema != "":
		return nil, engine.Errorf(engine.InvalidGrammar, "json_schema: the fake engine compiles no grammars")
	case choice == "none":
		return nil, nil
	case choice == "" || choice == "auto":
		return names, nil
	case choice == "required" && len(names) > 0 || slices.Contains(names, choice):
		return nil, engine.Errorf(engine.InvalidGrammar, "tool_choice: the fake engine compiles no grammars")
	}
	return nil, engine.Errorf(engine.Malformed, "tool_choice: it asks for a tool that tools_json does not have")
}

func read(field, text string, into any) error {
	if !utf8.ValidString(text) {
		return engine.Errorf(engine.Malformed, "%s is no UTF-8", field)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return engine.Errorf(engine.Malformed, "%s: %w", field, err)
	}
	return nil
}

func (t *text) ParseChat(_ context.Context, parser []byte, answer string, partial bool) (string, error) {
	if err := t.chat(); err != nil {
		return "", err
	}
	var p fakeParser
	if err := json.Unmarshal(parser, &p); err != nil || p.Format != Scheme {
		return "", engine.Errorf(engine.Malformed, "parser: it is none that RenderChat gave")
	}
	message := fakeMessage{Role: "assistant"}
	rest := answer
	if after, thinks := strings.CutPrefix(strings.TrimLeft(answer, " "), thinkBegin); thinks {
		message.Reasoning, rest, _ = strings.Cut(after, thinkEnd)
	}
	rest = strings.TrimLeft(rest, " ")
	if call, calls := p.call(rest); calls {
		if !partial && !json.Valid([]byte(call.Function.Arguments)) {
			return "", engine.Errorf(engine.Malformed, "text: the arguments of the call are no JSON")
		}
		message.Calls = []fakeCall{call}
	} else {
		message.Content = &rest
	}
	out, err := json.Marshal(message)
	if err != nil {
		return "", engine.Errorf(engine.EngineFault, "write the message: %w", err)
	}
	return string(out), nil
}

// call reads a call of a tool that there is.
func (p fakeParser) call(answer string) (fakeCall, bool) {
	after, calls := strings.CutPrefix(answer, callBegin)
	name, arguments, _ := strings.Cut(after, " ")
	if !calls || !slices.Contains(p.Tools, name) {
		return fakeCall{}, false
	}
	return fakeCall{ID: "call00000", Type: "function", Function: fakeFunction{name, arguments}}, true
}

// chat refuses where there is no model, or none with a template.
func (t *text) chat() error {
	if err := t.engine.loaded(); err != nil {
		return err
	}
	if !t.engine.options.ChatTemplate {
		return engine.Errorf(engine.NoTemplate, "the fake model has no chat template; name it fake:chat=true")
	}
	return nil
}
