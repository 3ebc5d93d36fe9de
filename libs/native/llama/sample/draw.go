package sample

import (
	"cmp"
	"math"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// negligible is a distance from the best logit, in natural logarithms. Tokens further away have together less than 2⁻⁵³
// of the probability, the grain of the draw, for every vocabulary of up to 2³² tokens.
const negligible = 60

// golden is the step of SplitMix64.
const golden = 0x9e3779b97f4a7c15

// Uniform is the number in [0, 1) that the draw at a position uses: output number position+1 of SplitMix64 for the seed,
// cut to 53 bits.
func Uniform(seed uint64, position engine.Pos) float64 {
	z := seed + golden*(uint64(position)+1)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

// candidate is a token that may still be chosen.
type candidate struct {
	weight float64
	logit  float32
	id     engine.TokenID
}

// likelier orders likeliest first, the lower id among equals.
func likelier(a, b candidate) int {
	switch {
	case a.logit > b.logit:
		return -1
	case a.logit < b.logit:
		return 1
	}
	return cmp.Compare(a.id, b.id)
}

func byID(a, b candidate) int { return cmp.Compare(a.id, b.id) }

// draw picks a token by its share of the truncated distribution. best is the greatest logit.
func (m *Sampler) draw(logits []float32, best float32, position engine.Pos, s *engine.Sampling) engine.TokenID {
	left := m.truncate(logits, best, s)
	total := weigh(left, best, float64(s.Temperature))
	rest := Uniform(s.Seed, position) * total
	for _, c := range left {
		if rest -= c.weight; rest < 0 {
			return c.id
		}
	}
	return left[len(left)-1].id // where rounding left a crumb
}

// weigh gives each token a share relative to the best one's and returns the sum.
func weigh(candidates []candidate, best float32, temperature float64) (total float64) {
	for i := range candidates {
		w := math.Exp(float64(candidates[i].logit-best) / temperature)
		candidates[i].weight = w
		total += w
	}
	return total
}

// truncate applies top-k, top-p and min-p and returns what is left, in order of ids: one token at least.
func (m *Sampler) truncate(logits []float32, best float32, s *engine.Sampling) []candidate {
	minimum := math.Inf(-1)
	if s.MinP > 0 {
		minimum = float64(best) + math.Log(float64(s.MinP))
	}
	floor := float64(best) - negligible*max(1, float64(s.Temperature))
	if s.TopP == 1 {
		floor = max(floor, minimum) // the other cuts do not depend on what min-p cuts
	}
	var left []candidate
	if k := int(s.TopK); k > 0 && k < len(logits) {
		left = m.best(logits, k, floor)
	} else if left = m.above(logits, floor); s.TopP == 1 {
		return left
	}
	if s.TopP < 1 {
		left = nucleus(left, best, float64(s.TopP))
		left = slices.DeleteFunc(left, func(c candidate) bool { return float64(c.logit) < minimum })
	}
	slices.SortFunc(left, byID)
	return left
}

// above returns the tokens with a logit of floor or more, in order of ids.
func (m *Sampler) above(logits []float32, floor float64) []candidate {
	m.candidates = m.candidates[:0]
	for id, logit := range logits {
		if float64(logit) >= floor {
			m.candidates = append(m.candidates, candidate{logit: logit, id: engine.TokenID(id)})
		}
	}
	return m.candidates
}

// few is up to how many tokens it is faster to pick the best by insertion than to sort all.
const few = 512

// best returns the n likeliest tokens with a logit of floor or more, likeliest first.
func (m *Sampler) best(logits []float32, n int, floor float64) []candidate {
	if n > few {
		all := m.above(logits, floor)
		slices.SortFunc(all, likelier)
		return all[:min(n, len(all))]
	}
	picked := m.candidates[:0]
	for id, logit := range logits {
		if float64(logit) < floor || len(picked) == n && logit <= picked[n-1].logit {
			continue // ids ascend: an equal one behind the last comes too late
		}
		c := candidate{logit: logit, id: engine.TokenID(id)}
		at, _ := slices.BinarySearchFunc(picked, c, likelier)
		picked = slices.Insert(picked[:min(len(picked), n-1)], at, c)
	}
	m.candidates = picked
	return picked
}

// nucleus returns the likeliest tokens that have together a share of p of the candidates' probability, likeliest first.
func nucleus(candidates []candidate, best float32, p float64) []candidate {
	total := weigh(candidates, best, 1)
	// Tokens below this have all together less than 1 − p: they cannot be in it, and need not be sorted.
	least := total * (1 - p) / float64(len(candidates)+1)
	left := slices.DeleteFunc(candidates, func(c candidate) bool { return c.weight < least })
	slices.SortFunc(left, likelier)
	var sum float64
	for i, c := range left {
		if sum += c.weight; sum >= p*total {
			return left[:i+1]
		}
	}
	return left
}
