package sample

import (
	"math"

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
	logit float32
	id    engine.TokenID
}

// before orders likeliest first, the lower id among equals.
func (c candidate) before(o candidate) bool {
	return c.logit > o.logit || c.logit == o.logit && c.id < o.id
}

func compare(a, b candidate) int {
	switch {
	case a.before(b):
		return -1
	case b.before(a):
		return 1
	}
	return 0
}

// draw picks a token by its share of the truncated distribution. best is the greatest logit.
func (m *Sampler) draw(logits []float32, best float32, position engine.Pos, s *engine.Sampling) engine.TokenID {
	m.collect(logits, best, s)
	kept := m.truncate(best, s)
	weight := func(c candidate) float64 {
		return math.Exp(float64(c.logit-best) / float64(s.Temperature))
	}
	// After truncation kept holds all that is left, sorted; without it the heap holds all, and only as much of it is
	// sorted as the draw goes through.
	var total float64
	for _, c := range kept {
		total += weight(c)
	}
	if kept == nil {
		for _, c := range m.heap {
			total += weight(c)
		}
	}
	rest := Uniform(s.Seed, position) * total
	last := engine.TokenID(0)
	for i := 0; ; i++ {
		var c candidate
		switch {
		case kept != nil && i < len(kept):
			c = kept[i]
		case kept == nil && len(m.heap) > 0:
			c = m.pop()
		default:
			return last // only where rounding left a crumb
		}
		last = c.id
		if rest -= weight(c); rest < 0 {
			return c.id
		}
	}
}

// collect makes a heap of all tokens that can be chosen at all.
func (m *Sampler) collect(logits []float32, best float32, s *engine.Sampling) {
	floor := float64(best) - negligible*max(1, float64(s.Temperature))
	if s.TopP == 1 && s.MinP > 0 {
		floor = max(floor, float64(best)+math.Log(float64(s.MinP)))
	}
	m.heap = m.heap[:0]
	for id, logit := range logits {
		if float64(logit) >= floor {
			m.heap = append(m.heap, candidate{logit: logit, id: engine.TokenID(id)})
		}
	}
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.sink(i)
	}
}

// truncate applies top-k, top-p and min-p and returns what is left, likeliest first; nil when nothing is to be cut but
// what collect has cut. The heap is used up.
func (m *Sampler) truncate(best float32, s *engine.Sampling) []candidate {
	if s.TopK == 0 && s.TopP == 1 {
		return nil
	}
	weight := func(c candidate) float64 { return math.Exp(float64(c.logit - best)) }
	all := m.heap
	n := len(all)
	if s.TopK > 0 {
		n = min(n, int(s.TopK))
	}
	var total float64
	if s.TopP < 1 && n == len(all) {
		for _, c := range all {
			total += weight(c)
		}
	}
	// Each pop frees the last place of the heap, which takes the popped token: the sorted ones grow from the end.
	sorted := func(k int) candidate { return all[len(all)-1-k] }
	popped := 0
	pop := func() {
		c := m.pop()
		all[len(all)-1-popped] = c
		popped++
	}
	if s.TopP < 1 && n < len(all) {
		for popped < n {
			pop()
			total += weight(sorted(popped - 1))
		}
	}
	floor := math.Inf(-1)
	if s.MinP > 0 {
		floor = float64(best) + math.Log(float64(s.MinP))
	}
	var sum float64
	keep := 0
	for keep < n {
		if keep >= popped {
			pop()
		}
		c := sorted(keep)
		if keep > 0 && (sum >= float64(s.TopP)*total && s.TopP < 1 || float64(c.logit) < floor) {
			break
		}
		sum += weight(c)
		keep++
	}
	kept := all[len(all)-keep:]
	for i, j := 0, len(kept)-1; i < j; i, j = i+1, j-1 {
		kept[i], kept[j] = kept[j], kept[i]
	}
	return kept
}

// pop takes the likeliest token off the heap.
func (m *Sampler) pop() candidate {
	first, end := m.heap[0], len(m.heap)-1
	m.heap[0] = m.heap[end]
	m.heap = m.heap[:end]
	m.sink(0)
	return first
}

// sink moves a token down to its place.
func (m *Sampler) sink(i int) {
	for {
		child := 2*i + 1
		if child >= len(m.heap) {
			return
		}
		if right := child + 1; right < len(m.heap) && m.heap[right].before(m.heap[child]) {
			child = right
		}
		if m.heap[i].before(m.heap[child]) {
			return
		}
		m.heap[i], m.heap[child] = m.heap[child], m.heap[i]
		i = child
	}
}
