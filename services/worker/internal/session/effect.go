package session

import (
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Effect is something that a Core wants done. They are carried out in the order in which they were returned, and none of
// them waits.
type Effect interface{ effect() }

type (
	// Up sends a message to the upstream.
	Up struct{ Message *workerpb.SessionResponse }
	// EndUp ends the upstream's stream behind all that was sent: with Err as its status, or OK. No Up follows for it.
	EndUp struct{ Err *fault.Error }
	// Attach makes the stream whose Open began this attempt the upstream.
	Attach struct{}
	// Refuse ends the stream that brought the message in hand with Err; the upstream, if another, is not touched.
	Refuse struct{ Err *fault.Error }
	// Dial opens the link to the next hop and sends Open on it.
	Dial struct {
		Address string
		Open    *workerpb.Open
	}
	// Down sends a message to the next hop; Control overtakes what is queued.
	Down struct {
		Message *workerpb.SessionRequest
		Control bool
	}
	// DialRing opens the ring to the head, beside everything else. How that goes is nobody's matter.
	DialRing struct {
		Address string
		Hello   *workerpb.RingHello
	}
	// RingOut sends a token by the ring, if there is one.
	RingOut struct{ Token *workerpb.RingToken }
	// RungFirst says that a token came by the ring before it came up the chain.
	RungFirst struct{}
	// HangUp ends the link to the next hop at once.
	HangUp struct{}
	// Submit gives the engine work. A session has at most one Work at a time, except that a WorkRelease may follow one
	// that runs; its outcome comes by Core.Outcome.
	Submit struct{ Work Work }
	// StopWork asks for an early end of the step in the engine; its outcome still comes.
	StopWork struct{}
	// Widen asks for more bytes of window; what can be granted comes by Core.Widened.
	Widen struct{ Bytes uint64 }
	// Keep hands over the cache of a session that ends, with its seat in the engine: it is nobody's now, and whoever does not
	// keep it must release it.
	Keep struct{ Kept Kept }
	// FreeWindow gives back what the session's window took from the worker's.
	FreeWindow struct{}
	// Metered is what the attempt that ends used here and Core.Meter did not say yet, once for each that opened.
	Metered struct{ Usage *workerpb.Usage }
	// Gone says that the session is over and can be forgotten.
	Gone struct{}
	// Impossible reports a transition that the table calls impossible.
	Impossible struct{ Table, State, Event string }
)

func (Up) effect()         {}
func (EndUp) effect()      {}
func (Attach) effect()     {}
func (Refuse) effect()     {}
func (Dial) effect()       {}
func (Down) effect()       {}
func (DialRing) effect()   {}
func (RingOut) effect()    {}
func (RungFirst) effect()  {}
func (HangUp) effect()     {}
func (Submit) effect()     {}
func (StopWork) effect()   {}
func (Widen) effect()      {}
func (Keep) effect()       {}
func (FreeWindow) effect() {}
func (Metered) effect()    {}
func (Gone) effect()       {}
func (Impossible) effect() {}

// WorkKind says which call of the engine a Work is.
type WorkKind uint8

// The kinds.
const (
	WorkOpen WorkKind = iota + 1
	WorkStep
	WorkTruncate
	WorkRelease
	WorkAdopt // copies a kept prefix that fits one of the offers into the empty cache, if there is one
)

// Work is one call of the engine for one session.
type Work struct {
	Kind    WorkKind
	Session engine.SessionID
	Context uint32      // WorkOpen: tokens to reserve; WorkAdopt: tokens that are
	Step    engine.Step // WorkStep
	Hops    int         // WorkStep: hops of the route, where this is the first of them; else 0
	Length  engine.Pos  // WorkTruncate
	// WorkStep: marks to drop, and whether to take one, before the step.
	Unmark []engine.Pos
	Mark   bool
	Offers []*workerpb.PrefixOffer // WorkAdopt
}

// Outcome is how a Work ended. Err is nil, or why nothing was changed.
type Outcome struct {
	Kind   WorkKind
	Err    error
	Cache  engine.CacheState // WorkTruncate, WorkAdopt, and WorkOpen (empty)
	Result engine.StepResult // WorkStep
	Marked bool              // WorkStep: its marks were dropped and taken, whatever became of the step
	Kept   *Kept             // WorkAdopt: what the cache is a copy of, up to Cache.Length; nil: nothing fitted
}
