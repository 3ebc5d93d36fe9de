// Package layers divides the layers of a model among workers, and reads and shows divisions as people write them.
//
// What must stay out: memory and machines (package plan).
package layers

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
)

// Divide cuts layers [0, n) into parts for workers, so that the most expensive part is as cheap as can be.
//
// Error: more workers than layers.
func Divide(n, workers uint32, cost func(engine.LayerRange) uint64) ([]engine.LayerRange, error) {
	if workers == 0 || workers > n {
		return nil, fail.Usagef("%d layers cannot be divided among %d workers; give 1 to %d", n, workers, n)
	}
	// best[w][end]: the least greatest cost of [0, end) over w+1 workers; from[w][end]: where the last of them begins.
	best, from := make([][]uint64, workers), make([][]uint32, workers)
	for w := range workers {
		best[w], from[w] = make([]uint64, n+1), make([]uint32, n+1)
		for end := w + 1; end <= n; end++ {
			if w == 0 {
				best[w][end] = cost(engine.LayerRange{End: end})
				continue
			}
			best[w][end] = 1<<64 - 1
			for first := w; first < end; first++ {
				worst := max(best[w-1][first], cost(engine.LayerRange{First: first, End: end}))
				if worst < best[w][end] {
					best[w][end], from[w][end] = worst, first
				}
			}
		}
	}
	parts := make([]engine.LayerRange, workers)
	end := n
	for w := int(workers) - 1; w >= 0; w-- {
		parts[w] = engine.LayerRange{First: from[w][end], End: end}
		end = from[w][end]
	}
	return parts, nil
}

// Parse reads parts as `0:2,2:5`, or `0:2,2:`; the last end may be left out.
func Parse(text string) ([]engine.LayerRange, error) {
	var parts []engine.LayerRange
	for part := range strings.SplitSeq(text, ",") {
		first, end, ok := strings.Cut(strings.TrimSpace(part), ":")
		from, err := strconv.ParseUint(first, 10, 32)
		to := uint64(0)
		if err == nil && end != "" {
			to, err = strconv.ParseUint(end, 10, 32)
		}
		if !ok || err != nil || end != "" && to <= from {
			return nil, fail.Usagef("--layers %q has the part %q; write FIRST:END, as 0:2,2:5", text, part)
		}
		parts = append(parts, engine.LayerRange{First: uint32(from), End: uint32(to)})
	}
	return parts, nil
}

// Check says whether parts hold [0, n) without gap or overlap, and fills in an open end.
func Check(parts []engine.LayerRange, n uint32) error {
	next := uint32(0)
	for i := range parts {
		if parts[i].End == 0 && i == len(parts)-1 {
			parts[i].End = n
		}
		switch p := parts[i]; {
		case p.First > next:
			return fail.Usagef("--layers leaves out %d:%d", next, p.First)
		case p.First < next:
			return fail.Usagef("--layers holds %d:%d twice", p.First, next)
		case p.End <= p.First || p.End > n:
			return fail.Usagef("--layers has %s, and the model has %d layers", Show(p), n)
		}
		next = parts[i].End
	}
	if next != n {
		return fail.Usagef("--layers leaves out %d:%d", next, n)
	}
	return nil
}

// Show is a shard as people write it, FIRST:END.
func Show(r engine.LayerRange) string { return fmt.Sprintf("%d:%d", r.First, r.End) }
