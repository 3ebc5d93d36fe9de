package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
)

// contextTokens is the room of one session.
const contextTokens = 96

// driver is one that opens a session after the other and does something at random with each.
type driver struct {
	route  *route.Route
	random *rand.Rand
	ends   *ends
}

// run goes on until ctx ends; then its session is dropped.
func (d *driver) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := d.session(ctx)
		if ctx.Err() == nil {
			d.ends.count(err)
		}
		if err != nil {
			d.think(ctx) // and try again, as its recovery says
		}
	}
}

// think is a pause, as people make them: half a second on average.
func (d *driver) think(ctx context.Context) {
	t := time.NewTimer(time.Duration(d.random.IntN(1000)) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (d *driver) ids(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 8 + d.random.Uint32N(200)
	}
	return ids
}

// session is the life of one: opened, some steps, and one of the ends.
func (d *driver) session(ctx context.Context) error {
	o := session.Default()
	o.ContextTokens, o.StepBudget, o.RunBudget, o.TokenBudget = contextTokens, 20*time.Second, 30*time.Second, 20*time.Second
	o.OpenBudget = 20 * time.Second
	if d.random.IntN(4) == 0 {
		o.Linger = time.Duration(1+d.random.IntN(1000)) * time.Millisecond
	}
	s, err := session.Open(ctx, d.route, o)
	if err != nil {
		return err
	}
	defer s.Abandon()
	for range 1 + d.random.IntN(6) {
		d.think(ctx)
		if err := d.step(ctx, s); err != nil || ctx.Err() != nil {
			return err
		}
	}
	switch d.random.IntN(3) {
	case 0:
		_, err = s.Close(ctx, false)
	case 1: // dropped with a run in flight
		if s.Length()+20 < contextTokens {
			_, err = s.Generate(ctx, d.generation(16))
		}
	default: // dropped at rest
	}
	return err
}

func (d *driver) generation(n uint32) session.Generation {
	return session.Generation{Tokens: d.ids(1 + d.random.IntN(3)), MaxTokens: n, Sampling: &workerpb.Sampling{Temperature: proto.Float32(0)}, IgnoreEnd: true}
}

// step is one step of some kind; where there is no room left, back to the start.
func (d *driver) step(ctx context.Context, s *session.Session) error {
	if s.Length()+24 > contextTokens {
		return s.Truncate(ctx, 0)
	}
	switch d.random.IntN(5) {
	case 0:
		return s.Prefill(ctx, d.ids(1+d.random.IntN(12)))
	case 1:
		_, err := s.Decode(ctx, d.ids(1+d.random.IntN(3)), workerpb.Want_WANT_LOGITS_ALL, nil)
		return err
	case 2:
		return s.Truncate(ctx, uint32(d.random.IntN(int(s.Length())+1)))
	}
	run, err := s.Generate(ctx, d.generation(12))
	if err != nil {
		return err
	}
	stop := d.random.IntN(24) // half of them run to their end
	for n := 0; ; n++ {
		if n == stop {
			run.Stop()
		}
		if _, err := run.Next(ctx); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// ends counts how sessions ended.
type ends struct {
	mu sync.Mutex
	of map[string]int
}

func newEnds() *ends { return &ends{of: map[string]int{}} }

func (e *ends) count(err error) {
	name := "as asked"
	if err != nil {
		name = fault.Name(fault.Of(err).Code)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of[name]++
}

// defects are ends that a worker that keeps the contract never gives to a driver that does.
func (e *ends) defects() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range []string{"INTERNAL", "MALFORMED", "LIFECYCLE_VIOLATION", "WINDOW_EXCEEDED", "CACHE_MISMATCH", "NUMERIC_FAULT"} {
		if n := e.of[name]; n > 0 {
			return fmt.Errorf("%d sessions ended with %s", n, name)
		}
	}
	return nil
}

// String is the ends, the most frequent first.
func (e *ends) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := make([]string, 0, len(e.of))
	for name := range e.of {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool { return e.of[names[i]] > e.of[names[j]] })
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%d %s", e.of[name], name)
	}
	return strings.Join(parts, ", ")
}
