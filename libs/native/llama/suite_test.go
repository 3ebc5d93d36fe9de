//go:build llama && cgo

package llama

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/enginetest"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

// TestSuite runs the contract's suite on each architecture.
func TestSuite(t *testing.T) {
	for _, arch := range tiny.Archs() {
		t.Run(arch, func(t *testing.T) { enginetest.Run(t, target(t, arch, New, lost)) })
	}
}

// TestSuiteInAProcessOfItsOwn runs the same cases on an engine behind package child.
func TestSuiteInAProcessOfItsOwn(t *testing.T) {
	enginetest.Run(t, target(t, "llama", apart("good"), apart("lost")))
}

// talkTemplate is a chat template in few words.
const talkTemplate = `{{ bos_token }}{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`

func target(t *testing.T, arch string, good, lost engine.Factory) enginetest.Target {
	endOfAnswer := engine.TokenID(2) // </s> of package tiny
	model := spec(t, arch)
	if arch != "qwen2" { // one is to have none
		model.ChatTemplate = talkTemplate
	}
	path := writeModel(t, model)
	return enginetest.Target{
		Factory: good, Request: request(path), BadLoads: badLoads(t, path), EndOfGeneration: &endOfAnswer, Lost: lost,
		Churn: 2000,
		Without: map[enginetest.Ability]string{
			enginetest.Slowness:     "models small enough for a test take microseconds a row, and nothing makes them slower",
			enginetest.ComputingNaN: "no file that is good computes NaN once and never again; a boundary with NaN is tried all the same",
		},
		// batches of other shapes take other paths through the kernels
		Tolerance: 2e-3,
	}
}

// A window that keeps little more than it sees: it goes back within it, and to marks.
func TestSuiteOfShortWindows(t *testing.T) {
	endOfAnswer := engine.TokenID(2)
	path := writeModel(t, spec(t, "gemma3"))
	r := request(path)
	r.ShortWindow, r.ContextLimit = true, 1024
	enginetest.Run(t, enginetest.Target{Factory: New, Request: r, EndOfGeneration: &endOfAnswer, Lost: lost, Tolerance: 2e-3})
}

// lost makes engines of which the first step fails in a way that nothing can be saved from: the slot that a session is
// given does not exist.
func lost() (engine.ShardEngine, engine.TextEngine, error) {
	e := newEngine(slog.Default())
	return &astray{e}, &e.text, nil
}

type astray struct{ *shardEngine }

func (a *astray) Open(ctx context.Context, session engine.SessionID, contextTokens uint32) error {
	if err := a.shardEngine.Open(ctx, session, contextTokens); err != nil {
		return err
	}
	a.sessions[session].slot = 1000
	return nil
}

// badLoads are files that Load must refuse.
func badLoads(t *testing.T, good string) []enginetest.BadLoad {
	t.Helper()
	dir := t.TempDir()
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) engine.LoadRequest {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return request(path)
	}
	unknown := spec(t, "llama")
	unknown.Claim = "bloom"
	q8 := request(good)
	q8.CacheType, q8.FlashAttention = "q8_0", false
	none := request()
	huge := request(good)
	huge.ContextLimit, huge.Sessions = 1<<22, 255
	return []enginetest.BadLoad{
		{Name: "missing_file", Request: request(filepath.Join(dir, "none.gguf")), Code: engine.BadModelFile},
		{Name: "empty_file", Request: write("empty.gguf", nil), Code: engine.BadModelFile},
		{Name: "truncated_header", Request: write("header.gguf", content[:100]), Code: engine.BadModelFile},
		{Name: "truncated_tensors", Request: write("tensors.gguf", content[:len(content)-100]), Code: engine.BadModelFile},
		{Name: "no_gguf", Request: write("text.gguf", []byte("this is no model")), Code: engine.BadModelFile},
		{Name: "unknown_architecture", Request: request(writeModel(t, unknown)), Code: engine.UnsupportedArchitecture},
		{Name: "q8_0_without_flash_attention", Request: q8, Code: engine.Malformed},
		{Name: "no_path", Request: none, Code: engine.Malformed},
		{Name: "caches_beyond_the_memory", Request: huge, Code: engine.EngineOutOfMemory},
	}
}
