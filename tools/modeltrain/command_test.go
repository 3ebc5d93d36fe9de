package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/recipe"
)

// tiny trains in a moment; its context holds a prompt and a longest continuation.
func tiny() recipe.Recipe {
	r := recipe.Default()
	r.Shape = nn.Config{
		Layers: 1, Width: 32, Heads: 2, KVHeads: 1, FeedFwd: 32, Vocab: 280, Context: 128,
		RopeBase: 10000, NormEps: 1e-5, InitEmbed: 0.1, InitOutput: 0.02,
	}
	r.Steps, r.Batch, r.Windows = 2, 16, []int{8}
	return r
}

// command runs modeltrain with a tiny recipe and returns what it printed on both streams.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand(tiny(), []string{"A shard is"})
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func textFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, []byte("A shard is a run of layers. A worker holds a shard."), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTwoRunsOfOneSeedWriteTheSameFile(t *testing.T) {
	text, dir := textFile(t), t.TempDir()
	files := map[string][]byte{}
	for name, seed := range map[string]string{"a": "7", "b": "7", "c": "8"} {
		path := filepath.Join(dir, "new", name+".gguf")
		printed, err := command(t, "--text", text, "--seed", seed, "--out", path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"step 2 of 2", path, "sha256 ", "A shard is", "differs from the committed model, " + handbook.SHA256} {
			if !strings.Contains(printed, want) {
				t.Errorf("%q is not in what was printed:\n%s", want, printed)
			}
		}
		if files[name], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(files["a"], files["b"]) {
		t.Error("one seed gave two files")
	}
	if bytes.Equal(files["a"], files["c"]) {
		t.Error("two seeds gave one file")
	}
}

// repository makes a directory that looks like the repository, goes there, and returns its room of the handbook.
func repository(t *testing.T) string {
	t.Helper()
	room := filepath.Join(t.TempDir(), "libs", "native", "handbook")
	if err := os.MkdirAll(room, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"handbook.txt": "", "handbook.gguf": "the committed model"} {
		if err := os.WriteFile(filepath.Join(room, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(room)
	return room
}

func TestCommittedModelIsSafe(t *testing.T) {
	text := textFile(t)
	model := filepath.Join(repository(t), "handbook.gguf")
	before, err := hashOf(model)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link.gguf")
	if err := os.Symlink(model, link); err != nil {
		t.Skipf("this system makes no symbolic links: %v", err)
	}
	for _, args := range [][]string{
		{"--text", text, "--out", model},
		{"--text", text, "--out", "../handbook/handbook.gguf"},
		{"--text", text, "--out", link},
		{"--text", text, "--replace"},
		{"--replace", "--seed", "2"},
		{"--replace", "--out", filepath.Join(t.TempDir(), "x.gguf")},
		{"--steps", "0"},
		{"--no-such-flag"},
	} {
		_, err := command(t, args...)
		if usage := (usageError{}); !errors.As(err, &usage) {
			t.Errorf("%q gave %v, want a refusal of the flags", args, err)
		}
	}
	if after, err := hashOf(model); err != nil || after != before {
		t.Fatalf("the committed model was changed (%v)", err)
	}
}

func TestReplaceWritesModelPinAndPrompts(t *testing.T) {
	repository(t)
	if _, err := command(t, "--replace"); err != nil {
		t.Fatal(err)
	}
	hash, err := hashOf("handbook.gguf")
	if err != nil {
		t.Fatal(err)
	}
	if pin, err := os.ReadFile("pin.go"); err != nil || !strings.Contains(string(pin), `const SHA256 = "`+hash+`"`) {
		t.Errorf("pin.go does not hold %s (%v):\n%s", hash, err, pin)
	}
	var list []handbook.Prompt
	content, err := os.ReadFile("prompts.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &list); err != nil || len(list) != 1 || list[0].Prompt != "A shard is" {
		t.Errorf("prompts.json is %s (%v)", content, err)
	}
	printed, err := command(t, "continue", "A worker")
	if err != nil || !strings.Contains(printed, "A worker") {
		t.Errorf("continue gave %q (%v)", printed, err)
	}
}

func TestFaultsNameWhatIsWrong(t *testing.T) {
	t.Chdir(t.TempDir())
	missing := filepath.Join(t.TempDir(), "missing")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--text", missing, "--out", "m.gguf"}, missing},
		{[]string{"continue", "--model", missing}, missing},
		{[]string{"continue"}, "libs/native/handbook"},
		{[]string{"--replace"}, "libs/native/handbook"},
	} {
		if _, err := command(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q gave %v, want an error that names %s", c.args, err, c.want)
		}
	}
}
