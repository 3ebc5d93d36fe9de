package mutants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
)

// limit is the longest time of one case.
const limit = 20 * time.Second

// routes are what each mutant is tried as: one worker, and a route of three.
var routes = map[int][]string{1: {"0:"}, 3: {"0:2", "2:4", "4:"}}

// hunt runs the cases against a mutant until one fails: the one that caught it before, then those that cite its clauses on
// one worker and on a route of three, then all others.
func hunt(ctx context.Context, m Mutant, program string, before Mark) (v Verdict, err error) {
	h := &hunter{program: program, fleets: map[int]*fleet{}}
	defer func() { err = errors.Join(err, h.close()) }()
	v.Mutant = m
	recorded := func(c conformance.Case) bool { return c.ID == before.Case }
	if routes[before.Hops] != nil {
		if err := h.run(ctx, &v, before.Hops, recorded); v.Case != "" || err != nil {
			return v, named(m, err)
		}
	}
	for _, near := range []bool{true, false} {
		for _, hops := range []int{1, 3} {
			some := func(c conformance.Case) bool { return near == m.breaks(c) && !(hops == before.Hops && recorded(c)) }
			if err := h.run(ctx, &v, hops, some); v.Case != "" || err != nil {
				return v, named(m, err)
			}
		}
	}
	return v, ctx.Err()
}

func named(m Mutant, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("mutant %s: %w", m.Name, err)
}

// breaks says whether a case proves a clause that the mutant breaks.
func (m Mutant) breaks(c conformance.Case) bool {
	return slices.ContainsFunc(c.Clauses, func(id string) bool { return slices.Contains(m.Clauses, id) })
}

// hunter has the fleets of one mutant, each started when it is first needed.
type hunter struct {
	program string
	fleets  map[int]*fleet // by hops
}

// run notes the first of some cases that fails on a route of so many hops.
func (h *hunter) run(ctx context.Context, v *Verdict, hops int, some func(conformance.Case) bool) error {
	f := h.fleets[hops]
	if f == nil {
		var err error
		if f, err = start(ctx, h.program, routes[hops]...); err != nil {
			return err
		}
		h.fleets[hops] = f
	}
	report := conformance.Run(ctx, f.target, conformance.Options{Limit: limit, Among: some, FailFast: true})
	for _, o := range report.Outcomes {
		if len(o.Faults) > 0 && ctx.Err() == nil {
			v.Mark, v.Fault = Mark{o.Case.ID, hops}, o.Faults[0]
		}
	}
	return nil
}

func (h *hunter) close() error {
	var all []error
	for _, f := range h.fleets {
		all = append(all, f.close())
	}
	return errors.Join(all...)
}
