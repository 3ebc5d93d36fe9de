package sample

import (
	"math"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Choice is the outcome of Choose.
type Choice struct {
	Token engine.TokenID
	// Logprob is the natural logarithm of the token's probability in the model's own distribution: before penalties,
	// biases, truncation and temperature. 0 unless it or alternatives were asked for.
	Logprob float32
	// Top is the likeliest tokens of the same distribution, likeliest first; Bytes are left to the caller. The Sampler
	// overwrites it at the next Choose.
	Top []engine.TokenLogprob
}

// A Sampler keeps the memory that choosing takes, so that it allocates only while it grows. One goroutine at a time.
type Sampler struct {
	counts     map[engine.TokenID]uint32
	original   map[engine.TokenID]float32 // logits that penalties or biases changed
	candidates []candidate
	top        []engine.TokenLogprob
}

// New returns a Sampler.
func New() *Sampler {
	return &Sampler{counts: make(map[engine.TokenID]uint32), original: make(map[engine.TokenID]float32)}
}

// Choose picks the token that follows tokens, the whole session so far. logits has a finite value per token of the
// vocabulary and is overwritten. s has passed Check for this vocabulary.
//
// Error: MALFORMED when biases forbid every token.
func (m *Sampler) Choose(logits []float32, tokens []engine.TokenID, s *engine.Sampling) (Choice, error) {
	var choice Choice
	var norm float64
	report := s.WantLogprob || s.Logprobs > 0
	if report {
		norm = logSumExp(logits)
		choice.Top = m.likeliest(logits, int(s.Logprobs), norm)
	}
	clear(m.original)
	m.penalise(logits, tokens, s)
	m.bias(logits, s.LogitBias)

	best := argmax(logits)
	if math.IsInf(float64(logits[best]), -1) {
		return Choice{}, engine.Errorf(engine.Malformed, "the biases forbid every token; allow one")
	}
	choice.Token = engine.TokenID(best)
	if s.Temperature > 0 {
		choice.Token = m.draw(logits, logits[best], engine.Pos(len(tokens)), s)
	}
	if report {
		raw, changed := m.original[choice.Token]
		if !changed {
			raw = logits[choice.Token]
		}
		choice.Logprob = float32(float64(raw) - norm)
	}
	return choice, nil
}

// argmax is the index of the greatest value, the lowest among equals.
func argmax(logits []float32) int {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return best
}

// remember keeps the model's own logit of a token before it is changed.
func (m *Sampler) remember(logits []float32, token engine.TokenID) {
	if _, kept := m.original[token]; !kept {
		m.original[token] = logits[token]
	}
}

// penalise lowers the logits of tokens in the window.
func (m *Sampler) penalise(logits []float32, tokens []engine.TokenID, s *engine.Sampling) {
	if s.RepeatPenalty == 1 && s.FrequencyPenalty == 0 && s.PresencePenalty == 0 {
		return
	}
	clear(m.counts)
	for _, token := range tokens[len(tokens)-min(len(tokens), int(s.PenaltyWindow)):] {
		m.counts[token]++
	}
	for token, count := range m.counts {
		m.remember(logits, token)
		logit := logits[token]
		if logit > 0 {
			logit /= s.RepeatPenalty
		} else {
			logit *= s.RepeatPenalty
		}
		logits[token] = logit - s.FrequencyPenalty*float32(count) - s.PresencePenalty
	}
}

func (m *Sampler) bias(logits []float32, biases []engine.LogitBias) {
	for _, bias := range biases {
		m.remember(logits, bias.Token)
		logits[bias.Token] += bias.Bias
	}
}

// likeliest returns the n likeliest tokens with their log-probabilities.
func (m *Sampler) likeliest(logits []float32, n int, norm float64) []engine.TokenLogprob {
	if n == 0 {
		return nil
	}
	m.top = m.top[:0]
	for _, c := range m.best(logits, n, math.Inf(-1)) {
		m.top = append(m.top, engine.TokenLogprob{Token: c.id, Logprob: float32(float64(c.logit) - norm)})
	}
	return m.top
}

func logSumExp(logits []float32) float64 {
	best := float64(logits[argmax(logits)])
	var sum float64
	for _, v := range logits {
		if d := float64(v) - best; d > -negligible {
			sum += math.Exp(d)
		}
	}
	return best + math.Log(sum)
}
