package conformance

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// heldStates are the states in which a next hop can hold the first one.
var heldStates = []tables.SessionState{tables.SessionOpening, tables.SessionUnwinding, tables.SessionClosing}

// wholePairCases are about what ends all sessions at once, whatever state they are in, and about orders to a shard that its
// state does not allow.
func wholePairCases() []Case {
	engineFault := workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT
	peered := func(more func(*Target) string) func(*Target) string {
		return either(hops(2), func(t *Target) string {
			if t.Peer == nil {
				return "the target has no next hop of ours to dial (--peer)"
			}
			return ""
		}, more)
	}
	loadable := func(t *Target) string {
		if t.Store == "" {
			return "the target may not be unloaded (--load names the model to load again)"
		}
		return ""
	}
	return []Case{
		{ID: "pair.all.engine-lost", Clauses: []string{"LOS-3"}, Skip: peered(faulty(FaultLost, 0)),
			Says: "A lost engine ends what is opening and what is unwinding with ENGINE_FAULT, and what is closing well.", Run: func(t *T) {
				before := t.capability(t.head()).GetInstance()
				d := t.openDriver()
				moments := allHeld(t)
				d.give(d.step(t.failing(FaultLost, 0)))
				endTogether(t, moments, engineFault)
				t.restarted(0, before)
			}},
		{ID: "pair.all.unloaded", Clauses: []string{"SHD-5"}, Skip: peered(loadable),
			Says: "UnloadShard ends what is opening and what is unwinding with DRAINING, what is closing well, and what lingers silently.", Run: func(t *T) {
				d := t.openDriver(func(o *workerpb.Open) { o.Linger = durationpb.New(o.Budget.AsDuration()) })
				d.usable()
				d.hangUp()
				moments := allHeld(t)
				t.unload()
				endTogether(t, moments, draining)
			}},
		{ID: "pair.shard", Clauses: []string{"SHD-3", "SHD-4", "SHD-5"}, Skip: loadable,
			Says: "Load, Drain and Unload in each state of the shard in which they are refused or do nothing are answered as the table's row says.", Run: shardPairs},
	}
}

func allHeld(t *T) (all []*moment) {
	for _, state := range heldStates {
		all = append(all, held(t, state))
	}
	return all
}

func endTogether(t *T, moments []*moment, code workerpb.ErrorCode) {
	for _, m := range moments {
		e := m.told()
		if m.state == tables.SessionClosing {
			if e != nil {
				t.Errorf("what was closing ended with %v", e)
			}
			continue
		}
		t.want(e, code)
	}
}

// shardPairs gives orders in an order that nobody should.
func shardPairs(t *T) {
	drains := func() {
		a, err := t.head().Shard.Drain(t.ctx, &workerpb.DrainRequest{Budget: durationpb.New(0)})
		if err != nil {
			t.Fatalf("Drain: %v", err)
		}
		t.want(a.GetError(), notReady)
		t.sane(a.GetError())
	}
	unloads := func(when string) {
		if a, err := t.head().Shard.UnloadShard(t.ctx, &workerpb.UnloadShardRequest{}); err != nil || a.GetState() != unloaded {
			t.Errorf("UnloadShard %s answered %v, %v", when, a, err)
		}
	}
	t.unload()
	drains() // UNLOADED

	t.loading()
	drains() // LOADING
	unloads("while a load runs")

	_, err := t.load(func(m *workerpb.LoadShardRequest) { m.Fingerprint = random(32) })
	t.errorOf(err)
	if state := t.health(t.head()).GetState(); state != workerpb.ShardState_SHARD_STATE_FAILED {
		t.Fatalf("after a load that failed the shard is %v", state)
	}
	drains() // FAILED
	unloads("after a load that failed")

	t.reload()
	t.openDriver()
	if _, err := t.head().Shard.Drain(t.ctx, &workerpb.DrainRequest{Budget: durationpb.New(patience)}); err != nil {
		t.Fatalf("Drain: %v", err)
	}
	_, err = t.load(nil)
	t.want(t.errorOf(err), draining) // DRAINING
	unloads("while it drains")
}
