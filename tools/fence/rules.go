package fence

// rules are those of the fence that can be removed one by one.
type rules struct {
	wait     bool // a forwarded step is undone only after the next hop answered it
	through  bool // CancelStep names the greatest id that was sent, and the receiver remembers the range
	barrier  bool // Truncate waits for all earlier results; then it cannot be cancelled
	undo     bool // the fence cancels a run with undo
	runEnd   bool // a stop without undo acts at the head alone, between iterations
	credit   bool // a step that is dropped or refused gives its credit back
	reach    bool // a cache goes back only to a length that it reaches exactly
	marks    bool // a mark is taken at the start of every unresolved step
	shortest bool // a mark that lies behind the end of the cache is forgotten
	needed   bool // a mark that an unanswered step needs is kept: a step that finds none left waits
	turn     bool // the end of the newest prefill is given up last
	meets    bool // reach is what this hop and all below it can return to
	hears    bool // a hop that hears of a broken link ends the attempt here
	ends     bool // a lost engine ends the session at its hop
	same     bool // a hop opens only with the tokens that the others hold, else with none
	narrow   bool // reach of a window cache holds only what it can return to exactly
}

func allRules() rules {
	return rules{wait: true, through: true, barrier: true, undo: true, runEnd: true, credit: true, reach: true, marks: true,
		shortest: true, needed: true, turn: true, meets: true, hears: true, ends: true, same: true, narrow: true}
}

// cacheKind is how a cache goes back.
type cacheKind byte

const (
	cacheAny    cacheKind = iota // to every length
	cacheWindow                  // only within what it kept
	cacheNone                    // to nothing, and to marks
)

// Sizes of the caches of the model, in tokens: a window cache needs the last windowTokens to compute, and keeps keptTokens.
const (
	windowTokens = 1
	keptTokens   = 2
)

// scenario is what a driver sends, and what may happen to it.
type scenario struct {
	kinds    string // a letter per step: T is a prefill and D a decode of a token, X truncates to 0, G generates
	faults   int    // how many things may go wrong
	breaks   int8   // links that break at most
	losses   int8   // engines that are lost at most
	only     string // what may: c(ancel), l(ocal failure), t(ime is over after forwarding); empty: all
	overtake bool   // CancelStep may pass anything on its link
	eager    bool   // the driver goes on at the first failure, else after all replies
	ring     bool   // tokens also come directly from the last hop to the first
	effect   bool   // a step must not run where its CancelStep was
	lasting  bool   // look at rest only, not on the way
	tokens   int8   // that a run gives
	window   int8   // steps of credit per link; 0: no bound
	caches   [hops]cacheKind
	marks    [hops]int8 // that each hop can hold; 0: it has none
	back     bool       // after all, the driver may truncate to each length in the reach that it was told
	bounded  bool       // a hop must not hold more steps than it has marks
	survives bool       // the session must not end for want of reach
}
