// Package golden says how a model continues the prompts that the README names. Greedy sampling makes the continuations
// facts about the model, so that every engine must give them.
//
// What must stay out: files.
package golden

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
)

// A continuation has Least tokens, and then more until a sentence ends, but never above Most.
const (
	Least = 60
	Most  = 100
)

// Prompts are the ten prompts, each at the beginning of a sentence.
func Prompts() []string {
	return []string{
		"A shard is",
		"DGR lets",
		"A boundary is",
		"The tail is",
		"The cache is",
		"First the prompt",
		"Three rules",
		"Draining empties",
		"The neighbour of the lost worker",
		"DOWNSTREAM_LOST",
	}
}

// Greedy continues a prompt. Error: the prompt and Most tokens do not fit into the context.
func Greedy(m *nn.Model[float32], run *nn.Run[float32], v *bpe.Vocab, prompt string) (handbook.Prompt, error) {
	tokens := v.Encode(prompt)
	begin := len(tokens)
	if begin+Most > m.Context {
		return handbook.Prompt{}, fmt.Errorf("prompt %q has %d tokens; with %d more it does not fit into the context of %d", prompt, begin, Most, m.Context)
	}
	out := handbook.Prompt{Prompt: prompt}
	for len(tokens)-begin < Most {
		run.Forward(tokens)
		best, margin := top(run.Logits(len(tokens) - 1))
		if out.Tokens == 0 || margin < out.Margin {
			out.Margin = margin
		}
		if best == bpe.EOS {
			break
		}
		tokens = append(tokens, best)
		out.Tokens++
		out.Continuation = v.Decode(tokens[begin:])
		if out.Tokens >= Least && strings.HasSuffix(out.Continuation, ".") {
			break
		}
	}
	return out, nil
}

// Check evaluates a prompt with its continuation once and says where the model would choose otherwise.
func Check(run *nn.Run[float32], v *bpe.Vocab, p handbook.Prompt) error {
	tokens, begin := v.Encode(p.Prompt+p.Continuation), len(v.Encode(p.Prompt))
	var faults []error
	if got := len(tokens) - begin; got != p.Tokens {
		faults = append(faults, fmt.Errorf("%q: the continuation has %d tokens, not %d", p.Prompt, got, p.Tokens))
	}
	run.Forward(tokens)
	for i := begin; i < len(tokens); i++ {
		if best, _ := top(run.Logits(i - 1)); best != tokens[i] {
			faults = append(faults, fmt.Errorf("%q: after %q the model says %q, not %q",
				p.Prompt, v.Decode(tokens[:i]), v.Decode([]int{best}), v.Decode(tokens[i:i+1])))
			break
		}
	}
	return errors.Join(faults...)
}

// top is the index of the greatest logit, the lowest among equals, and how far the next one is below.
func top(logits []float32) (best int, margin float64) {
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	next := -1
	for i, x := range logits {
		if i != best && (next < 0 || x > logits[next]) {
			next = i
		}
	}
	return best, float64(logits[best]) - float64(logits[next])
}
