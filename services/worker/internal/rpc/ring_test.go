package rpc_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// counted counts what the ring brought first, over all workers of a route.
type counted struct {
	first *atomic.Int64
}

func (c counted) RungFirst()                      { c.first.Add(1) }
func (counted) Batch(int, int, time.Duration)     {}
func (counted) Queued(int)                        {}
func (counted) SessionOpened()                    {}
func (counted) SessionClosed(string)              {}
func (counted) Error(string)                      {}
func (counted) Transition(string, string, string) {}
func (counted) Impossible(_, state, event string) { panic(state + " " + event) }

// ringed is a route of three whose links, the ring among them, take a while each way.
type ringed struct {
	workers []*worker
	ring    *wire // nil: none
	first   atomic.Int64
}

func newRinged(t testing.TB, delay time.Duration, ring bool) *ringed {
	t.Helper()
	r := &ringed{}
	s := setting{observer: counted{first: &r.first}}
	if ring {
		s.ring = func(own string) string {
			w := lay(t, own, delay)
			if r.ring == nil { // the head is the first to start
				r.ring = w
			}
			return w.address
		}
	}
	r.workers = route(t, s, 1, 3)
	for _, w := range r.workers[1:] {
		w.address = lay(t, w.address, delay).address
	}
	return r
}

// text opens a session and runs for n tokens; at is called with each token.
func (r *ringed) text(t testing.TB, n uint32, at func(index uint32)) (text string) {
	t.Helper()
	d := dialTo(t, r.workers[0])
	d.open(1, r.workers)
	d.send(step(1, 0, 0, prompt(40, 41, 42, 43)))
	d.send(step(2, 1, 4, run(n, 44)))
	for {
		m := d.receive()
		switch {
		case m.GetToken() != nil:
			text += string(m.GetToken().GetBytes())
			at(m.GetToken().GetIndex())
		case m.GetStepResult().GetStepId() == 2:
			if got := m.GetStepResult(); got.GetSampled() != n || got.GetFinish() != workerpb.Finish_FINISH_LENGTH {
				t.Errorf("the run ended with %v", got)
			}
			d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
			return text
		case m.GetStepFailed() != nil, m.GetClosed() != nil:
			t.Fatal(m)
		}
	}
}

// With a ring, without one, and with one that is cut in the middle of a run, the tokens are the same.
func TestTheRingChangesNothingButTime(t *testing.T) {
	const n, delay = 40, 500 * time.Microsecond
	want := newRinged(t, delay, false).text(t, n, func(uint32) {})
	whole := newRinged(t, delay, true)
	if got := whole.text(t, n, func(uint32) {}); got != want {
		t.Errorf("with the ring %q, without %q", got, want)
	}
	// The chain is two trips longer than the ring once it stands.
	if first := whole.first.Load(); first < n/2 {
		t.Errorf("the ring brought %d of %d tokens first", first, n)
	}
	broken := newRinged(t, delay, true)
	var before int64
	got := broken.text(t, n, func(index uint32) {
		if index == n/2 {
			before = broken.first.Load()
			broken.ring.sever()
		}
	})
	if got != want {
		t.Errorf("with the ring cut %q, without %q", got, want)
	}
	if after := broken.first.Load(); before == 0 || after > n-5 {
		t.Errorf("the ring brought %d tokens first before it was cut, %d in all", before, after)
	}
}

// A ring that leads nowhere delays nothing and fails nothing.
func TestARingThatLeadsNowhere(t *testing.T) {
	silent := lay(t, "127.0.0.1:1", 0) // takes connections, and drops them
	for _, address := range []string{"127.0.0.1:1", silent.address, "224.0.0.1:7711", "no-such-host.invalid:1"} {
		t.Run(address, func(t *testing.T) {
			r := &ringed{}
			r.workers = route(t, setting{observer: counted{first: &r.first}, ring: func(string) string { return address }}, 1, 3)
			if text := r.text(t, 8, func(uint32) {}); len(text) != 8 || r.first.Load() != 0 {
				t.Errorf("%q, %d by the ring", text, r.first.Load())
			}
		})
	}
}

// BenchmarkRing is the time of a token over three hops whose links take 2 ms each way.
func BenchmarkRing(b *testing.B) {
	for _, ring := range []bool{false, true} {
		b.Run(fmt.Sprint("ring=", ring), func(b *testing.B) {
			r := newRinged(b, 2*time.Millisecond, ring)
			d := dialTo(b, r.workers[0])
			d.open(1, r.workers)
			var last uint64
			b.ResetTimer()
			for n := 0; n < b.N; {
				count := min(100, b.N-n)
				last++
				d.send(step(2*last-1, max(2*last, 2)-2, 0, run(uint32(count), 44)))
				if _, _, failed := d.answer(2*last - 1); failed != nil {
					b.Fatal(failed)
				}
				t := step(2*last, 2*last-1, uint32(count), nil)
				t.GetStep().Kind = &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: new(uint32)}}
				d.send(t)
				d.answer(2 * last)
				n += count
			}
			b.ReportMetric(float64(r.first.Load())/float64(b.N), "first/op")
		})
	}
}
