package conformance

import (
	"bytes"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const (
	engineFault = workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT
	outOfMemory = workerpb.ErrorCode_ERROR_CODE_ENGINE_OUT_OF_MEMORY
	numeric     = workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT
	never       = workerpb.Recovery_RECOVERY_NEVER
	replay      = workerpb.Recovery_RECOVERY_REPLAY
)

// lossCases make engines fail. Each leaves all hops READY, some as other instances.
func lossCases() []Case {
	var cases []Case
	for hop := range 3 {
		cases = append(cases, Case{ID: fmt.Sprintf("loss.engine.hop-%d", hop), Clauses: []string{"LOS-3", "CAP-3", "HLT-1", "ERR-3"}, Skip: faulty(FaultLost, hop),
			Says: "A lost engine ends all sessions with ENGINE_FAULT, REPLAY and that hop as subject; the worker is READY again by itself as another instance, and greater attempts begin empty.",
			Run:  func(t *T) { losesEngine(t, hop) }})
	}
	return append(cases,
		Case{ID: "loss.lingering", Clauses: []string{"LOS-3"}, Skip: faulty(FaultLost, 0), Says: "A cache that lingers is gone with the engine.", Run: func(t *T) {
			d := t.linger(5)
			t.lose(0)
			if got := t.again(d, 0).opened.GetHops()[0].GetFound().GetLength(); got != 0 {
				t.Errorf("the worker found %d tokens, none are left", got)
			}
		}},
		Case{ID: "loss.watched", Clauses: []string{"HLT-3", "LOS-3"}, Skip: faulty(FaultLost, 0), Says: "WatchHealth tells that the engine went and came back.", Run: func(t *T) {
			w, err := t.head().Worker.WatchHealth(t.ctx, &workerpb.WatchHealthRequest{})
			if err != nil {
				t.Fatalf("WatchHealth: %v", err)
			}
			next := func(ready bool) {
				for {
					m, err := w.Recv()
					if err != nil {
						t.Fatalf("WatchHealth ended before ready was %v: %v", ready, err)
					}
					if h := m.GetHealth(); h.GetReady() == ready {
						if !ready && h.GetError() == nil && h.GetProgress() == nil {
							t.Errorf("%v does not say why it is not ready", h)
						}
						return
					}
				}
			}
			next(true)
			t.lose(0)
			next(false)
			next(true)
		}},
		Case{ID: "loss.twice", Clauses: []string{"LOS-5", "LOS-3"}, Skip: faulty(FaultLost, 0),
			Says: "A session whose step loses the engine twice gets NEVER and is not opened again; one that only stood by gets REPLAY both times and is.", Run: losesTwice},
		Case{ID: "loss.alone", Clauses: []string{"LOS-7"}, Skip: faulty(FaultLost, 0),
			Says: "Sessions that were in the batch in which the engine was lost share no native call before each has passed one alone.", Run: runsAlone},
		Case{ID: "loss.memory", Clauses: []string{"LOS-5"}, Skip: faulty(FaultMemory, 0),
			Says: "A step that runs out of memory ends the attempt with REPLAY, the second one of the session with NEVER; then it is not opened again.", Run: func(t *T) {
				fails := t.failing(FaultMemory, 0)
				d := t.openDriver()
				d.give(d.step(fails))
				t.recovers(d.ends(outOfMemory), replay)
				d = t.again(d, 0)
				d.give(d.step(fails))
				t.recovers(d.ends(outOfMemory), never)
				t.condemned(d, outOfMemory)
			}},
		numericCase("loss.numeric", FaultNaN, "LOS-6", "STP-7", "STP-10"), numericCase("loss.boundary", FaultPoison, "LOS-6", "FLO-8", "STP-10"),
	)
}

// numericCase tries a step whose numbers break, twice.
func numericCase(id, kind string, clauses ...string) Case {
	return Case{ID: id, Clauses: clauses, Skip: faulty(kind, 0),
		Says: "A step that gives NaN fails alone with RETRY_OTHER and is undone; the second one of the session, on the same numerics, fails with NEVER.",
		Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(prefill(t.ids(3, 1)...))))
			for _, recovery := range []workerpb.Recovery{workerpb.Recovery_RECOVERY_RETRY_OTHER, never} {
				id := d.give(d.step(t.failing(kind, 0)))
				e := d.failed(id, numeric)
				t.recovers(e, recovery)
				if e.GetSubject().GetIndex() != 0 || !bytes.Equal(e.GetSubject().GetInstance(), t.head().Is.GetInstance()) {
					t.Errorf("the subject is %v", e.GetSubject())
				}
				d.holds(d.of(id).failed.GetCache(), d.tokens)
				d.usable()
			}
		}}
}

// recovers checks the advice of an error.
func (t *T) recovers(e *workerpb.ShardError, want workerpb.Recovery) {
	if e.GetRecovery() != want {
		t.Errorf("%s has recovery %v, %v is due", name(e.GetCode()), e.GetRecovery(), want)
	}
}

// condemned checks that a session is not opened any more, and that others are.
func (t *T) condemned(d *driver, code workerpb.ErrorCode) {
	o := proto.CloneOf(d.open)
	o.Attempt++
	t.recovers(t.refuseAt(t.head(), code, o), never)
	t.openDriver().usable()
}

// lose makes the engine of a hop be lost, by a session of its own, and waits until the hop has another one.
func (t *T) lose(hop int) {
	before := t.capability(t.Hops[hop]).GetInstance()
	d := t.openDriver()
	d.give(d.step(t.failing(FaultLost, hop)))
	t.ended(d, hop, before, replay)
	t.restarted(hop, before)
}

// ended checks how a session ends with the engine of a hop.
func (t *T) ended(d *driver, hop int, instance []byte, recovery workerpb.Recovery) {
	e := d.ends(engineFault)
	t.recovers(e, recovery)
	if s := e.GetSubject(); int(s.GetIndex()) != hop || !bytes.Equal(s.GetInstance(), instance) {
		t.Errorf("the subject is %v; hop %d lost its engine", s, hop)
	}
}

// restarted waits until a hop is ready with another engine.
func (t *T) restarted(hop int, before []byte) {
	h := t.Hops[hop]
	t.until("the worker is ready with another engine", func() bool {
		is := t.capability(h)
		if bytes.Equal(is.GetInstance(), before) || !t.health(h).GetReady() {
			return false
		}
		h.Is = is
		return true
	})
}

func lingers(o *workerpb.Open) { o.Linger = durationpb.New(30 * time.Second) }

func losesEngine(t *T, hop int) {
	before := t.capability(t.Hops[hop]).GetInstance()
	idle, d := t.openDriver(lingers), t.openDriver(lingers)
	idle.result(idle.put(idle.step(prefill(t.ids(3, 2)...))))
	d.result(d.put(d.step(prefill(t.ids(4, 3)...))))
	d.give(d.step(t.failing(FaultLost, hop)))
	t.ended(d, hop, before, replay)
	t.ended(idle, hop, before, replay)
	t.restarted(hop, before)
	for _, gone := range []*driver{d, idle} {
		next := t.again(gone, 0)
		if found := next.opened.GetHops()[hop].GetFound().GetLength(); found != 0 {
			t.Errorf("the hop whose engine was lost found %d tokens", found)
		}
		next.usable()
	}
}

func losesTwice(t *T) {
	fails := t.failing(FaultLost, 0)
	idle, d := t.openDriver(), t.openDriver()
	for _, recovery := range []workerpb.Recovery{replay, never} {
		before := t.capability(t.head()).GetInstance()
		d.give(d.step(fails))
		t.ended(d, 0, before, recovery)
		t.ended(idle, 0, before, replay)
		t.restarted(0, before)
		if recovery == replay {
			d, idle = t.again(d, 0), t.again(idle, 0)
		}
	}
	t.again(idle, 0).usable()
	t.condemned(d, engineFault)
}

func runsAlone(t *T) {
	long := func(o *workerpb.Open) { o.ContextTokens = min(1024, t.head().Is.GetShard().GetContextLimit()) }
	all := []*driver{t.openDriver(), t.openDriver(), t.openDriver(long)}
	before := t.capability(t.head()).GetInstance()
	t.crowd(all, t.failing(FaultLost, 0))
	for _, d := range all {
		t.ended(d, 0, before, replay)
	}
	t.restarted(0, before)
	shared := t.metrics(t.head()).GetSharedRows()
	for i, d := range all {
		all[i] = t.again(d, 0)
	}
	for i, id := range t.crowd(all, prefill(t.ids(1, 5)...)) {
		all[i].result(id)
	}
	if now := t.metrics(t.head()).GetSharedRows(); now != shared {
		t.Errorf("%d rows were in shared native calls", now-shared)
	}
}

// crowd keeps the engine busy with a step of the last session while the others send theirs, the first one that is given.
func (t *T) crowd(all []*driver, first func(*workerpb.Step)) []uint64 {
	ids := make([]uint64, len(all))
	last := len(all) - 1
	rows := min(all[last].opened.GetMaxStepTokens(), t.room(all[last]))
	ids[last] = all[last].put(all[last].step(prefill(t.ids(int(rows), 4)...)))
	for range 3 { // whatever the worker does with a call, it has the step by then
		t.health(t.head())
	}
	for i, d := range all[:last] {
		ids[i] = d.put(d.step(first))
		first = prefill(t.ids(1, 6)...)
	}
	return ids
}
