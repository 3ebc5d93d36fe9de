package layers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// weights is a cost by layers, with what head and tail have beside them.
func weights(head, tail uint64, layers ...uint64) func(engine.LayerRange) uint64 {
	return func(r engine.LayerRange) (sum uint64) {
		for _, layer := range layers[r.First:r.End] {
			sum += layer
		}
		if r.First == 0 {
			sum += head
		}
		if int(r.End) == len(layers) {
			sum += tail
		}
		return sum
	}
}

func shown(parts []engine.LayerRange) string {
	var list []string
	for _, p := range parts {
		list = append(list, Show(p))
	}
	return strings.Join(list, " ")
}

func TestDivisionIsEvenInBytes(t *testing.T) {
	for name, c := range map[string]struct {
		cost    func(engine.LayerRange) uint64
		n       uint32
		workers uint32
		want    string
	}{
		"one":        {weights(0, 0, 1, 1, 1), 3, 1, "0:3"},
		"all":        {weights(9, 9, 1, 1, 1), 3, 3, "0:1 1:2 2:3"},
		"even":       {weights(0, 0, 1, 1, 1, 1), 4, 2, "0:2 2:4"},
		"heavy head": {weights(3, 0, 1, 1, 1, 1, 1), 5, 2, "0:1 1:5"},
		"heavy tail": {weights(0, 3, 1, 1, 1, 1, 1), 5, 2, "0:4 4:5"},
		"uneven":     {weights(0, 0, 5, 1, 1, 1, 1, 1), 6, 2, "0:1 1:6"},
	} {
		t.Run(name, func(t *testing.T) {
			parts, err := Divide(c.n, c.workers, c.cost)
			if err != nil || shown(parts) != c.want {
				t.Errorf("%s, %v, want %s", shown(parts), err, c.want)
			}
		})
	}
	for _, workers := range []uint32{0, 4} {
		if parts, err := Divide(3, workers, weights(0, 0, 1, 1, 1)); err == nil {
			t.Errorf("3 layers among %d workers are %s", workers, shown(parts))
		}
	}
}

// No other cut has a cheaper greatest part: tried against every cut.
func TestDivisionIsTheBest(t *testing.T) {
	layers := []uint64{7, 1, 9, 2, 2, 8, 1, 3}
	n, cost := uint32(len(layers)), weights(4, 6, layers...)
	for workers := uint32(1); workers <= n; workers++ {
		parts, err := Divide(n, workers, cost)
		if err != nil || Check(parts, n) != nil || len(parts) != int(workers) {
			t.Fatalf("%d workers: %s, %v", workers, shown(parts), err)
		}
		var worst uint64
		for _, p := range parts {
			worst = max(worst, cost(p))
		}
		if best := exhaustive(0, n, workers, cost); worst != best {
			t.Errorf("%d workers: %s costs %d, the best cut %d", workers, shown(parts), worst, best)
		}
	}
}

func exhaustive(first, n, workers uint32, cost func(engine.LayerRange) uint64) uint64 {
	if workers == 1 {
		return cost(engine.LayerRange{First: first, End: n})
	}
	best := uint64(1<<64 - 1)
	for end := first + 1; end <= n-workers+1; end++ {
		best = min(best, max(cost(engine.LayerRange{First: first, End: end}), exhaustive(end, n, workers-1, cost)))
	}
	return best
}

func TestLayersAreRead(t *testing.T) {
	for text, want := range map[string]string{"0:4": "0:4", "0:2,2:4": "0:2 2:4", "0:1, 1:": "0:1 1:4", "0:": "0:4"} {
		parts, err := Parse(text)
		if err == nil {
			err = Check(parts, 4)
		}
		if err != nil || shown(parts) != want {
			t.Errorf("%q is %s, %v, want %s", text, shown(parts), err, want)
		}
	}
	for _, text := range []string{"", "4", "a:b", "2:1", "1:1", "0:2;2:4", "-1:2", "0:2,", "0:4294967296"} {
		if parts, err := Parse(text); err == nil {
			t.Errorf("%q is %s", text, shown(parts))
		}
	}
	for _, text := range []string{"1:4", "0:3", "0:5", "0:2,3:4", "0:3,2:4", "0:,2:4", "0:2,2:"} {
		parts, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(parts, 4); (err == nil) != (text == "0:2,2:") {
			t.Errorf("%q on 4 layers: %v", text, fmt.Sprint(err))
		}
	}
}
