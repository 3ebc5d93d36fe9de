package nn

// activations are what one layer keeps for the backward pass, each with a row per token.
type activations[F Float] struct {
	in, normed, scale      []F // input, after the attention norm, 1/rms of each row
	q, k, v, attn          []F
	probs                  []F // per head a dense tokens×tokens block
	mid, midNormed, midRms []F // after attention, after the ffn norm, 1/rms of each row
	gate, up, act          []F
}

// Run holds the buffers for one input at a time, and the gradient. It belongs to one goroutine.
type Run[F Float] struct {
	model  *Model[F]
	grad   []F // one number per parameter, in the order of the tensors
	layers []activations[F]

	hidden, final, finalRms, logits []F

	// Scratch of the backward pass.
	dx, dh, dq, dk, dv, dattn, dgate, dup, dact, dprobs []F
	turnA, turnB                                        []F
	headQ, headK, headV, headO, turnV, turnK, turnQ     []F
}

// NewRun makes buffers for inputs up to the model's context.
func NewRun[F Float](m *Model[F]) *Run[F] {
	rows := func(width int) []F { return make([]F, m.Context*width) }
	r := &Run[F]{model: m, grad: make([]F, m.Params)}
	kv, head := m.KVWidth(), m.HeadWidth()
	for range m.Layers {
		r.layers = append(r.layers, activations[F]{
			in: rows(m.Width), normed: rows(m.Width), scale: rows(1),
			q: rows(m.Width), k: rows(kv), v: rows(kv), attn: rows(m.Width), probs: rows(m.Heads * m.Context),
			mid: rows(m.Width), midNormed: rows(m.Width), midRms: rows(1),
			gate: rows(m.FeedFwd), up: rows(m.FeedFwd), act: rows(m.FeedFwd),
		})
	}
	r.hidden, r.final, r.finalRms, r.logits = rows(m.Width), rows(m.Width), rows(1), rows(m.Vocab)
	r.dx, r.dh, r.dq, r.dk, r.dv, r.dattn = rows(m.Width), rows(m.Width), rows(m.Width), rows(kv), rows(kv), rows(m.Width)
	r.dgate, r.dup, r.dact, r.dprobs = rows(m.FeedFwd), rows(m.FeedFwd), rows(m.FeedFwd), rows(m.Context)
	widest := max(m.Vocab, m.FeedFwd, m.Width, m.Context)
	r.turnA, r.turnB = rows(widest), rows(widest)
	for _, p := range []*[]F{&r.headQ, &r.headK, &r.headV, &r.headO, &r.turnV, &r.turnK, &r.turnQ} {
		*p = rows(head)
	}
	return r
}

// Logits returns the row of scores after token t of the last Forward, Vocab long. Valid until the next Forward or
// Backward.
func (r *Run[F]) Logits(t int) []F {
	n := r.model.Vocab
	return r.logits[t*n : t*n+n]
}

// Clear sets the gradient to zero.
func (r *Run[F]) Clear() { clear(r.grad) }

func (r *Run[F]) gradOf(t *Tensor[F]) []F { return r.grad[t.offset : t.offset+len(t.Data)] }
