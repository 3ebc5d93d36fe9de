package golden

import (
	"slices"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/weights"
)

func embedded(t *testing.T) (*nn.Model[float32], *bpe.Vocab) {
	t.Helper()
	path, err := handbook.WriteFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m, v, err := weights.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return m, v
}

func TestEmbeddedModelContinuesItsPrompts(t *testing.T) {
	m, v := embedded(t)
	run := nn.NewRun(m)
	list, err := handbook.Prompts()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range list {
		got = append(got, p.Prompt)
		if err := Check(run, v, p); err != nil {
			t.Error(err)
		}
	}
	if want := Prompts(); !slices.Equal(got, want) {
		t.Errorf("prompts.json is about %q, want %q", got, want)
	}
}

func TestCheckSeesAnotherContinuation(t *testing.T) {
	m, v := embedded(t)
	run := nn.NewRun(m)
	list, err := handbook.Prompts()
	if err != nil {
		t.Fatal(err)
	}
	wrong := list[0]
	wrong.Continuation = strings.Replace(wrong.Continuation, "layers", "tokens", 1)
	if wrong.Continuation == list[0].Continuation {
		t.Fatalf("%q does not speak of layers", wrong.Continuation)
	}
	if err := Check(run, v, wrong); err == nil || !strings.Contains(err.Error(), "layers") {
		t.Errorf("a changed word gave %v, want an error that names what the model says", err)
	}
	short := list[0]
	short.Tokens--
	if err := Check(run, v, short); err == nil {
		t.Error("a wrong number of tokens was accepted")
	}
}

func TestGreedyIsWhatCheckAccepts(t *testing.T) {
	m, v := embedded(t)
	run := nn.NewRun(m)
	list, err := handbook.Prompts()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Greedy(m, run, v, list[0].Prompt)
	if err != nil {
		t.Fatal(err)
	}
	if got.Continuation != list[0].Continuation || got.Tokens != list[0].Tokens {
		t.Errorf("greedy continuation is %+v, want %+v", got, list[0])
	}
	if _, err := Greedy(m, run, v, strings.Repeat("shard ", m.Context)); err == nil {
		t.Error("a prompt that is longer than the context was accepted")
	}
}

func TestPromptsBeginSentencesOfTheText(t *testing.T) {
	for _, p := range Prompts() {
		n := 0
		for _, before := range []string{"\n", ". ", ": ", "? "} {
			n += strings.Count(handbook.Text(), before+p)
		}
		if n != 1 {
			t.Errorf("%q begins %d sentences of the handbook, want one: the continuation would be a matter of chance", p, n)
		}
	}
}
