//go:build llama && cgo

package llama

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/source"
)

//go:embed testdata/conversations.json
var conversationsJSON []byte

// templatesJSON holds, for each template of the pin and each conversation, the beginning of the SHA-256 of what Jinja2
// makes of it, with `<s>` and `</s>` for BOS and EOS and each date as its format in braces. See testdata/README.md.
//
//go:embed testdata/templates.json
var templatesJSON []byte

// conversation is a request as Jinja2 was given it.
type conversation struct {
	Messages  json.RawMessage
	Tools     json.RawMessage
	Arguments json.RawMessage
}

func (c conversation) request() engine.ChatRequest {
	return engine.ChatRequest{
		Messages: string(c.Messages), Tools: string(c.Tools), TemplateArguments: string(c.Arguments), AddGenerationPrompt: true,
	}
}

func conversations(t *testing.T) map[string]conversation {
	t.Helper()
	var all map[string]conversation
	if err := json.Unmarshal(conversationsJSON, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// templates are those of the pin, by name.
func templates(t *testing.T) map[string]string {
	t.Helper()
	store, err := source.Open(source.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !store.Cached() {
		t.Skip("the pinned source, which has the templates, is not in the cache; build the native library first")
	}
	dir, err := store.Apply(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(dir, "models", "templates", "*.jinja"))
	if err != nil || len(paths) < 60 {
		t.Fatalf("%d templates, %v", len(paths), err)
	}
	all := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".jinja")] = string(text)
	}
	return all
}

// chat loads a tiny model with a chat template.
func chat(t *testing.T, template string) *loaded {
	t.Helper()
	s := spec(t, "llama")
	s.Layers, s.ChatTemplate = 1, template
	return load(t, request(writeModel(t, s)), 0, 0)
}

// TestTemplatesOfThePin compares every template of the pin with what Jinja2 makes of it.
func TestTemplatesOfThePin(t *testing.T) {
	var want map[string]map[string]string
	if err := json.Unmarshal(templatesJSON, &want); err != nil {
		t.Fatal(err)
	}
	texts, requests := templates(t), conversations(t)
	if got, listed := slices.Sorted(maps.Keys(texts)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, listed) {
		t.Fatalf("the pin has the templates %v, templates.json %v; make it anew, see testdata/README.md", got, listed)
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := chat(t, text)
			for title, c := range requests {
				hash := want[name][title]
				excuse, excused := differs[name+" "+title]
				got, err := e.text.RenderChat(t.Context(), c.request())
				switch {
				case err != nil:
					if !excused && !strings.HasPrefix(hash, "error: ") {
						t.Errorf("%s: %v", title, err)
					}
				case strings.HasPrefix(hash, "error: "):
					if !excused {
						t.Errorf("%s: Jinja2 says %q, and here it is %q", title, hash, got.Prompt)
					}
				case excused == matches(hash, got.Prompt):
					t.Errorf("%s: excused: %v (%s), and the prompt is %q", title, excused, excuse, got.Prompt)
				}
				if err == nil {
					checkPrompt(t, e, got)
				}
			}
		})
	}
}

// matches says whether a prompt is what Jinja2 made, which has the BOS that the prompt leaves to the tokens.
func matches(hash, prompt string) bool {
	for _, bos := range []string{"<s>", ""} {
		sum := sha256.Sum256([]byte(bos + undated(prompt)))
		if hex.EncodeToString(sum[:8]) == hash {
			return true
		}
	}
	return false
}

// checkPrompt compares the tokens with the prompt's: what llama-server evaluates.
func checkPrompt(t *testing.T, e *loaded, p engine.ChatPrompt) {
	t.Helper()
	const bos = engine.TokenID(1)
	want, err := e.text.Tokenize(t.Context(), p.Prompt, true, true)
	if err != nil || !slices.Equal(p.Tokens, want) {
		t.Errorf("the tokens are %v, the prompt's %v, %v", p.Tokens, want, err)
	}
	if len(p.Tokens) < 2 || p.Tokens[0] != bos || p.Tokens[1] == bos {
		t.Errorf("the tokens begin with %v, and one BOS is wanted", p.Tokens[:min(len(p.Tokens), 2)])
	}
	back, err := e.text.Detokenize(t.Context(), p.Tokens[1:], true)
	// SentencePiece writes a space as ▁, and ▁ too
	if err != nil || string(back) != strings.ReplaceAll(p.Prompt, "▁", " ") {
		t.Errorf("%q came back as %q, %v", p.Prompt, back, err)
	}
	if p.Grammar != nil && p.Grammar.Lazy && len(p.Grammar.TriggerPatterns)+len(p.Grammar.TriggerTokens) == 0 {
		t.Error("a lazy grammar has no trigger")
	}
}
