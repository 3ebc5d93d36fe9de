package fake

import (
	"cmp"
	"math"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// candidate is a token that may still be chosen.
type candidate struct {
	id    engine.TokenID
	logit float64
}

// choose samples the token after tokens. It is a pure function of its arguments: the draw is seeded by the seed and the
// position, which is len(tokens).
func choose(logits []float32, tokens []engine.TokenID, s *engine.Sampling) (*engine.Sample, error) {
	candidates := make([]candidate, 0, len(logits))
	for id, logit := range logits {
		candidates = append(candidates, candidate{engine.TokenID(id), float64(logit)})
	}
	norm := logSumExp(candidates)
	raw := slices.Clone(candidates)
	penalise(candidates, tokens, s)
	for _, bias := range s.LogitBias {
		c := &candidates[bias.Token]
		c.logit = float64(float32(c.logit) + bias.Bias) // as a real engine does, in float32
	}
	candidates = slices.DeleteFunc(candidates, func(c candidate) bool { return math.IsInf(c.logit, -1) })
	if len(candidates) == 0 {
		return nil, engine.Errorf(engine.Malformed, "the logit biases forbid every token; allow one")
	}
	slices.SortFunc(candidates, likelier)
	chosen := draw(candidates, engine.Pos(len(tokens)), s)

	sample := &engine.Sample{Token: chosen, Bytes: tokenBytes(chosen), EndOfGeneration: chosen == EndOfText}
	sample.Logprob = float32(raw[chosen].logit - norm)
	if s.Logprobs > 0 {
		slices.SortFunc(raw, likelier)
		for _, c := range raw[:min(int(s.Logprobs), len(raw))] {
			sample.Top = append(sample.Top, engine.TokenLogprob{Token: c.id, Bytes: tokenBytes(c.id), Logprob: float32(c.logit - norm)})
		}
	}
	return sample, nil
}

// likelier orders by logit, then the lowest id.
func likelier(a, b candidate) int {
	return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.id, b.id))
}

func logSumExp(candidates []candidate) float64 {
	top := math.Inf(-1)
	for _, c := range candidates {
		top = max(top, c.logit)
	}
	var sum float64
	for _, c := range candidates {
		sum += math.Exp(c.logit - top)
	}
	return top + math.Log(sum)
}

// penalise lowers the logits of tokens seen in the window.
func penalise(candidates []candidate, tokens []engine.TokenID, s *engine.Sampling) {
	window := tokens[len(tokens)-min(len(tokens), int(s.PenaltyWindow)):]
	counts := make(map[engine.TokenID]int, len(window))
	for _, token := range window {
		counts[token]++
	}
	for token, count := range counts {
		c := &candidates[token]
		if c.logit > 0 {
			c.logit /= float64(s.RepeatPenalty)
		} else {
			c.logit *= float64(s.RepeatPenalty)
		}
		c.logit -= float64(s.FrequencyPenalty)*float64(count) + float64(s.PresencePenalty)
	}
}

// draw picks of the sorted candidates: greedy at temperature 0, else top-k, typical, top-p and min-p, then
// temperature.
func draw(sorted []candidate, position engine.Pos, s *engine.Sampling) engine.TokenID {
	if s.Temperature == 0 {
		return sorted[0].id
	}
	if s.TopK > 0 {
		sorted = sorted[:min(int(s.TopK), len(sorted))]
	}
	if 0 < s.Typical && s.Typical < 1 {
		sorted = typical(sorted, float64(s.Typical))
	}
	norm := logSumExp(sorted)
	var sum float64
	keep := 0
	for i, c := range sorted {
		p := math.Exp(c.logit - norm)
		if i > 0 && (sum >= float64(s.TopP) || c.logit < sorted[0].logit+math.Log(float64(s.MinP))) {
			break
		}
		sum += p
		keep++
	}
	sorted = sorted[:keep]
	tempered := make([]candidate, len(sorted))
	for i, c := range sorted {
		tempered[i] = candidate{c.id, c.logit / float64(s.Temperature)}
	}
	norm = logSumExp(tempered)
	rest := float64(mix(s.Seed+golden*(uint64(position)+1))>>11) / (1 << 53) // 0 ≤ rest < 1
	for _, c := range tempered {
		rest -= math.Exp(c.logit - norm)
		if rest < 0 {
			return c.id
		}
	}
	return tempered[len(tempered)-1].id
}

// typical leaves of the sorted candidates those whose surprise is nearest to the expected one, until they have a share of p.
func typical(sorted []candidate, p float64) []candidate {
	norm := logSumExp(sorted)
	var entropy, sum float64
	for _, c := range sorted {
		entropy -= math.Exp(c.logit-norm) * (c.logit - norm)
	}
	off := func(c candidate) float64 { return math.Abs(norm - c.logit - entropy) }
	sorted = slices.Clone(sorted)
	slices.SortStableFunc(sorted, func(a, b candidate) int { return cmp.Compare(off(a), off(b)) })
	for i, c := range sorted {
		if sum += math.Exp(c.logit - norm); sum > p {
			sorted = sorted[:i+1]
			break
		}
	}
	slices.SortFunc(sorted, likelier)
	return sorted
}
