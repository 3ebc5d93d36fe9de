//go:build llama && cgo

package llama

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// BenchmarkDecode is greedy decoding through a chain in one process, one token an iteration.
func BenchmarkDecode(b *testing.B) {
	s := spec(b, "llama")
	s.Layers, s.Embd, s.Heads, s.KVHeads, s.HeadLength, s.FF, s.Vocab = 8, 512, 8, 8, 64, 1536, 8000
	path := writeModel(b, s)
	for _, cuts := range [][]uint32{{0, 8}, {0, 4, 8}, {0, 2, 4, 6, 8}} {
		b.Run(fmt.Sprintf("shards=%d", len(cuts)-1), func(b *testing.B) {
			req := request(path)
			req.ContextLimit = 512
			c := loadChain(b, req, cuts...)
			c.open(b, 1, 512)
			sampling := &engine.Sampling{TopP: 1, RepeatPenalty: 1}
			step := engine.Step{Session: id(1), Tokens: tokens(1, 64, uint32(s.Vocab)), Want: engine.WantSample, Sampling: sampling}
			next := func() {
				result := c.run(b, step)[0]
				step.Start, step.Tokens = result.Cache.Length, []engine.TokenID{result.Sample.Token}
			}
			next()
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				if step.Start == 512 {
					for _, l := range c {
						if _, err := l.Truncate(b.Context(), id(1), 64); err != nil {
							b.Fatal(err)
						}
					}
					step.Start = 64
				}
				next()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

// measure runs f as a benchmark and reports the processor's time too, which a busy machine does not change.
func measure(b *testing.B, f func() error) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begin := used()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(used()-begin)/float64(time.Microsecond)/float64(b.N), "cpu-µs/op")
}

// BenchmarkChoose is one choice from the logits of a model that knows what it wants, for vocabularies of two sizes.
func BenchmarkChoose(b *testing.B) {
	for _, vocab := range []int{32_000, 128_000} {
		random := rand.New(rand.NewPCG(3, 4))
		logits := make([]float32, vocab)
		for i := range logits {
			logits[i] = float32(random.NormFloat64() * 2)
		}
		for i := range 20 {
			logits[random.IntN(len(logits))] = 20 - float32(i)/2
		}
		history := tokens(1, 64, uint32(vocab))
		for _, c := range []struct {
			name   string
			change func(*engine.Sampling)
		}{
			{"greedy", func(*engine.Sampling) {}},
			{"greedy_penalised", func(s *engine.Sampling) { s.RepeatPenalty, s.PenaltyWindow = 1.1, 64 }},
			{"temperature", func(s *engine.Sampling) { s.Temperature = 1 }},
			{"top_k_40_top_p", func(s *engine.Sampling) { s.Temperature, s.TopK, s.TopP = 0.8, 40, 0.95 }},
			{"top_p", func(s *engine.Sampling) { s.Temperature, s.TopP = 0.8, 0.95 }},
			{"typical", func(s *engine.Sampling) { s.Temperature, s.Typical = 0.8, 0.95 }},
			{"logprobs_20", func(s *engine.Sampling) { s.Logprobs = 20 }},
		} {
			b.Run(fmt.Sprintf("vocab=%d/%s", vocab, c.name), func(b *testing.B) {
				chooser, s := chooser(b), with(c.change)
				measure(b, func() error {
					_, err := chooser.choose(logits, history, s, nil)
					return err
				})
			})
		}
	}
}

// BenchmarkChooseWithGrammar is one choice where few tokens are allowed, and one where most are.
func BenchmarkChooseWithGrammar(b *testing.B) {
	for _, vocab := range []int{32_000, 128_000} {
		m := spec(b, "llama")
		m.Vocab, m.Layers, m.Embd, m.Heads, m.KVHeads, m.HeadLength, m.FF = vocab, 1, 32, 1, 1, 32, 32
		l := load(b, request(writeModel(b, m)), 0, 0)
		random := rand.New(rand.NewPCG(3, 4))
		logits := make([]float32, vocab)
		for i := range logits {
			logits[i] = float32(random.NormFloat64() * 2)
		}
		for name, text := range map[string]string{"few": `root ::= "{" [a-z]+`, "most": `root ::= [a-z]+`} {
			for _, c := range []struct {
				name   string
				change func(*engine.Sampling)
			}{
				{"greedy", func(*engine.Sampling) {}},
				{"top_k_40_top_p", func(s *engine.Sampling) { s.Temperature, s.TopK, s.TopP = 0.8, 40, 0.95 }},
				{"top_p", func(s *engine.Sampling) { s.Temperature, s.TopP = 0.8, 0.95 }},
			} {
				b.Run(fmt.Sprintf("vocab=%d/allowed=%s/%s", vocab, name, c.name), func(b *testing.B) {
					s := with(c.change)
					g, err := l.native.compile(&engine.Grammar{Text: text}, make([]byte, 256))
					if err != nil {
						b.Fatal(err)
					}
					defer g.free()
					chooser := chooser(b)
					s.Grammar = &g.source
					measure(b, func() error {
						_, err := chooser.choose(logits, nil, s, g)
						return err
					})
				})
			}
		}
	}
}
