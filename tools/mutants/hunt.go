package mutants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
)

// limit is the longest time of one case.
const limit = 20 * time.Second

// kind is a kind of route: how many workers, and whether their caches go back in mixed ways or to any length.
type kind struct {
	hops  int
	mixed bool
}

// kinds are what each mutant is tried as. Mixed caches are for the clauses that it breaks alone.
func kinds(near bool) []kind {
	all := []kind{{1, false}, {3, false}, {3, true}}
	if !near {
		all = all[:2]
	}
	return all
}

// layers are those of a route's workers.
func (k kind) layers() []string {
	return map[int][]string{1: {"0:"}, 3: {"0:2", "2:4", "4:"}}[k.hops]
}

// model is what one of its workers holds.
func (k kind) model(hop int) string {
	model := conformance.FakeModel(hop)
	if !k.mixed {
		return model
	}
	caches := []string{"truncate=none,marks=3", "truncate=any", "truncate=window,window=8,marks=2"}[hop]
	return strings.Replace(model, ":", ":"+caches+",", 1)
}

// hunt runs the cases against a mutant until one fails: the one that caught it before, then those that cite its clauses on
// one worker and on a route of three, then all others.
func hunt(ctx context.Context, m Mutant, program string, before Mark) (v Verdict, err error) {
	h := &hunter{program: program, fleets: map[kind]*fleet{}}
	defer func() { err = errors.Join(err, h.close()) }()
	v.Mutant = m
	recorded := func(c conformance.Case) bool { return c.ID == before.Case }
	if before.kind().layers() != nil {
		if err := h.run(ctx, &v, before.kind(), recorded); v.Case != "" || err != nil {
			return v, named(m, err)
		}
	}
	for _, near := range []bool{true, false} {
		for _, k := range kinds(near) {
			some := func(c conformance.Case) bool { return near == m.breaks(c) && !(k == before.kind() && recorded(c)) }
			if err := h.run(ctx, &v, k, some); v.Case != "" || err != nil {
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
	fleets  map[kind]*fleet
}

// run notes the first of some cases that fails on a kind of route.
func (h *hunter) run(ctx context.Context, v *Verdict, k kind, some func(conformance.Case) bool) error {
	f := h.fleets[k]
	if f == nil {
		var err error
		if f, err = start(ctx, h.program, k); err != nil {
			return err
		}
		h.fleets[k] = f
	}
	report := conformance.Run(ctx, f.target, conformance.Options{Limit: limit, Among: some, FailFast: true})
	for _, o := range report.Outcomes {
		if len(o.Faults) > 0 && ctx.Err() == nil {
			v.Mark, v.Fault = Mark{o.Case.ID, k.hops, k.mixed}, o.Faults[0]
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
