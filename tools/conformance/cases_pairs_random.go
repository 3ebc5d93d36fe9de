package conformance

import (
	"math/rand/v2"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// randomRounds is how many sequences are drawn; each is its own seed, and told where it fails.
const randomRounds = 60

// randomPairs draws sequences of events in the states that a next hop can hold the first one in, and follows the session table:
// the attempt ends when the table says so, and not before.
func randomPairs(t *T) {
	before := t.impossible()
	for seed := range uint64(randomRounds) {
		faults := len(t.faults)
		randomRound(t, rand.New(rand.NewPCG(seed, 15)))
		if n := t.impossible(); n != before {
			t.Errorf("%d impossible transitions were counted", n-before)
		}
		if len(t.faults) > faults {
			t.Fatalf("that was sequence %d", seed)
		}
	}
}

// held is how many sessions the first worker holds, lingering ones included.
func (t *T) held() uint32 {
	use := t.health(t.head()).GetUse()
	return use.GetSessions() + use.GetLingering()
}

func randomRound(t *T, r *rand.Rand) {
	before := t.held()
	m := held(t, heldStates[r.IntN(len(heldStates))])
	defer func() { // so that the next one has room
		m.link.hangUp()
		m.below.end(errPeerDone)
		t.until("the session is gone", func() bool { return t.held() <= before })
	}()
	state, stepped := m.state, false
	for range 1 + r.IntN(5) {
		all := slices.DeleteFunc(happenings(), func(h happening) bool {
			row := tables.SessionTransition(state, h.event)
			alone := h.event == tables.SessionEventOpenNewer || h.event == tables.SessionEventUpstreamBroken || h.event == tables.SessionEventDownstreamBroken
			return alone || row.Outcome == tables.OutcomeImpossible || stepped && h.event == tables.SessionEventStep
		})
		h := all[r.IntN(len(all))]
		row := tables.SessionTransition(state, h.event)
		stepped = stepped || h.event == tables.SessionEventStep
		if further := h.do(m); further != nil {
			t.want(further.refusal(), row.Error)
			continue
		}
		why := h.code
		if slices.Contains(row.Effects, tables.SessionEffectViolate) {
			if why == 0 {
				why = row.Error
			}
			row = tables.SessionTransition(state, tables.SessionEventViolation)
		}
		if row.Next == tables.SessionClosing && state != tables.SessionClosing {
			m.closes()
		}
		state = row.Next
		if state == tables.SessionLingering || state == tables.SessionClosed {
			if e := m.told(); slices.Contains(row.Effects, tables.SessionEffectEndWithError) {
				t.want(e, why)
			}
			return
		}
	}
	if state != tables.SessionClosing {
		m.stands()
		return
	}
	m.below.end(errPeerOK)
	if e := m.told(); m.state == tables.SessionOpening {
		t.want(e, workerpb.ErrorCode_ERROR_CODE_CANCELLED)
	} else if e != nil {
		t.Errorf("what was closed ended with %v", e)
	}
}
