package nn

import "math"

// Forward evaluates tokens from position 0. len(tokens) is 1 to Context, and every id is below Vocab.
func (r *Run[F]) Forward(tokens []int) {
	m, n := r.model, len(tokens)
	x := r.layers[0].in
	for t, id := range tokens {
		copy(x[t*m.Width:(t+1)*m.Width], m.embed.Data[id*m.Width:(id+1)*m.Width])
	}
	for i := range m.layers {
		out := r.hidden
		if i+1 < m.Layers {
			out = r.layers[i+1].in
		}
		r.forwardLayer(&m.layers[i], &r.layers[i], out, n)
	}
	normalize(r.final, r.finalRms, r.hidden, m.norm.Data, n, m.Width, m.NormEps)
	apply(r.logits, r.final, m.output, n, false)
}

func (r *Run[F]) forwardLayer(l *layer[F], a *activations[F], out []F, n int) {
	m := r.model
	normalize(a.normed, a.scale, a.in, l.attnNorm.Data, n, m.Width, m.NormEps)
	apply(a.q, a.normed, l.q, n, false)
	apply(a.k, a.normed, l.k, n, false)
	apply(a.v, a.normed, l.v, n, false)
	m.rotate(a.q, n, m.Heads, false)
	m.rotate(a.k, n, m.KVHeads, false)
	r.attend(a, n)
	copy(a.mid, a.in[:n*m.Width])
	apply(a.mid, a.attn, l.attnOut, n, true)

	normalize(a.midNormed, a.midRms, a.mid, l.ffnNorm.Data, n, m.Width, m.NormEps)
	apply(a.gate, a.midNormed, l.gate, n, false)
	apply(a.up, a.midNormed, l.up, n, false)
	for j, g := range a.gate[:n*m.FeedFwd] {
		a.act[j] = g / F(1+math.Exp(-float64(g))) * a.up[j]
	}
	copy(out, a.mid[:n*m.Width])
	apply(out, a.act, l.down, n, true)
}

// apply sets y to x·Wᵀ for n rows, or adds it.
func apply[F Float](y, x []F, w *Tensor[F], n int, add bool) {
	mulT(matrix[F]{y, w.Out}, matrix[F]{x, w.In}, matrix[F]{w.Data, w.In}, n, w.Out, w.In, add)
}

// normalize is RMS norm with a gain; inverse gets 1/rms of each row.
func normalize[F Float](out, inverse, x, gain []F, n, width int, eps float64) {
	for t := 0; t < n; t++ {
		row, o := x[t*width:(t+1)*width], out[t*width:(t+1)*width]
		var sum F
		for _, v := range row {
			sum += F(v * v)
		}
		inv := F(1 / math.Sqrt(float64(sum)/float64(width)+eps))
		inverse[t] = inv
		for i, v := range row {
			o[i] = v * inv * gain[i]
		}
	}
}

// rotate turns neighbouring pairs of each head by the angle of their position, or back.
func (m *Model[F]) rotate(x []F, n, heads int, back bool) {
	width := m.HeadWidth()
	for t := 0; t < n; t++ {
		cos, sin := m.cos[t*width/2:(t+1)*width/2], m.sin[t*width/2:(t+1)*width/2]
		for h := 0; h < heads; h++ {
			v := x[(t*heads+h)*width : (t*heads+h+1)*width]
			for i := range cos {
				a, b, c, s := v[2*i], v[2*i+1], cos[i], sin[i]
				if back {
					s = -s
				}
				v[2*i], v[2*i+1] = F(a*c)-F(b*s), F(a*s)+F(b*c)
			}
		}
	}
}
