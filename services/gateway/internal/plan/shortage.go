package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/distributed-gguf-runtime/dgr/libs/native/footprint"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Shortage says that a model does not fit, by how much, and what would help.
type Shortage struct {
	Need     footprint.Need // of all shards, on machines just large enough
	Have     uint64         // memory of all machines, bytes
	Each     uint64         // that every machine would need more, bytes
	Another  uint64         // memory of one more machine with which it would fit, bytes
	Context  uint32         // the longest context, shorter than asked for, with which it fits; 0: none
	Sessions uint32         // the most sessions, fewer than asked for, with which it fits; 0: none

	machines int
}

// Error is one sentence with what is missing and what to do.
func (s *Shortage) Error() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "the model does not fit: it needs %s (%s of weights, %s of KV cache, %s of overhead) and %s",
		humanize.IBytes(s.Need.Total()), humanize.IBytes(s.Need.Weights), humanize.IBytes(s.Need.Cache), humanize.IBytes(s.Need.Overhead), s.machineList())
	fmt.Fprintf(b, "; it would fit with %s more on each, with another machine of %s", roundUp(s.Each), roundUp(s.Another))
	if s.Context > 0 {
		fmt.Fprintf(b, ", with --context %d", s.Context)
	}
	if s.Sessions > 0 {
		fmt.Fprintf(b, ", with --sessions %d", s.Sessions)
	}
	return b.String() + ", or with a smaller quantization of the model"
}

func (s *Shortage) machineList() string {
	if s.machines == 1 {
		return fmt.Sprintf("the machine has %s", humanize.IBytes(s.Have))
	}
	return fmt.Sprintf("the %d machines have %s", s.machines, humanize.IBytes(s.Have))
}

// roundUp shows a size, in MiB or tenths of GiB, so that it is never less than meant.
func roundUp(n uint64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20)
	}
	tenths := (10*n + 1<<30 - 1) >> 30
	return fmt.Sprintf("%d.%d GiB", tenths/10, tenths%10)
}

// shortage finds out what would help.
func shortage(m *gguf.Model, memory []uint64, o Options) *Shortage {
	c := footprint.NewCosts(m, o.Options)
	s := &Shortage{machines: len(memory)}
	for _, x := range memory {
		s.Have += x
	}
	fits := func(c costs, memory []uint64) bool {
		if !gguf.Adapted(m.Architecture()) {
			return whole(c, memory) != nil
		}
		return fit(c, memory)
	}
	more := func(x uint64) []uint64 {
		grown := slices.Clone(memory)
		for i := range grown {
			grown[i] += x
		}
		return grown
	}
	all := c.Need(0, c.Layers()).Total() + uint64(len(memory))*c.Least()
	s.Each = least(all, func(x uint64) bool { return fits(c, more(x)) })
	spans := divide(c, more(s.Each), true)
	if !gguf.Adapted(m.Architecture()) {
		spans = whole(c, more(s.Each))
	}
	for _, p := range spans {
		if p.first < p.end {
			s.Need = s.Need.Plus(c.Need(p.first, p.end))
		}
	}
	s.Another = least(all, func(x uint64) bool { return fits(c, append(slices.Clone(memory), x)) })
	s.Context = uint32(footprint.CellStep * most(uint64(o.Context-1)/footprint.CellStep, func(n uint64) bool {
		shorter := o
		shorter.Context = uint32(n * footprint.CellStep)
		return fits(footprint.NewCosts(m, shorter.Options), memory)
	}))
	s.Sessions = uint32(most(uint64(o.Sessions-1), func(n uint64) bool {
		fewer := o
		fewer.Sessions = uint32(n)
		return fits(footprint.NewCosts(m, fewer.Options), memory)
	}))
	return s
}

// least is the smallest x from 0 to high for which ok holds, where it holds for high and for all above the answer.
func least(high uint64, ok func(uint64) bool) uint64 {
	low := uint64(0)
	for low < high {
		if mid := low + (high-low)/2; ok(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return high
}

// most is the largest x from 1 to high for which ok holds, where it holds for all below the answer; 0: for none.
func most(high uint64, ok func(uint64) bool) uint64 {
	low := uint64(0)
	for low < high {
		if mid := low + (high-low+1)/2; ok(mid) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}
