package rpc_test

import (
	"net"
	"sync"
	"testing"
	"time"
)

// wire is a way to a port that takes its time, and that can be cut.
type wire struct {
	address string
	to      string
	delay   time.Duration // each way
	listen  net.Listener
	all     sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn // of both ends; nil once cut
	cut   bool
}

// lay lays a wire to a port; it is cut at the end of the test.
func lay(t testing.TB, to string, delay time.Duration) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: listener.Addr().String(), to: to, delay: delay, listen: listener}
	w.all.Go(w.accept)
	t.Cleanup(func() { w.sever(); w.all.Wait() })
	return w
}

// sever cuts the wire: what is under way is lost, and nobody gets through any more.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	w.listen.Close()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// keep says whether the wire still holds; then sever closes c.
func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		c.Close()
		return false
	}
	w.conns = append(w.conns, c)
	return true
}

func (w *wire) accept() {
	for {
		near, err := w.listen.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.to)
		if err != nil {
			near.Close()
			continue
		}
		if w.keep(near) && w.keep(far) {
			w.carry(near, far)
			w.carry(far, near)
		}
	}
}

// piece is bytes and when they are due.
type piece struct {
	data []byte
	due  time.Time
}

// carry brings what comes from one end to the other, late.
func (w *wire) carry(from, to net.Conn) {
	under := make(chan piece, 4096)
	w.all.Go(func() {
		defer close(under)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			under <- piece{buffer[:n], time.Now().Add(w.delay)}
		}
	})
	w.all.Go(func() {
		defer from.Close()
		defer to.Close()
		for p := range under {
			<-time.After(time.Until(p.due)) // the delay itself, nothing is waited for
			if _, err := to.Write(p.data); err != nil {
				for range under { // until the reader has seen the end too
				}
				return
			}
		}
	})
}
