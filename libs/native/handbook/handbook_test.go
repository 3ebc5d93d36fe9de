package handbook

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

func TestModelIsThePinnedOne(t *testing.T) {
	if got := sum(Model()); got != SHA256 {
		t.Errorf("handbook.gguf has hash %s, pinned is %s: restore the file, or replace both with `go run ./tools/modeltrain --replace`", got, SHA256)
	}
	if n := len(Model()); n > 2<<20 {
		t.Errorf("handbook.gguf has %d bytes, more than 2 MiB", n)
	}
}

func TestModelIsACopy(t *testing.T) {
	Model()[0] = 'X'
	if got := sum(Model()); got != SHA256 {
		t.Error("a change of what Model returned changed the embedded model")
	}
}

func TestHeaderIsThatOfASmallLlama(t *testing.T) {
	path, err := WriteFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if m.Architecture() != "llama" || m.NLayer() != 6 || m.Tied() || m.Vocab() > 1024 || m.TrainContext() != 512 {
		t.Errorf("model is %s with %d layers, tied %v, %d tokens, context %d; want llama, 6, false, at most 1024, 512",
			m.Architecture(), m.NLayer(), m.Tied(), m.Vocab(), m.TrainContext())
	}
	if eos, ok := m.KV.Uint("tokenizer.ggml.eos_token_id"); !ok || eos != 2 {
		t.Errorf("end of text is token %d (present %v), want 2", eos, ok)
	}
	for _, tensor := range m.Tensors {
		norm := strings.Contains(tensor.Name, "norm")
		if norm != (tensor.Type == gguf.F32) || !norm && tensor.Type != gguf.F16 {
			t.Errorf("tensor %s has type %s; norms are F32, all others F16", tensor.Name, tensor.Type)
		}
	}
}

func TestTextIsAShortPlainHandbook(t *testing.T) {
	if n := len(Text()); n < 10_000 || n > 20_000 {
		t.Errorf("handbook.txt has %d bytes, want 10,000 to 20,000", n)
	}
	for i, b := range []byte(Text()) {
		if b != '\n' && (b < ' ' || b > '~') {
			t.Fatalf("byte %d of handbook.txt is %#02x; the text is plain ASCII", i, b)
		}
	}
	if !strings.Contains(Text(), "\nA shard is ") {
		t.Error("handbook.txt has no paragraph that begins `A shard is`")
	}
}

var word = regexp.MustCompile(`[A-Za-z0-9_'-]+`)

func TestPromptsAreTenAndSayOnlyWordsOfTheText(t *testing.T) {
	list, err := Prompts()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 10 {
		t.Errorf("%d prompts, want 10", len(list))
	}
	known := map[string]bool{}
	for _, w := range word.FindAllString(Text(), -1) {
		known[w] = true
	}
	seen := map[string]bool{}
	for _, p := range list {
		if p.Tokens < 60 || p.Margin < 0.1 {
			t.Errorf("%q: %d tokens with a margin of %g; want 60 or more and at least 0.1", p.Prompt, p.Tokens, p.Margin)
		}
		if seen[p.Prompt] {
			t.Errorf("%q is there twice", p.Prompt)
		}
		seen[p.Prompt] = true
		for _, w := range word.FindAllString(p.Prompt+p.Continuation, -1) {
			if !known[w] {
				t.Errorf("%q is continued with %q, which is no word of the handbook", p.Prompt, w)
			}
		}
	}
	if !seen["A shard is"] {
		t.Error("`A shard is` is not among the prompts")
	}
}

func TestWriteFileUsesAndMendsWhatIsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path, err := WriteFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(filepath.Base(path), SHA256[:16]) {
		t.Errorf("%s is not named by its content", path)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := WriteFile(dir); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a right file was written again (%v)", err)
	}
	damaged := Model()
	damaged[len(damaged)/2] ^= 1
	for _, content := range [][]byte{damaged, damaged[:100], nil} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := WriteFile(dir); err != nil || got != path {
			t.Fatalf("over a damaged file: %s, %v", got, err)
		}
		if content, err := os.ReadFile(path); err != nil || sum(content) != SHA256 {
			t.Errorf("the damaged file was kept (%v)", err)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%d files in the directory, want the model alone (%v)", len(files), err)
	}
}

func TestWriteFileMayRunManyTimesAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			path, err := WriteFile(dir)
			if err != nil {
				t.Error(err)
				return
			}
			if content, err := os.ReadFile(path); err != nil || sum(content) != SHA256 {
				t.Errorf("the file is not the model (%v)", err)
			}
		})
	}
	wg.Wait()
}

func TestWriteFileSaysWhatStandsInItsWay(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := WriteFile(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a file in place of the directory gave %v, want an error that names it", err)
	}
}
