package nn

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

// Config is the shape of a network.
type Config struct {
	Layers     int     // 1 or more
	Width      int     // length of the hidden state; a multiple of 2·Heads
	Heads      int     // query heads; a multiple of KVHeads
	KVHeads    int     // key and value heads
	FeedFwd    int     // width of the feed-forward part
	Vocab      int     // tokens
	Context    int     // longest input, tokens
	RopeBase   float64 // base of the rotary frequencies
	NormEps    float64 // added to the mean square
	Seed       uint64  // of the initial weights
	InitEmbed  float64 // standard deviation of the initial token embedding
	InitOutput float64 // standard deviation of the initial output matrix
}

// HeadWidth is the length of one head's query.
func (c Config) HeadWidth() int { return c.Width / c.Heads }

// KVWidth is the length of all keys of a token.
func (c Config) KVWidth() int { return c.KVHeads * c.HeadWidth() }

// Validate returns every fault at once.
func (c Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(c.Layers >= 1, "layers is %d; it must be 1 or more", c.Layers)
	check(c.KVHeads >= 1 && c.Heads%max(c.KVHeads, 1) == 0, "%d heads cannot share %d key heads", c.Heads, c.KVHeads)
	check(c.Heads >= 1 && c.Width >= 1 && c.Width%(2*max(c.Heads, 1)) == 0,
		"width %d is not a multiple of twice the %d heads", c.Width, c.Heads)
	check(c.FeedFwd >= 1, "feed-forward width is %d; it must be 1 or more", c.FeedFwd)
	check(c.Vocab >= 2, "vocabulary is %d; it must be 2 or more", c.Vocab)
	check(c.Context >= 1, "context is %d; it must be 1 or more", c.Context)
	return errors.Join(faults...)
}

// Tensor is one weight of a Model. A norm is a vector: Out is 1.
type Tensor[F Float] struct {
	Name    string // as in a GGUF file
	Out, In int    // rows and columns; data is row-major
	Norm    bool
	Data    []F

	turned []F // transpose of Data, refreshed by sync
	m, v   []F // first and second moment of AdamW
	offset int // of the gradient in Run.grad
}

type layer[F Float] struct {
	attnNorm, q, k, v, attnOut *Tensor[F]
	ffnNorm, gate, up, down    *Tensor[F]
}

// Model is the weights of a network. Reading it from several Runs is safe while nobody steps it.
type Model[F Float] struct {
	Config
	Tensors []*Tensor[F] // in the order of a file
	Params  int          // numbers in all tensors

	embed, norm, output *Tensor[F]
	layers              []layer[F]
	cos, sin            []F // Context × HeadWidth/2
}

// New makes a model with random weights drawn from c.Seed. Errors: those of Config.Validate.
func New[F Float](c Config) (*Model[F], error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Model[F]{Config: c}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	in := 1 / math.Sqrt(float64(c.Width))
	residual := 1 / math.Sqrt(float64(2*c.Layers))
	m.embed = m.matrix(rng, "token_embd.weight", c.Vocab, c.Width, c.InitEmbed)
	m.norm = m.vector("output_norm.weight", c.Width)
	m.output = m.matrix(rng, "output.weight", c.Vocab, c.Width, c.InitOutput)
	for i := range c.Layers {
		name := func(s string) string { return fmt.Sprintf("blk.%d.%s.weight", i, s) }
		m.layers = append(m.layers, layer[F]{
			attnNorm: m.vector(name("attn_norm"), c.Width),
			q:        m.matrix(rng, name("attn_q"), c.Width, c.Width, in),
			k:        m.matrix(rng, name("attn_k"), c.KVWidth(), c.Width, in),
			v:        m.matrix(rng, name("attn_v"), c.KVWidth(), c.Width, in),
			attnOut:  m.matrix(rng, name("attn_output"), c.Width, c.Width, in*residual),
			ffnNorm:  m.vector(name("ffn_norm"), c.Width),
			gate:     m.matrix(rng, name("ffn_gate"), c.FeedFwd, c.Width, in),
			up:       m.matrix(rng, name("ffn_up"), c.FeedFwd, c.Width, in),
			down:     m.matrix(rng, name("ffn_down"), c.Width, c.FeedFwd, residual/math.Sqrt(float64(c.FeedFwd))),
		})
	}
	m.angles()
	m.Sync()
	return m, nil
}

func (m *Model[F]) matrix(rng *rand.Rand, name string, out, in int, deviation float64) *Tensor[F] {
	t := m.add(name, out, in)
	t.turned = make([]F, len(t.Data))
	for i := range t.Data {
		t.Data[i] = F(float32(rng.NormFloat64() * deviation))
	}
	return t
}

func (m *Model[F]) vector(name string, n int) *Tensor[F] {
	t := m.add(name, 1, n)
	t.Norm = true
	for i := range t.Data {
		t.Data[i] = 1
	}
	return t
}

func (m *Model[F]) add(name string, out, in int) *Tensor[F] {
	n := out * in
	t := &Tensor[F]{Name: name, Out: out, In: in, offset: m.Params, Data: make([]F, n), m: make([]F, n), v: make([]F, n)}
	m.Params += n
	m.Tensors = append(m.Tensors, t)
	return t
}

// angles fills the table of rotary angles.
func (m *Model[F]) angles() {
	width := m.HeadWidth()
	for t := range m.Context {
		for i := range width / 2 {
			angle := float64(t) * math.Pow(m.RopeBase, -2*float64(i)/float64(width))
			m.cos = append(m.cos, F(math.Cos(angle)))
			m.sin = append(m.sin, F(math.Sin(angle)))
		}
	}
}

// Sync must follow every change of a Tensor's Data before the next Forward or Backward.
func (m *Model[F]) Sync() {
	for _, t := range m.Tensors {
		if !t.Norm {
			transpose(t.turned, t.Data, t.Out, t.In)
		}
	}
}
