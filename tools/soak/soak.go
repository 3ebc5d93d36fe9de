package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/worker"
)

// Options of a soak. All are required.
type Options struct {
	Worker   string        // path of a dgr-worker
	Sessions int           // at a time
	Duration time.Duration // of the drive itself
	Seed     uint64
	Out      io.Writer // progress and the table
}

// settleBound is how long workers have to be what they were; idle connections between them may outlive it.
const settleBound = 20 * time.Second

// Run starts a worker that holds a whole model, and two that share it; drives them for a tenth of the time to warm up, looks at
// them, drives them in earnest, and looks again. It fails when something did not come back, or a worker broke a rule.
func Run(ctx context.Context, o Options) (err error) {
	fleet, err := launch(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.close()) }()
	s := &soak{options: o, fleet: fleet, ends: newEnds()}
	fmt.Fprintf(o.Out, "%d sessions at a time, half of them over two hops, for %v; seed %d\n", o.Sessions, o.Duration, o.Seed)
	if _, err := s.drive(ctx, max(o.Duration/10, time.Second)); err != nil {
		return err
	}
	before, err := s.settle(ctx, nil)
	if err != nil {
		return err
	}
	s.ends = newEnds()
	peak, err := s.drive(ctx, o.Duration)
	if err != nil {
		return err
	}
	after, err := s.settle(ctx, before)
	if err != nil {
		return err
	}
	s.table(before, peak, after)
	return errors.Join(s.ends.defects(), compare(before, after), enough(peak, o))
}

type soak struct {
	options Options
	fleet   *fleet
	ends    *ends
	waves   uint64
}

// connections that all sessions share; a gateway has about as many.
const connections = 8

// drive keeps sessions going for a while, and returns the most that was seen of everything.
func (s *soak) drive(ctx context.Context, d time.Duration) (peak []figures, err error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var routes []*route.Route
	defer func() {
		for _, r := range routes {
			err = errors.Join(err, r.Head().Close())
		}
	}()
	for range connections {
		for _, addresses := range s.fleet.routes() {
			r, err := discover(ctx, addresses)
			if err != nil {
				return nil, err
			}
			routes = append(routes, r)
		}
	}
	s.waves++
	var drivers sync.WaitGroup
	for i := range s.options.Sessions {
		d := &driver{route: routes[i%len(routes)], random: rand.New(rand.NewPCG(s.options.Seed, s.waves<<32|uint64(i))), ends: s.ends}
		drivers.Go(func() { d.run(ctx) })
	}
	peak, err = s.watch(ctx)
	drivers.Wait()
	return peak, err
}

// discover asks the workers of a route what they are; only the first stays connected.
func discover(ctx context.Context, addresses []string) (*route.Route, error) {
	clients := make([]*worker.Client, len(addresses))
	for i, address := range addresses {
		c, err := worker.Open(address, dial.Default())
		if err != nil {
			return nil, err
		}
		clients[i] = c
	}
	r, err := route.Discover(ctx, clients)
	for _, c := range clients[1:] {
		err = errors.Join(err, c.Close())
	}
	return r, err
}

// watch looks at the workers until ctx ends.
func (s *soak) watch(ctx context.Context) (peak []figures, err error) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			now, err := s.fleet.figures(context.WithoutCancel(ctx))
			if err != nil {
				return nil, err
			}
			peak = most(peak, now)
		case <-ctx.Done():
			return peak, nil
		}
	}
}

// settle waits until nothing is under way, and, with figures to come back to, until those are reached, within a bound.
func (s *soak) settle(ctx context.Context, before []figures) (now []figures, err error) {
	end := time.Now().Add(settleBound)
	for {
		if now, err = s.fleet.figures(ctx); err != nil {
			return nil, err
		}
		if rest(now) && (before == nil || compare(before, now) == nil) || time.Now().After(end) {
			return now, nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
