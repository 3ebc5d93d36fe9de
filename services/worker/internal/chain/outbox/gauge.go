package outbox

import "sync/atomic"

// Gauge is how many bytes are buffered for peers. All methods may be called from any goroutine; those of a nil Gauge do
// nothing.
type Gauge struct{ now, most atomic.Int64 }

// Add counts bytes that came, or, below 0, went.
func (g *Gauge) Add(bytes int64) {
	if g == nil || bytes == 0 {
		return
	}
	now := g.now.Add(bytes)
	for most := g.most.Load(); now > most; most = g.most.Load() {
		if g.most.CompareAndSwap(most, now) {
			return
		}
	}
}

// Now is the bytes that are buffered.
func (g *Gauge) Now() uint64 { return uint64(max(g.now.Load(), 0)) }

// Most is the most that ever were.
func (g *Gauge) Most() uint64 { return uint64(g.most.Load()) }
