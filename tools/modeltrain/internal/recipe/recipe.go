// Package recipe says how the embedded model is trained: its shape, what it is shown and how fast it learns. A recipe,
// a text and a seed give one model.
//
// What must stay out: the arithmetic (nn), the tokenizer (bpe) and files.
package recipe

import (
	"errors"
	"fmt"
	"math"

	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
)

// Recipe is everything that decides what comes out, beside the text.
type Recipe struct {
	Seed  uint64
	Steps int // steps of the optimiser
	Batch int // tokens a step, at least

	Shape nn.Config // Vocab is the greatest size of the vocabulary; Seed is not used
	// Windows are the lengths that a step draws one of, tokens, each as often as it is named.
	Windows []int
	// Windows of up to ShortWindow tokens begin a sentence with this chance, beside those that do so by accident:
	// a prompt is short and begins a sentence, and a model that saw only long windows babbles there.
	ShortWindow    int
	SentenceStarts float64
	// Noise is the chance that an input token is replaced by a random one of the text, so that the model leans on
	// several earlier tokens and finds back after a wrong one.
	Noise float64

	Rate      float64 // greatest learning rate
	Warmup    int     // steps until it is reached
	Floor     float64 // part of Rate that is left at the end of the cosine
	Optimiser nn.AdamW
}

// Default is the recipe of the embedded model.
func Default() Recipe {
	return Recipe{
		Seed:  1,
		Steps: 1400,
		Batch: 512,
		Shape: nn.Config{
			Layers: 6, Width: 64, Heads: 4, KVHeads: 2, FeedFwd: 192, Vocab: 1024, Context: 512,
			RopeBase: 10000, NormEps: 1e-5, InitEmbed: 0.08, InitOutput: 0.02,
		},
		Windows:        []int{32, 32, 32, 64, 64, 128, 256, 512},
		ShortWindow:    64,
		SentenceStarts: 0.5,
		Noise:          0.08,
		Rate:           3e-3,
		Warmup:         50,
		Floor:          0.02,
		Optimiser:      nn.AdamW{Beta1: 0.9, Beta2: 0.98, Eps: 1e-8, Decay: 0.01, Clip: 1},
	}
}

// Validate returns every fault at once.
func (r Recipe) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(r.Steps >= 1, "steps is %d; it must be 1 or more", r.Steps)
	check(r.Batch >= 1, "batch is %d tokens; it must be 1 or more", r.Batch)
	check(len(r.Windows) > 0, "no window length is given")
	for _, n := range r.Windows {
		check(n >= 1 && n <= r.Shape.Context, "window of %d tokens is not within the context of %d", n, r.Shape.Context)
	}
	check(r.Shape.Vocab >= bpe.Smallest, "vocabulary of %d has no room for bytes; it must be %d or more", r.Shape.Vocab, bpe.Smallest)
	check(r.SentenceStarts >= 0 && r.SentenceStarts <= 1, "chance of sentence starts is %g; it must be 0 to 1", r.SentenceStarts)
	check(r.Noise >= 0 && r.Noise < 1, "noise is %g; it must be 0 or more and below 1", r.Noise)
	check(r.Rate > 0, "learning rate is %g; it must be above 0", r.Rate)
	return errors.Join(append(faults, r.Shape.Validate())...)
}

// rate is the learning rate of a step, counted from 1: a straight rise, then half a cosine down to the floor.
func (r Recipe) rate(step int) float64 {
	rise := 1.0
	if r.Warmup > 0 {
		rise = math.Min(1, float64(step)/float64(r.Warmup))
	}
	fall := 0.5 * (1 + math.Cos(math.Pi*float64(step)/float64(r.Steps)))
	return r.Rate * rise * (r.Floor + (1-r.Floor)*fall)
}
