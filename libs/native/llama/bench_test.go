//go:build llama && cgo

package llama

import (
	"fmt"
	"testing"

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
