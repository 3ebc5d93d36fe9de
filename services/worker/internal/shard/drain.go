package shard

import (
	"context"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// drain is one way from READY to UNLOADED. Its fields are guarded by Shard.mu.
type drain struct {
	deadline time.Time
	ctx      context.Context // ends at the deadline, and with the drain
	stop     context.CancelFunc
	timer    *time.Timer // at the deadline; nil until started
	over     bool        // the shard went another way
}

// newDrain is a drain with the patience that was asked for.
func (s *Shard) newDrain() *drain {
	d := &drain{deadline: time.Now().Add(s.patience)}
	ctx, cancel := context.WithCancel(s.life)
	d.ctx = ctx
	d.stop = func() {
		d.over = true
		cancel()
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	return d
}

// start runs the timer and waits for the sessions to end. The caller holds mu.
func (d *drain) start(s *Shard) {
	ctx, expire := context.WithCancel(d.ctx)
	d.timer = time.AfterFunc(d.left(), expire)
	s.all.Add(1)
	go func() {
		defer s.all.Done()
		defer expire()
		s.awaitDrained(ctx, d)
	}()
	s.announce()
}

// left is the time until the deadline, never negative.
func (d *drain) left() time.Duration { return max(0, time.Until(d.deadline)) }

// shortenDrain brings the deadline forward to the patience that was asked for, if that is sooner. The caller holds mu.
func (s *Shard) shortenDrain() {
	d := s.drain
	if deadline := time.Now().Add(s.patience); deadline.Before(d.deadline) {
		d.deadline = deadline
	}
	s.options.Residents.Drain(d.left())
	if d.timer == nil {
		d.start(s)
		return
	}
	d.timer.Reset(d.left())
	s.announce()
}

// awaitDrained waits until no session is left or ctx ends, closes the rest, and fires Drained unless the drain is over.
func (s *Shard) awaitDrained(ctx context.Context, d *drain) {
	_ = s.options.Residents.Empty(ctx) // the end of ctx is the deadline
	s.mu.Lock()
	over := d.over
	s.mu.Unlock()
	if over {
		return
	}
	s.evictor(fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, "the time to drain is over"))()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !d.over {
		_ = s.fire(tables.ShardEventDrained, nil) // only DRAINING has a drain
	}
}
