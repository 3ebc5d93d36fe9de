// Package outbox is what waits to be sent on a stream: one writer takes it out in order, control overtakes the rest, and
// there are bounds of number and of bytes. It knows nothing of what is sent but its size.
package outbox

import (
	"context"
	"sync"
)

// Options of an outbox. Limit is required.
type Options[T any] struct {
	Limit int         // messages
	Bytes int         // of messages together, that which is being sent included; 0: no bound
	Size  func(T) int // bytes of a message; nil: all are 0
	Gauge *Gauge      // counts the bytes; nil: nobody does
	Sent  func(T)     // told of each message that was sent, from within Take; nil: nobody is
}

// Outbox is a bounded queue of messages. All methods may be called from any goroutine; Take from one at a time.
type Outbox[T any] struct {
	options Options[T]
	wake    chan struct{}

	mu       sync.Mutex
	control  []sized[T]
	ordinary []sized[T]
	sending  *sized[T] // taken last
	bytes    int       // of all three
	over     bool      // nothing more comes
	dropped  bool      // nothing more goes out
}

type sized[T any] struct {
	message T
	bytes   int
}

// New makes an outbox.
func New[T any](o Options[T]) *Outbox[T] {
	if o.Size == nil {
		o.Size = func(T) int { return 0 }
	}
	return &Outbox[T]{options: o, wake: make(chan struct{}, 1)}
}

// Put queues a message; control goes ahead of all that is not. It is false when a bound is reached. After Finish or Drop
// messages are passed over.
func (o *Outbox[T]) Put(m T, control bool) bool {
	s := sized[T]{m, o.options.Size(m)}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.over || o.dropped:
		return true
	case len(o.control)+len(o.ordinary) >= o.options.Limit, o.options.Bytes > 0 && o.bytes+s.bytes > o.options.Bytes:
		return false
	case control:
		o.control = append(o.control, s)
	default:
		o.ordinary = append(o.ordinary, s)
	}
	o.count(s.bytes)
	o.ring()
	return true
}

// Finish says that nothing more comes: Take returns what is queued, then false.
func (o *Outbox[T]) Finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.ring()
}

// Drop forgets what is queued: Take returns false at once.
func (o *Outbox[T]) Drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropped, o.control, o.ordinary, o.sending = true, nil, nil, nil
	o.count(-o.bytes)
	o.ring()
}

// count keeps the bytes. The caller holds mu.
func (o *Outbox[T]) count(bytes int) {
	o.bytes += bytes
	o.options.Gauge.Add(int64(bytes))
}

func (o *Outbox[T]) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Take says that the message before was sent, and waits for the next one. It is false at the end, or when ctx ends.
func (o *Outbox[T]) Take(ctx context.Context) (T, bool) {
	o.sent()
	for {
		m, ok, over := o.next()
		if ok || over {
			return m, ok
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return m, false
		}
	}
}

// sent lets go of the message that was taken last.
func (o *Outbox[T]) sent() {
	o.mu.Lock()
	last := o.sending
	if last != nil {
		o.count(-last.bytes)
		o.sending = nil
	}
	o.mu.Unlock()
	if last != nil && o.options.Sent != nil {
		o.options.Sent(last.message)
	}
}

func (o *Outbox[T]) next() (m T, ok, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range []*[]sized[T]{&o.control, &o.ordinary} {
		if len(*q) > 0 {
			s := pop(q)
			o.sending = &s
			return s.message, true, false
		}
	}
	return m, false, o.over || o.dropped
}

// pop takes the first and keeps the room for later ones.
func pop[T any](q *[]T) T {
	var none T
	m := (*q)[0]
	(*q)[0] = none
	if *q = (*q)[1:]; len(*q) == 0 {
		*q = nil
	}
	return m
}
