package nn

import "math"

// Backward adds to the gradient that of scale·Σ cross entropy of targets after the Forward of the same tokens, and
// returns Σ cross entropy in nats. It overwrites the logits.
func (r *Run[F]) Backward(tokens, targets []int, scale float64) float64 {
	m, n := r.model, len(tokens)
	loss := 0.0
	for t := 0; t < n; t++ {
		loss += entropyBack(r.Logits(t), targets[t], scale)
	}
	r.applyBack(r.dh, r.logits, r.final, m.output, n, false)
	dx := r.dx
	clear(dx[:n*m.Width])
	normalizeBack(dx, r.gradOf(m.norm), r.dh, r.hidden, m.norm.Data, r.finalRms, n, m.Width)
	for i := m.Layers - 1; i >= 0; i-- {
		r.backwardLayer(&m.layers[i], &r.layers[i], n)
	}
	g := r.gradOf(m.embed)
	for t, id := range tokens {
		d, s := g[id*m.Width:(id+1)*m.Width], dx[t*m.Width:(t+1)*m.Width]
		for i, v := range s {
			d[i] += v
		}
	}
	return loss
}

// entropyBack turns a row of logits into its gradient and returns the cross entropy.
func entropyBack[F Float](row []F, target int, scale float64) float64 {
	top := row[0]
	for _, v := range row {
		top = max(top, v)
	}
	sum, wanted := 0.0, row[target]
	for i, v := range row {
		e := math.Exp(float64(v - top))
		sum += e
		row[i] = F(e)
	}
	k := F(scale / sum)
	for i := range row {
		row[i] *= k
	}
	row[target] -= F(scale)
	return math.Log(sum) - float64(wanted-top)
}

// backwardLayer turns r.dx, the gradient of the layer's output, into that of its input.
func (r *Run[F]) backwardLayer(l *layer[F], a *activations[F], n int) {
	m := r.model
	r.applyBack(r.dact, r.dx, a.act, l.down, n, false)
	for j, g := range a.gate[:n*m.FeedFwd] {
		s := F(1 / (1 + math.Exp(-float64(g))))
		d := r.dact[j]
		r.dup[j] = d * g * s
		r.dgate[j] = d * a.up[j] * s * (1 + g*(1-s))
	}
	r.applyBack(r.dh, r.dgate, a.midNormed, l.gate, n, false)
	r.applyBack(r.dh, r.dup, a.midNormed, l.up, n, true)
	normalizeBack(r.dx, r.gradOf(l.ffnNorm), r.dh, a.mid, l.ffnNorm.Data, a.midRms, n, m.Width)

	r.applyBack(r.dattn, r.dx, a.attn, l.attnOut, n, false)
	r.attendBack(a, n)
	m.rotate(r.dq, n, m.Heads, true)
	m.rotate(r.dk, n, m.KVHeads, true)
	r.applyBack(r.dh, r.dq, a.normed, l.q, n, false)
	r.applyBack(r.dh, r.dk, a.normed, l.k, n, true)
	r.applyBack(r.dh, r.dv, a.normed, l.v, n, true)
	normalizeBack(r.dx, r.gradOf(l.attnNorm), r.dh, a.in, l.attnNorm.Data, a.scale, n, m.Width)
}

// applyBack sets dx to dy·W, or adds it, and adds dyᵀ·x to W's gradient.
func (r *Run[F]) applyBack(dx, dy, x []F, w *Tensor[F], n int, add bool) {
	mulT(matrix[F]{dx, w.In}, matrix[F]{dy, w.Out}, matrix[F]{w.turned, w.Out}, n, w.In, w.Out, add)
	transpose(r.turnA, dy, n, w.Out)
	transpose(r.turnB, x, n, w.In)
	mulT(matrix[F]{r.gradOf(w), w.In}, matrix[F]{r.turnA, n}, matrix[F]{r.turnB, n}, w.Out, w.In, n, true)
}

// normalizeBack adds to dx and dgain the gradient of normalize.
func normalizeBack[F Float](dx, dgain, dout, x, gain, inverse []F, n, width int) {
	for t := 0; t < n; t++ {
		inv := inverse[t]
		row, d, o := x[t*width:(t+1)*width], dout[t*width:(t+1)*width], dx[t*width:(t+1)*width]
		var sum F
		for i, v := range row {
			sum += F(d[i] * gain[i] * v)
			dgain[i] += F(d[i] * v * inv)
		}
		sum = sum * inv * inv * inv / F(width)
		for i, v := range row {
			o[i] += F(d[i]*gain[i]*inv) - F(v*sum)
		}
	}
}
