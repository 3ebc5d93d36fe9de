package nn

import "math"

// AdamW is the optimiser's settings.
type AdamW struct {
	Beta1, Beta2 float64
	Eps          float64
	Decay        float64 // weight decay of matrices; norms have none
	Clip         float64 // greatest norm of the gradient; 0: no limit
}

// Step moves the weights against r's gradient. step counts from 1. It returns the norm of the gradient before clipping.
func (m *Model[F]) Step(r *Run[F], opt AdamW, rate float64, step int) float64 {
	sum := 0.0
	for _, g := range r.grad {
		sum += float64(g) * float64(g)
	}
	norm := math.Sqrt(sum)
	factor := 1.0
	if opt.Clip > 0 && norm > opt.Clip {
		factor = opt.Clip / norm
	}
	fix1, fix2 := 1-math.Pow(opt.Beta1, float64(step)), 1-math.Pow(opt.Beta2, float64(step))
	b1, b2 := F(opt.Beta1), F(opt.Beta2)
	for _, t := range m.Tensors {
		decay := opt.Decay
		if t.Norm {
			decay = 0
		}
		for i, g := range r.gradOf(t) {
			x := F(float64(g) * factor)
			t.m[i] = F(b1*t.m[i]) + F((1-b1)*x)
			t.v[i] = F(b2*t.v[i]) + F((1-b2)*x*x)
			move := float64(t.m[i]) / fix1 / (math.Sqrt(float64(t.v[i])/fix2) + opt.Eps)
			t.Data[i] -= F(rate * (move + decay*float64(t.Data[i])))
		}
	}
	m.Sync()
	return norm
}
