//go:build llama && cgo

package llama

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func greedy() *engine.Sampling { return &engine.Sampling{TopP: 1, RepeatPenalty: 1} }

func chooser(t testing.TB) *sampler {
	t.Helper()
	s, err := newSampler()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.free)
	return s
}

func with(change func(*engine.Sampling)) *engine.Sampling {
	s := greedy()
	change(s)
	return s
}

func choose(t *testing.T, logits []float32, tokens []engine.TokenID, s *engine.Sampling) *engine.Sample {
	t.Helper()
	if err := checkSampling(s, uint32(len(logits))); err != nil {
		t.Fatal(err)
	}
	c, err := chooser(t).choose(logits, tokens, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// uniform is the number in [0, 1) of a draw, as dgr_sample.h says it.
func uniform(seed uint64, position int) float64 {
	z := seed + 0x9e3779b97f4a7c15*(uint64(position)+1)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

// TestDrawIsSplitMix64: among 2¹⁶ tokens alike, the one that is drawn shows the number.
func TestDrawIsSplitMix64(t *testing.T) {
	for position, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} { // published outputs for seed 0
		if got := uniform(0, position); got != float64(want>>11)/(1<<53) {
			t.Errorf("position %d: %v", position, got)
		}
		s := with(func(s *engine.Sampling) { s.Temperature = 1 })
		if got := choose(t, make([]float32, 1<<16), make([]engine.TokenID, position), s).Token; got != engine.TokenID(want>>48) {
			t.Errorf("position %d: token %#x, want %#x", position, got, want>>48)
		}
	}
}

func TestGreedy(t *testing.T) {
	inf := float32(math.Inf(-1))
	for name, c := range map[string]struct {
		logits []float32
		tokens []engine.TokenID
		s      *engine.Sampling
		want   engine.TokenID
	}{
		"most probable":          {[]float32{1, 3, 2}, nil, greedy(), 1},
		"lowest id among equals": {[]float32{1, 3, 3}, nil, greedy(), 1},
		"all below zero":         {[]float32{-5, -3, -4}, nil, greedy(), 1},
		"bias":                   {[]float32{1, 3, 2}, nil, with(func(s *engine.Sampling) { s.LogitBias = []engine.LogitBias{{Token: 2, Bias: 1.5}} }), 2},
		"bias twice": {[]float32{1, 3, 2}, nil, with(func(s *engine.Sampling) {
			s.LogitBias = []engine.LogitBias{{Token: 0, Bias: 1.5}, {Token: 0, Bias: 1.5}}
		}), 0},
		"forbidden":             {[]float32{1, 3, 2}, nil, with(func(s *engine.Sampling) { s.LogitBias = []engine.LogitBias{{Token: 1, Bias: inf}} }), 2},
		"repeat above zero":     {[]float32{1, 3, 2}, []engine.TokenID{1}, with(func(s *engine.Sampling) { s.RepeatPenalty, s.PenaltyWindow = 2, 8 }), 2},
		"repeat below zero":     {[]float32{-4, -3, -5}, []engine.TokenID{1}, with(func(s *engine.Sampling) { s.RepeatPenalty, s.PenaltyWindow = 2, 8 }), 0},
		"outside the window":    {[]float32{1, 3, 2}, []engine.TokenID{1, 0, 0}, with(func(s *engine.Sampling) { s.RepeatPenalty, s.PenaltyWindow = 2, 2 }), 1},
		"no window":             {[]float32{1, 3, 2}, []engine.TokenID{1}, with(func(s *engine.Sampling) { s.RepeatPenalty = 2 }), 1},
		"presence counts once":  {[]float32{1, 3, 2}, []engine.TokenID{1, 1, 1}, with(func(s *engine.Sampling) { s.PresencePenalty, s.PenaltyWindow = 0.5, 8 }), 1},
		"frequency counts each": {[]float32{1, 3, 2}, []engine.TokenID{1, 1, 1}, with(func(s *engine.Sampling) { s.FrequencyPenalty, s.PenaltyWindow = 0.5, 8 }), 2},
		"bias comes on penalties": {[]float32{1, 3, 2}, []engine.TokenID{1}, with(func(s *engine.Sampling) {
			s.RepeatPenalty, s.PenaltyWindow, s.LogitBias = 3, 8, []engine.LogitBias{{Token: 1, Bias: 2}}
		}), 1},
		"top_k 1 is greedy":        {[]float32{1, 3, 2}, nil, with(func(s *engine.Sampling) { s.Temperature, s.TopK, s.Seed = 5, 1, 3 }), 1},
		"tiny top_p is greedy":     {[]float32{1, 3, 2}, nil, with(func(s *engine.Sampling) { s.Temperature, s.TopP, s.Seed = 5, 1e-6, 3 }), 1},
		"min_p 1 is greedy":        {[]float32{1, 3, 2}, nil, with(func(s *engine.Sampling) { s.Temperature, s.MinP, s.Seed = 5, 1, 3 }), 1},
		"tiny temperature":         {[]float32{1, 3, 2}, nil, with(func(s *engine.Sampling) { s.Temperature, s.Seed = 1e-30, 3 }), 1},
		"forbidden with a draw":    {[]float32{1, 3}, nil, with(func(s *engine.Sampling) { s.Temperature, s.LogitBias = 100, []engine.LogitBias{{Token: 1, Bias: inf}} }), 0},
		"penalty that is a reward": {[]float32{1, 3, 2}, []engine.TokenID{0}, with(func(s *engine.Sampling) { s.PresencePenalty, s.FrequencyPenalty, s.PenaltyWindow = -2, -2, 8 }), 0},
	} {
		if got := choose(t, c.logits, c.tokens, c.s); got.Token != c.want {
			t.Errorf("%s: token %d, want %d", name, got.Token, c.want)
		}
	}
}

// ranked is a token with its logit.
type ranked struct {
	id    engine.TokenID
	logit float64
}

// typical leaves of tokens in order those whose surprise is nearest to the expected one, until they have a share of p.
func typical(sorted []ranked, p float64) []ranked {
	var z, entropy, sum float64
	for _, e := range sorted {
		z += math.Exp(e.logit - sorted[0].logit)
	}
	surprise := func(e ranked) float64 { return math.Log(z) + sorted[0].logit - e.logit }
	for _, e := range sorted {
		entropy += math.Exp(-surprise(e)) * surprise(e)
	}
	by := slices.Clone(sorted)
	slices.SortStableFunc(by, func(a, b ranked) int {
		return cmp.Compare(math.Abs(surprise(a)-entropy), math.Abs(surprise(b)-entropy))
	})
	for i, e := range by {
		if sum += math.Exp(-surprise(e)); sum > p {
			by = by[:i+1]
			break
		}
	}
	slices.SortStableFunc(by, func(a, b ranked) int { return cmp.Compare(b.logit, a.logit) })
	return by
}

// dumb chooses as dgr_sample.h says, by sorting everything.
func dumb(logits []float32, tokens []engine.TokenID, s *engine.Sampling) engine.TokenID {
	type entry = ranked
	var all []entry
	for id, logit := range logits {
		all = append(all, entry{engine.TokenID(id), float64(logit)})
	}
	slices.SortStableFunc(all, func(a, b entry) int {
		switch {
		case a.logit > b.logit:
			return -1
		case a.logit < b.logit:
			return 1
		}
		return 0
	})
	if s.TopK > 0 {
		all = all[:min(len(all), int(s.TopK))]
	}
	total := func(temperature float64) (sum float64) {
		for _, e := range all {
			sum += math.Exp((e.logit - all[0].logit) / temperature)
		}
		return sum
	}
	if 0 < s.Typical && s.Typical < 1 {
		all = typical(all, float64(s.Typical))
	}
	if s.TopP < 1 {
		z, sum := total(1), 0.0
		for i, e := range all {
			if sum += math.Exp(e.logit-all[0].logit) / z; sum >= float64(s.TopP) {
				all = all[:i+1]
				break
			}
		}
	}
	for i, e := range all {
		if math.Exp(e.logit-all[0].logit) < float64(s.MinP) {
			all = all[:i]
			break
		}
	}
	z, sum, top := total(float64(s.Temperature)), 0.0, all[0].logit
	slices.SortFunc(all, func(a, b entry) int { return int(a.id) - int(b.id) })
	u := uniform(s.Seed, len(tokens))
	for _, e := range all {
		if sum += math.Exp((e.logit-top)/float64(s.Temperature)) / z; u < sum {
			return e.id
		}
	}
	return all[len(all)-1].id
}

func TestDrawAgainstSorting(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	chooser := chooser(t)
	different := make(map[engine.TokenID]bool)
	for range 2000 {
		s := greedy()
		s.Typical = []float32{0, 0, 0, 0.9, 0.3}[random.IntN(5)]
		logits := make([]float32, 1+random.IntN([]int{200, 900, 5000}[random.IntN(3)]))
		for i := range logits {
			logits[i] = float32(random.NormFloat64() * 4)
			if s.Typical == 0 && random.IntN(4) == 0 {
				logits[i] = float32(random.IntN(5)) // equals
			}
		}
		s.Seed, s.Temperature = random.Uint64(), []float32{0.2, 0.7, 1, 1.5, 10}[random.IntN(5)]
		s.TopK = []uint32{0, 1, 5, 40, 600, 1000}[random.IntN(6)]
		s.TopP = []float32{1, 0.95, 0.5, 0.01}[random.IntN(4)]
		s.MinP = []float32{0, 0.05, 0.5}[random.IntN(3)]
		tokens := make([]engine.TokenID, random.IntN(50))
		got, err := chooser.choose(logits, tokens, s, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := dumb(logits, tokens, s); got.Token != want {
			t.Fatalf("%+v of %d logits at %d: token %d, want %d", s, len(logits), len(tokens), got.Token, want)
		}
		different[got.Token] = true
	}
	if len(different) < 50 {
		t.Errorf("only %d different tokens were drawn", len(different))
	}
}

func TestDrawFollowsTheDistribution(t *testing.T) {
	logits := []float32{0, float32(math.Log(2)), float32(math.Log(5)), -1000}
	const n = 40000
	var counts [4]int
	s := with(func(s *engine.Sampling) { s.Temperature, s.Seed = 1, 99 })
	for position := range n {
		counts[choose(t, logits, make([]engine.TokenID, position%100+position/100), with(func(x *engine.Sampling) { *x = *s; x.Seed += uint64(position) })).Token]++
	}
	for id, p := range []float64{1.0 / 8, 2.0 / 8, 5.0 / 8, 0} {
		deviation := math.Sqrt(n * p * (1 - p))
		if math.Abs(float64(counts[id])-n*p) > 5*deviation {
			t.Errorf("token %d was drawn %d times of %d, expected %.0f", id, counts[id], n, n*p)
		}
	}
}

func TestLogprobs(t *testing.T) {
	logits := []float32{1, 3, 2, 3, -4}
	norm := math.Log(math.Exp(1) + 2*math.Exp(3) + math.Exp(2) + math.Exp(-4))
	s := with(func(s *engine.Sampling) {
		s.Logprobs, s.TopK, s.Temperature = 3, 1, 0.5
		s.RepeatPenalty, s.PenaltyWindow = 1.5, 8
		s.LogitBias = []engine.LogitBias{{Token: 0, Bias: 9}}
	})
	got := choose(t, logits, []engine.TokenID{0, 1}, s)
	if want := float32(1 - norm); got.Token != 0 || math.Abs(float64(got.Logprob-want)) > 1e-6 {
		t.Errorf("token %d with %v, want 0 with the model's own %v", got.Token, got.Logprob, want)
	}
	for i, id := range []engine.TokenID{1, 3, 2} {
		if want := float64(logits[id]) - norm; got.Top[i].Token != id || math.Abs(float64(got.Top[i].Logprob)-want) > 1e-6 {
			t.Errorf("alternative %d is %+v, want token %d with %v", i, got.Top[i], id, want)
		}
	}
	if len(got.Top) != 3 {
		t.Errorf("%d alternatives", len(got.Top))
	}
	s.Logprobs = 0
	if got = choose(t, logits, nil, s); got.Logprob != 0 || got.Top != nil {
		t.Errorf("nobody asked for %+v", got)
	}
	s.Logprobs = 20
	if got = choose(t, logits, nil, s); len(got.Top) != len(logits) {
		t.Errorf("%d alternatives of %d tokens", len(got.Top), len(logits))
	}
}

func TestEverythingForbidden(t *testing.T) {
	s := with(func(s *engine.Sampling) {
		s.LogitBias = []engine.LogitBias{{Token: 0, Bias: float32(math.Inf(-1))}, {Token: 1, Bias: float32(math.Inf(-1))}}
	})
	if _, err := chooser(t).choose([]float32{1, 2}, nil, s, nil); engine.CodeOf(err) != engine.Malformed {
		t.Errorf("error %v", err)
	}
}

func TestCheckSampling(t *testing.T) {
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		change func(*engine.Sampling)
		want   engine.Code
	}{
		"fine":                 {func(*engine.Sampling) {}, ""},
		"bounds":               {func(s *engine.Sampling) { s.FrequencyPenalty, s.PresencePenalty, s.MinP, s.Logprobs = -2, 2, 1, 20 }, ""},
		"temperature negative": {func(s *engine.Sampling) { s.Temperature = -0.1 }, engine.Malformed},
		"temperature NaN":      {func(s *engine.Sampling) { s.Temperature = nan }, engine.Malformed},
		"temperature infinite": {func(s *engine.Sampling) { s.Temperature = float32(math.Inf(1)) }, engine.Malformed},
		"top_p 0":              {func(s *engine.Sampling) { s.TopP = 0 }, engine.Malformed},
		"min_p NaN":            {func(s *engine.Sampling) { s.MinP = nan }, engine.Malformed},
		"repeat 0":             {func(s *engine.Sampling) { s.RepeatPenalty = 0 }, engine.Malformed},
		"frequency 3":          {func(s *engine.Sampling) { s.FrequencyPenalty = 3 }, engine.Malformed},
		"presence −3":          {func(s *engine.Sampling) { s.PresencePenalty = -3 }, engine.Malformed},
		"logprobs 21":          {func(s *engine.Sampling) { s.Logprobs = 21 }, engine.Malformed},
		"bias +Inf":            {func(s *engine.Sampling) { s.LogitBias = []engine.LogitBias{{Bias: float32(math.Inf(1))}} }, engine.Malformed},
		"bias out of range":    {func(s *engine.Sampling) { s.LogitBias = []engine.LogitBias{{Token: 8}} }, engine.TokenOutOfRange},
		"typical 1.5":          {func(s *engine.Sampling) { s.Typical = 1.5 }, engine.Malformed},
		"1025 biases":          {func(s *engine.Sampling) { s.LogitBias = make([]engine.LogitBias, 1025) }, engine.Malformed},
	} {
		if err := checkSampling(with(c.change), 8); engine.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
