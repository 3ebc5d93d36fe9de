// Package outbox is what waits to be sent on a stream: one writer takes it out in order, control overtakes the rest, and
// there is a bound. It knows nothing of what is sent.
package outbox

import (
	"context"
	"sync"
)

// Outbox is a bounded queue of messages. All methods may be called from any goroutine; Take from one at a time.
type Outbox[T any] struct {
	limit int
	wake  chan struct{}

	mu       sync.Mutex
	control  []T
	ordinary []T
	over     bool // nothing more comes
	dropped  bool // nothing more goes out
}

// New makes an outbox for up to limit messages.
func New[T any](limit int) *Outbox[T] {
	return &Outbox[T]{limit: limit, wake: make(chan struct{}, 1)}
}

// Put queues a message; control goes ahead of all that is not. It is false when the bound is reached. After Finish or Drop
// messages are passed over.
func (o *Outbox[T]) Put(m T, control bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.over || o.dropped:
		return true
	case len(o.control)+len(o.ordinary) >= o.limit:
		return false
	case control:
		o.control = append(o.control, m)
	default:
		o.ordinary = append(o.ordinary, m)
	}
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
	o.dropped, o.control, o.ordinary = true, nil, nil
	o.ring()
}

func (o *Outbox[T]) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Take waits for the next message. It is false at the end, or when ctx ends.
func (o *Outbox[T]) Take(ctx context.Context) (T, bool) {
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

func (o *Outbox[T]) next() (m T, ok, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range []*[]T{&o.control, &o.ordinary} {
		if len(*q) > 0 {
			m = pop(q)
			return m, true, false
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
