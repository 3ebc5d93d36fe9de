package recipe

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
)

// Progress is how far a training is.
type Progress struct {
	Step, Steps int
	Loss        float64 // nats a token, smoothed over about 20 steps
	Tokens      int     // seen so far
	Elapsed     time.Duration
}

// Left is the time that the remaining steps will take at the speed so far.
func (p Progress) Left() time.Duration {
	return time.Duration(float64(p.Elapsed) / float64(p.Step) * float64(p.Steps-p.Step))
}

// Train makes a model of text. progress, if not nil, is called after every step, from this goroutine. The end of ctx
// stops the training before its next step.
func (r Recipe) Train(ctx context.Context, text string, progress func(Progress)) (*nn.Model[float32], *bpe.Vocab, error) {
	if err := r.Validate(); err != nil {
		return nil, nil, fmt.Errorf("recipe: %w", err)
	}
	vocab := bpe.Train(text, r.Shape.Vocab)
	c, err := newCorpus(text, vocab)
	if err != nil {
		return nil, nil, err
	}
	shape := r.Shape
	shape.Vocab, shape.Seed = len(vocab.Tokens), r.Seed
	m, err := nn.New[float32](shape)
	if err != nil {
		return nil, nil, err
	}
	run := nn.NewRun(m)
	rng := rand.New(rand.NewPCG(r.Seed, 1))
	begun := time.Now()
	p := Progress{Steps: r.Steps}
	for p.Step = 1; p.Step <= r.Steps; p.Step++ {
		if ctx.Err() != nil {
			return nil, nil, fmt.Errorf("training stopped before step %d of %d: %w", p.Step, r.Steps, context.Cause(ctx))
		}
		loss, tokens := r.step(m, run, c, rng, p.Step)
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return nil, nil, fmt.Errorf("training diverged at step %d: the loss is %g; try a lower learning rate", p.Step, loss)
		}
		if p.Step == 1 {
			p.Loss = loss
		}
		p.Loss += 0.05 * (loss - p.Loss)
		p.Tokens += tokens
		p.Elapsed = time.Since(begun)
		if progress != nil {
			progress(p)
		}
	}
	return m, vocab, nil
}

// step draws a batch and learns from it; it returns the mean loss and the number of tokens.
func (r Recipe) step(m *nn.Model[float32], run *nn.Run[float32], c *corpus, rng *rand.Rand, step int) (float64, int) {
	windows, tokens := r.batch(c, rng)
	run.Clear()
	loss := 0.0
	for _, w := range windows {
		run.Forward(w.in)
		loss += run.Backward(w.in, w.want, 1/float64(tokens))
	}
	m.Step(run, r.Optimiser, r.rate(step), step)
	return loss / float64(tokens), tokens
}
