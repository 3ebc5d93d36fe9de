package fence

// Bounds end a search early; zero is no bound.
type Bounds struct {
	States int // that are visited
	Depth  int // moves from the first state
}

// Verdict is what a search found.
type Verdict struct {
	States  int      // different states that were visited
	AtRest  int      // of them, those that nothing follows
	Depth   int      // moves to the farthest state
	Broken  string   // what is wrong in the first bad state; empty: nothing was found
	Trace   []string // moves to the bad state, none shorter
	Bounded bool     // a bound ended the search: what was not visited is not known
}

// move is one thing that can happen, and the state after it.
type move[S any] struct {
	name func() string
	to   S
}

// system is a model. Its methods are pure; moves has one order for one state, so that counterexamples are stable.
type system[S any] interface {
	first() S
	moves(S) []move[S]
	key(S) string         // equal for equal states alone
	broken(S) string      // what is wrong in a state, or empty
	wrongAtRest(S) string // what is wrong in a state that nothing follows
}

// origin is where a state was come to from.
type origin struct {
	from int
	name func() string
}

// search visits every state by distance, until one is broken or a bound is met.
func search[S any](m system[S], b Bounds) Verdict {
	type place struct {
		state S
		at    int
	}
	first := m.first()
	seen := map[string]struct{}{m.key(first): {}}
	ways := []origin{{from: -1}}
	var v Verdict
	for front := []place{{first, 0}}; len(front) > 0; {
		if b.Depth > 0 && v.Depth == b.Depth {
			v.Bounded = true
			break
		}
		var next []place
		for _, p := range front {
			moves := m.moves(p.state)
			if len(moves) == 0 {
				v.AtRest++
				if v.Broken = m.wrongAtRest(p.state); v.Broken != "" {
					return v.end(len(seen), ways, p.at)
				}
			}
			for _, to := range moves {
				key := m.key(to.to)
				if _, known := seen[key]; known {
					continue
				}
				seen[key] = struct{}{}
				ways = append(ways, origin{p.at, to.name})
				if v.Broken = m.broken(to.to); v.Broken != "" {
					v.Depth++
					return v.end(len(seen), ways, len(ways)-1)
				}
				next = append(next, place{to.to, len(ways) - 1})
			}
			if b.States > 0 && len(seen) >= b.States {
				v.Bounded = true
				return v.end(len(seen), ways, 0)
			}
		}
		if front = next; len(front) > 0 {
			v.Depth++
		}
	}
	return v.end(len(seen), ways, 0)
}

// end fills in the count and the way to a state.
func (v Verdict) end(states int, ways []origin, at int) Verdict {
	v.States = states
	for ; at > 0; at = ways[at].from {
		v.Trace = append([]string{ways[at].name()}, v.Trace...)
	}
	return v
}
