package batch

import "time"

const (
	smoothing  = 8    // a new measurement counts as one of so many
	worthwhile = 0.05 // by how much a smaller call must be the faster one, per row, to be made instead of a greater
)

// table is how long native calls took, by their size. It learns from every call and is never complete.
type table struct {
	decodes  map[int]time.Duration // by rows: calls of decodes
	prefills float64               // rows a second of prefill; 0: none has run
}

func newTable() *table { return &table{decodes: map[int]time.Duration{}} }

// learn takes one call into account.
func (t *table) learn(prefill bool, rows int, took time.Duration) {
	if rows == 0 || took <= 0 {
		return
	}
	if prefill {
		rate := float64(rows) / took.Seconds()
		if t.prefills != 0 {
			rate = t.prefills + (rate-t.prefills)/smoothing
		}
		t.prefills = rate
		return
	}
	if old, known := t.decodes[rows]; known {
		took = old + (took-old)/smoothing
	}
	t.decodes[rows] = took
}

// decode is how long a call of so many decodes takes: as measured, or as the nearest smaller one measured says where every
// row costs the same. 0: nothing is known.
func (t *table) decode(rows int) (took time.Duration, measured bool) {
	for n := rows; n > 0; n-- {
		if took, known := t.decodes[n]; known {
			return took * time.Duration(rows) / time.Duration(n), n == rows
		}
	}
	return 0, false
}

// group is how many of n decodes are best made in one call that takes no longer than bound: all, where that is not known to
// be slower per row; 1 at least.
func (t *table) group(n int, bound time.Duration) int {
	for n > 1 {
		if took, _ := t.decode(n); took <= bound {
			break
		}
		n--
	}
	all, measured := t.decode(n)
	if !measured {
		return n // to be measured
	}
	best, least := n, all.Seconds()/float64(n)*(1-worthwhile)
	for size, took := range t.decodes {
		if each := took.Seconds() / float64(size); size < n && each < least {
			best, least = size, each
		}
	}
	return best
}

// chunk is how many rows of prefill take about as long as bound, within least and most; most, where none has run.
func (t *table) chunk(bound time.Duration, least, most int) int {
	if t.prefills == 0 {
		return most
	}
	return min(most, max(least, int(t.prefills*bound.Seconds())))
}
