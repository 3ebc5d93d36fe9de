package recipe

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
)

const text = " Words\n\nA shard is a run of layers. The tail is last.\n\nWhere is the head? It is first: hop zero."

// tiny is a recipe that trains in well under a second.
func tiny() Recipe {
	r := Default()
	r.Shape = nn.Config{
		Layers: 1, Width: 16, Heads: 2, KVHeads: 1, FeedFwd: 24, Vocab: 300, Context: 32,
		RopeBase: 10000, NormEps: 1e-5, InitEmbed: 0.1, InitOutput: 0.02,
	}
	r.Steps, r.Batch, r.Windows, r.ShortWindow, r.Warmup, r.Rate = 60, 64, []int{8, 16, 32}, 16, 5, 1e-2
	return r
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	r := Default()
	r.Steps, r.Windows, r.Noise, r.Shape.Layers = 0, []int{32, 513}, 1, 0
	want := "steps is 0; it must be 1 or more\n" +
		"window of 513 tokens is not within the context of 512\n" +
		"noise is 1; it must be 0 or more and below 1\n" +
		"layers is 0; it must be 1 or more"
	if err := r.Validate(); err == nil || err.Error() != want {
		t.Errorf("faults are:\n%v\nwant:\n%s", err, want)
	}
}

func TestRateRisesThenFallsToTheFloor(t *testing.T) {
	r := Default()
	r.Steps, r.Warmup, r.Rate, r.Floor = 1000, 50, 1, 0.02
	for _, c := range []struct {
		step int
		want float64
	}{{1, 0.02}, {25, 0.5}, {500, 0.51}, {1000, 0.02}} {
		if got := r.rate(c.step); math.Abs(got-c.want) > 0.005 {
			t.Errorf("rate of step %d is %g, want about %g", c.step, got, c.want)
		}
	}
}

func TestCorpusKnowsWordsAndSentences(t *testing.T) {
	vocab := bpe.Train(text, 290)
	c, err := newCorpus(text, vocab)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(c.words), len(strings.Fields(text)); got != want {
		t.Errorf("%d word starts, want %d", got, want)
	}
	var got []string
	for _, s := range c.sentences {
		got = append(got, vocab.Decode(s.word))
		rest := vocab.Decode(append(slices.Clone(s.word), c.tokens[s.next:]...))
		if !strings.HasSuffix(text, rest) {
			t.Errorf("from %q the text goes on %q, which is no end of it", got[len(got)-1], rest)
		}
	}
	if want := []string{"Words", "A", "The", "Where", "It", "hop"}; !slices.Equal(got, want) {
		t.Errorf("sentences begin with %q, want %q", got, want)
	}
	if _, err := newCorpus(" \n", vocab); err == nil {
		t.Error("a text without words was accepted")
	}
}

func TestWindowsAreTextWithTheWantedNoise(t *testing.T) {
	r := tiny()
	r.Noise = 0
	vocab := bpe.Train(text, 290)
	c, err := newCorpus(text, vocab)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	ended := false
	for range 200 {
		ws, total := r.batch(c, rng)
		if total < r.Batch {
			t.Fatalf("batch has %d tokens, want %d or more", total, r.Batch)
		}
		for _, w := range ws {
			if w.in[0] != bpe.BOS || !slices.Equal(w.in[1:], w.want[:len(w.want)-1]) {
				t.Fatalf("window %v does not begin with BOS or wants %v", w.in, w.want)
			}
			if !strings.Contains(text, vocab.Decode(w.want)) {
				t.Fatalf("window %q is not in the text", vocab.Decode(w.want))
			}
			ended = ended || w.want[len(w.want)-1] == bpe.EOS
		}
	}
	if !ended {
		t.Error("no window had the end of the document")
	}
	r.Noise = 0.5
	changed, all := 0, 0
	for range 200 {
		w := r.window(c, rng, 16)
		if !strings.Contains(text, vocab.Decode(w.want)) {
			t.Fatalf("with noise %q is wanted, which is not in the text", vocab.Decode(w.want))
		}
		for i := 1; i < len(w.in); i++ {
			all++
			if w.in[i] != w.want[i-1] {
				changed++
			}
		}
	}
	if share := float64(changed) / float64(all); share < 0.4 || share > 0.5 {
		t.Errorf("%.2f of the tokens were replaced at a noise of 0.5", share)
	}
}

func TestTrainLearnsAndRepeats(t *testing.T) {
	var losses []float64
	a, _, err := tiny().Train(t.Context(), text, func(p Progress) { losses = append(losses, p.Loss) })
	if err != nil {
		t.Fatal(err)
	}
	if len(losses) != 60 || losses[59] > losses[0]/2 {
		t.Errorf("%d steps, loss from %.2f to %.2f; want 60 and at most half", len(losses), losses[0], losses[len(losses)-1])
	}
	b, _, err := tiny().Train(t.Context(), text, nil)
	if err != nil {
		t.Fatal(err)
	}
	other := tiny()
	other.Seed = 2
	c, _, err := other.Train(t.Context(), text, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range a.Tensors {
		if !slices.Equal(w.Data, b.Tensors[i].Data) {
			t.Errorf("%s differs between two trainings of one seed", w.Name)
		}
		if slices.Equal(w.Data, c.Tensors[i].Data) {
			t.Errorf("%s is the same with another seed", w.Name)
		}
	}
}

func TestTrainStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	steps := 0
	_, _, err := tiny().Train(ctx, text, func(p Progress) {
		if steps = p.Step; steps == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || steps != 3 {
		t.Errorf("after %d steps: %v; want to stop after 3 with the context's error", steps, err)
	}
}
