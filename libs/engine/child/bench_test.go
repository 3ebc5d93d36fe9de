//go:build unix

package child_test

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child"
)

// BenchmarkDecode is what a process costs a step of one token, with an idle time before each as a slow model has it. The
// fake engine computes next to nothing.
func BenchmarkDecode(b *testing.B) {
	for name, idle := range map[string]time.Duration{"busy": 0, "idle5ms": 5 * time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread() // as a worker's scheduler does
			defer runtime.UnlockOSThread()
			e, err := child.New(options(""))
			if err != nil {
				b.Fatal(err)
			}
			defer e.Close()
			req := request()
			req.ContextLimit = 1 << 20
			if _, err := e.Load(b.Context(), req, nil); err != nil {
				b.Fatal(err)
			}
			if err := e.Open(b.Context(), session, req.ContextLimit); err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				<-time.After(idle)
				began := time.Now()
				results, err := e.Step(context.Background(), []engine.Step{{
					Session: session, Start: engine.Pos(i), Tokens: []engine.TokenID{engine.TokenID(i % 40)}, Want: engine.WantSample,
					Sampling: &engine.Sampling{TopP: 1, RepeatPenalty: 1, Seed: uint64(i)},
				}})
				took = append(took, time.Since(began)-results[0].Compute)
				if err != nil || results[0].Err != nil {
					b.Fatal(err, results)
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/p50")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs/p99")
		})
	}
}
