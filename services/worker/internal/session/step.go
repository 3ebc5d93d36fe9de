package session

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// step is one step that has no terminal reply yet.
type step struct {
	id, after uint64
	state     tables.StepState
	message   *workerpb.Step
	tokens    []engine.TokenID
	want      engine.Want
	sampling  *engine.Sampling
	run       *run // of a Generate

	size     uint64 // boundary bytes of its credit
	data     []byte // its boundary
	frames   *collector
	refunded bool
	// With it, its sender could not have sent another one like it.
	tightSteps, tightBytes bool

	received time.Time // of its last byte
	deadline time.Time // of this hop
	waitTo   time.Time // for the next hop's answer, once forwarded

	applied bool   // this hop's cache holds it, from start on
	start   uint32 // cache length before it
	passed  bool   // it was forwarded to the next hop
	answer  *workerpb.StepResult
	refused *fault.Error // the next hop's StepFailed
	fault   *fault.Error // why it fails; set before CANCELLING

	output   *workerpb.Output
	sampled  uint32
	finish   workerpb.Finish
	reserved credit // room for responses that was set aside for it
	sent     uint64 // payload of its answer that went up
	compute  time.Duration
	shapes   []uint32
}

// run is a Generate that this hop has begun.
type run struct {
	max     uint32
	stops   []uint32
	anyEnd  bool // end-of-generation ids end it
	gap     time.Duration
	begun   uint32     // iterations that were taken in
	known   []uint32   // ids by index, from whichever brought them first; at the head
	next    *iteration // what is to be evaluated next
	now     *iteration // what the engine evaluates, or did last
	stopped bool       // a person pressed stop
	told    bool       // the next hop was told so
	gapTo   time.Time  // for what is being waited for now; zero: nothing
}

// iteration is one further token of a run.
type iteration struct {
	index uint32
	token uint32
	data  []byte
	frame *collector
}

func (s *step) truncate() *workerpb.Truncate { return s.message.GetTruncate() }

// immune says whether s is a Truncate whose turn has come: it cannot be cancelled or time out any more. Behind the first hop
// it has come when the step arrives, for the hop before has gone back already.
func (c *Core) immune(s *step) bool {
	return s.truncate() != nil && (!c.place.first || s.state != tables.StepHeld || c.job != nil && c.job.step == s)
}

// queue is the steps of one attempt that have no terminal reply yet, in order of their ids.
type queue struct {
	open    []*step
	last    uint64   // greatest id received
	applied uint64   // last answered step that this hop holds
	sent    uint64   // greatest id sent to the next hop
	failed  []uint64 // ids that failed lately, oldest first
	cancels []span   // ids that are to fail when they arrive
	ran     bool     // a Generate has come
	unsent  uint64   // least id that CancelStep is to name below; 0: none
	through uint64   // and the greatest
}

// span is ids, inclusive.
type span struct{ from, to uint64 }

// maxFailed is how many failed ids are remembered: more than a window of steps.
const maxFailed = 256

// maxCancels is how many ranges of ids that have not arrived yet are remembered.
const maxCancels = 64

func (q *queue) find(id uint64) *step {
	for _, s := range q.open {
		if s.id == id {
			return s
		}
	}
	return nil
}

// top is the last step that this hop holds: what a new step must build on.
func (q *queue) top() uint64 {
	for i := len(q.open) - 1; i >= 0; i-- {
		if q.open[i].applied {
			return q.open[i].id
		}
	}
	return q.applied
}

// remove takes a step out that has its reply.
func (q *queue) remove(s *step) {
	for i, other := range q.open {
		if other == s {
			q.open = append(q.open[:i], q.open[i+1:]...)
			break
		}
	}
	if s.state == tables.StepDone {
		q.applied = max(q.applied, s.id)
		return
	}
	if q.failed = append(q.failed, s.id); len(q.failed) > maxFailed {
		q.failed = q.failed[1:]
	}
}

// hasFailed says whether id failed lately, or is about to.
func (q *queue) hasFailed(id uint64) bool {
	for _, f := range q.failed {
		if f == id {
			return true
		}
	}
	s := q.find(id)
	return s != nil && s.state == tables.StepCancelling
}

// cancelled says whether id is in a range that was cancelled before it came.
func (q *queue) cancelled(id uint64) bool {
	for _, c := range q.cancels {
		if c.from <= id && id <= c.to {
			return true
		}
	}
	return false
}

// remember keeps the part of a cancelled range that has not arrived; ok is false when there are too many.
func (q *queue) remember(from, to uint64) (ok bool) {
	kept := q.cancels[:0]
	for _, c := range q.cancels {
		if c.to > q.last {
			kept = append(kept, c)
		}
	}
	q.cancels = kept
	if to > q.last {
		q.cancels = append(q.cancels, span{max(from, q.last+1), to})
	}
	return len(q.cancels) <= maxCancels
}

// fireStep asks the step table what an event does to a step, and does it.
func (c *Core) fireStep(s *step, event tables.StepEvent) {
	row := tables.StepTransition(s.state, event)
	c.hop.tally("step", row.State.String(), row.Event.String())
	if row.Outcome != tables.OutcomeNext {
		c.impossible++
		c.emit(Impossible{Table: "step", State: row.State.String(), Event: row.Event.String()})
		return
	}
	s.state = row.Next
	for _, effect := range row.Effects {
		switch effect {
		case tables.StepEffectPassOn:
			c.passOn(s)
		case tables.StepEffectReplyResult:
			c.fire(tables.SessionEventStepDone, cause{step: s})
		case tables.StepEffectReplyFailed:
			c.sendFailed(s)
		case tables.StepEffectDrop:
			c.drop(s)
		case tables.StepEffectCancelDownstream:
			c.cancelBelow(s)
		case tables.StepEffectStopRun:
			c.stopRun(s)
		case tables.StepEffectKeepWaiting, tables.StepEffectIgnore, tables.StepEffectCountImpossible:
		default:
			panic("session: step effect " + effect.String() + " has no code")
		}
	}
}
