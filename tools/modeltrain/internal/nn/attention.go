package nn

import "math"

// block is how many queries share one product: what lies right of a block's last query is never computed.
const block = 32

// attend computes causal attention of all heads from a.q, a.k and a.v into a.attn and keeps the probabilities.
func (r *Run[F]) attend(a *activations[F], n int) {
	m := r.model
	width := m.HeadWidth()
	for h := 0; h < m.Heads; h++ {
		r.gatherHead(a, h, n)
		transpose(r.turnV, r.headV, n, width)
		p := a.probs[h*n*n : (h+1)*n*n]
		for b := 0; b < n; b += block {
			e := min(b+block, n)
			mulT(matrix[F]{p[b*n:], n}, matrix[F]{r.headQ[b*width:], width}, matrix[F]{r.headK, width}, e-b, e, width, false)
			for t := b; t < e; t++ {
				softmax(p[t*n:t*n+t+1], m.scale())
				clear(p[t*n+t+1 : t*n+n])
			}
			mulT(matrix[F]{r.headO[b*width:], width}, matrix[F]{p[b*n:], n}, matrix[F]{r.turnV, n}, e-b, width, e, false)
		}
		for t := 0; t < n; t++ {
			copy(a.attn[t*m.Width+h*width:t*m.Width+(h+1)*width], r.headO[t*width:(t+1)*width])
		}
	}
}

// gatherHead copies query head h and its key and value head into dense buffers.
func (r *Run[F]) gatherHead(a *activations[F], h, n int) {
	m := r.model
	width, kv := m.HeadWidth(), m.KVWidth()
	group := h / (m.Heads / m.KVHeads)
	gather(r.headQ, a.q, n, m.Width, h*width, width)
	gather(r.headK, a.k, n, kv, group*width, width)
	gather(r.headV, a.v, n, kv, group*width, width)
}

// scale is what attention scores are multiplied with.
func (m *Model[F]) scale() F { return F(1 / math.Sqrt(float64(m.HeadWidth()))) }

func softmax[F Float](row []F, scale F) {
	top := row[0]
	for _, v := range row {
		top = max(top, v)
	}
	var sum F
	for i, v := range row {
		v = F(math.Exp(float64((v - top) * scale)))
		row[i] = v
		sum += v
	}
	sum = 1 / sum
	for i := range row {
		row[i] *= sum
	}
}

// attendBack takes r.dattn and sets r.dq, r.dk and r.dv.
func (r *Run[F]) attendBack(a *activations[F], n int) {
	m := r.model
	width, kv := m.HeadWidth(), m.KVWidth()
	clear(r.dq[:n*m.Width])
	clear(r.dk[:n*kv])
	clear(r.dv[:n*kv])
	for h := 0; h < m.Heads; h++ {
		group := h / (m.Heads / m.KVHeads)
		r.gatherHead(a, h, n)
		gather(r.headO, r.dattn, n, m.Width, h*width, width)
		transpose(r.turnK, r.headK, n, width)
		transpose(r.turnQ, r.headQ, n, width)
		transpose(r.turnV, r.headO, n, width)
		p := a.probs[h*n*n : (h+1)*n*n]

		transpose(r.turnA, p, n, n)
		r.fromLaterRows(r.turnV, n)
		scatterAdd(r.dv, r.turnB, n, kv, group*width, width)

		r.scoresBack(p, n)
		scatterAdd(r.dq, r.turnB, n, m.Width, h*width, width)

		transpose(r.turnA, r.dprobs, n, n)
		r.fromLaterRows(r.turnQ, n)
		scatterAdd(r.dk, r.turnB, n, kv, group*width, width)
	}
}

// fromLaterRows sets turnB to turnA·otherᵀ, where turnA is a transposed causal block: row t has values from column t on.
func (r *Run[F]) fromLaterRows(other []F, n int) {
	width := r.model.HeadWidth()
	for b := 0; b < n; b += block {
		e := min(b+block, n)
		mulT(matrix[F]{r.turnB[b*width:], width}, matrix[F]{r.turnA[b*n+b:], n}, matrix[F]{other[b:], n}, e-b, width, n-b, false)
	}
}

// scoresBack sets dprobs to the gradient of the scores and turnB to that of the queries.
func (r *Run[F]) scoresBack(p []F, n int) {
	width, scale := r.model.HeadWidth(), r.model.scale()
	d := r.dprobs
	for b := 0; b < n; b += block {
		e := min(b+block, n)
		mulT(matrix[F]{d[b*n:], n}, matrix[F]{r.headO[b*width:], width}, matrix[F]{r.headV, width}, e-b, e, width, false)
		for t := b; t < e; t++ {
			pr, dr := p[t*n:t*n+t+1], d[t*n:t*n+t+1]
			var sum F
			for i, v := range pr {
				sum += F(v * dr[i])
			}
			for i, v := range pr {
				dr[i] = v * (dr[i] - sum) * scale
			}
			clear(d[t*n+t+1 : t*n+n])
		}
		mulT(matrix[F]{r.turnB[b*width:], width}, matrix[F]{d[b*n:], n}, matrix[F]{r.turnK, n}, e-b, width, e, false)
	}
}
