package nn

import (
	"math"
	"math/rand/v2"
	"testing"
)

// small has every feature of a real shape: several layers, shared key heads, more than one block of queries.
var small = Config{
	Layers: 2, Width: 16, Heads: 4, KVHeads: 2, FeedFwd: 24, Vocab: 20, Context: 48,
	RopeBase: 10000, NormEps: 1e-5, Seed: 1, InitEmbed: 0.3, InitOutput: 0.3,
}

func TestBackwardAgreesWithNumericalGradient(t *testing.T) {
	const (
		tokens  = 41
		step    = 1e-5
		samples = 8
		bound   = 2e-6
	)
	m, err := New[float64](small)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, w := range m.Tensors {
		for i := range w.Data {
			w.Data[i] += rng.NormFloat64() * 0.2
		}
	}
	r := NewRun(m)
	var in, want []int
	for range tokens {
		in, want = append(in, rng.IntN(small.Vocab)), append(want, rng.IntN(small.Vocab))
	}
	loss := func() float64 {
		m.Sync()
		r.Clear()
		r.Forward(in)
		return r.Backward(in, want, 1)
	}
	loss()
	grad := append([]float64(nil), r.grad...)
	for _, w := range m.Tensors {
		for range samples {
			i := rng.IntN(len(w.Data))
			kept := w.Data[i]
			w.Data[i] = kept + step
			above := loss()
			w.Data[i] = kept - step
			below := loss()
			w.Data[i] = kept
			numeric := (above - below) / (2 * step)
			if got := grad[w.offset+i]; math.Abs(got-numeric)/(math.Abs(numeric)+1e-2) > bound {
				t.Errorf("%s[%d]: gradient %.9g, numerically %.9g", w.Name, i, got, numeric)
			}
		}
	}
}

func TestMulTAgreesWithDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	random := func(n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = rng.NormFloat64()
		}
		return out
	}
	for _, shape := range [][3]int{{1, 1, 1}, {2, 4, 3}, {3, 5, 7}, {4, 9, 16}} {
		m, n, k := shape[0], shape[1], shape[2]
		x, w, y := random(m*(k+2)), random(n*(k+1)), random(m*(n+3))
		for _, add := range []bool{false, true} {
			got := append([]float64(nil), y...)
			mulT(matrix[float64]{got, n + 3}, matrix[float64]{x, k + 2}, matrix[float64]{w, k + 1}, m, n, k, add)
			for i := range m {
				for j := range n + 3 {
					want := y[i*(n+3)+j]
					if j < n {
						if !add {
							want = 0
						}
						for c := range k {
							want += x[i*(k+2)+c] * w[j*(k+1)+c]
						}
					}
					if math.Abs(got[i*(n+3)+j]-want) > 1e-12 {
						t.Errorf("shape %v add %v: element (%d, %d) is %g, want %g", shape, add, i, j, got[i*(n+3)+j], want)
					}
				}
			}
		}
	}
}

func TestForwardSeesOnlyEarlierTokens(t *testing.T) {
	m, err := New[float32](small)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRun(m)
	in := make([]int, small.Context)
	for i := range in {
		in[i] = i % small.Vocab
	}
	r.Forward(in)
	before := append([]float32(nil), r.Logits(35)...)
	in[36] = 7
	in[40] = 3
	r.Forward(in)
	changed := false
	for i, v := range r.Logits(35) {
		if v != before[i] {
			t.Fatalf("logit %d after token 35 changed with a later token: %g, was %g", i, v, before[i])
		}
	}
	for i, v := range r.Logits(36) {
		changed = changed || v != before[i]
	}
	if !changed {
		t.Error("the row after the changed token is the row before it; the test looks at nothing")
	}
}
