package rpc_test

import (
	"fmt"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// BenchmarkToken is what one token of a run costs beside compute, which is next to nothing in the fake: look at the
// difference from hop to hop.
func BenchmarkToken(b *testing.B) {
	for _, cuts := range [][]uint32{{}, {2}, {1, 3}, {1, 2, 3}} {
		b.Run(fmt.Sprint(len(cuts)+1, "-hops"), func(b *testing.B) {
			workers := route(b, setting{}, cuts...)
			d := dialTo(b, workers[0])
			d.open(1, workers)
			var last uint64
			b.ResetTimer()
			for n := 0; n < b.N; {
				count := min(100, b.N-n)
				last++
				d.send(step(2*last-1, max(2*last, 2)-2, 0, run(uint32(count), 44)))
				_, _, failed := d.answer(2*last - 1)
				if failed != nil {
					b.Fatal(failed)
				}
				t := step(2*last, 2*last-1, uint32(count), nil)
				t.GetStep().Kind = &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: new(uint32)}}
				d.send(t)
				d.answer(2 * last)
				n += count
			}
		})
	}
}
