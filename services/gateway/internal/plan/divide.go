package plan

import (
	"math"

	"github.com/distributed-gguf-runtime/dgr/libs/native/footprint"
)

// costs answers what any shard of a model takes.
type costs interface {
	Layers() int
	Need(first, end int) footprint.Need
}

// span is the layers [first, end) on one machine; first == end: none.
type span struct{ first, end int }

// divide cuts the layers among machines, in their order, so that the fullest machine is as empty as it can be, and the
// others then as even as they can be; fullness is weights and caches over the memory left beside the overhead. With
// fewest it first of all leaves as many machines unused as possible. It returns nil where nothing fits.
func divide(c costs, memory []uint64, fewest bool) []span {
	fill := func(i, first, end int) float64 {
		n := c.Need(first, end)
		if n.Total() > memory[i] {
			return math.Inf(1)
		}
		return float64(n.Weights+n.Cache) / float64(memory[i]-n.Overhead)
	}
	top, spans := search(c.Layers(), len(memory), fewest, fill, func(so, x float64) float64 { return max(so, x) })
	if spans == nil {
		return nil
	}
	limit := top * (1 + 1e-12) // sums are taken in another order than before
	_, spans = search(c.Layers(), len(memory), fewest, func(i, first, end int) float64 {
		x := fill(i, first, end)
		if x > limit {
			return math.Inf(1)
		}
		return x * x
	}, func(so, x float64) float64 { return so + x })
	return spans
}

// state is the best way to put some layers on some machines.
type state struct {
	used int     // machines; counted only where they shall be few
	cost float64 // infinite: there is no way
	from int     // the first layer of the last of these machines
}

// search finds the cut of layers among machines with the least cost, where join adds a machine's cost to that of those
// before it and never lowers it. Of equals it takes the first, which is always the same. It returns nil where every cut
// costs infinitely much.
func search(layers, machines int, fewest bool, cost func(i, first, end int) float64, join func(so, x float64) float64) (float64, []span) {
	best := make([][]state, machines+1)
	for i := range best {
		best[i] = make([]state, layers+1)
		for j := range best[i] {
			best[i][j] = state{cost: math.Inf(1), from: j}
		}
		best[i][0].cost = 0
	}
	for i := range machines {
		for end := 1; end <= layers; end++ {
			s := best[i][end]
			s.from = end // unused
			for first := range end {
				before := best[i][first]
				x := join(before.cost, cost(i, first, end))
				used := before.used
				if fewest {
					used++
				}
				if !math.IsInf(x, 1) && (math.IsInf(s.cost, 1) || used < s.used || used == s.used && x < s.cost) {
					s = state{used: used, cost: x, from: first}
				}
			}
			best[i+1][end] = s
		}
	}
	total := best[machines][layers].cost
	if math.IsInf(total, 1) {
		return 0, nil
	}
	spans := make([]span, machines)
	end := layers
	for i := machines; i > 0; i-- {
		first := best[i][end].from
		spans[i-1] = span{first, end}
		end = first
	}
	return total, spans
}

// fit says whether divide would find a way. The more layers the first machines take the less is left for the others, so
// each takes what it can hold.
func fit(c costs, memory []uint64) bool {
	reach := 0
	for _, free := range memory {
		for end := c.Layers(); end > reach; end-- {
			if c.Need(reach, end).Total() <= free {
				reach = end
				break
			}
		}
	}
	return reach == c.Layers()
}
