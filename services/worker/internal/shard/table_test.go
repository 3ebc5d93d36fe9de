package shard

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// place brings a fresh shard into a state by what callers can do, with one session on it where there can be one. The engine
// of a LOADING shard is held at its gate.
func place(t *testing.T, state tables.ShardState) *world {
	t.Helper()
	w := newWorld(t)
	load := func(model string) { _ = w.Load(context.Background(), w.order(model), nil) }
	switch state {
	case tables.ShardLoading:
		w.source.gate = make(chan struct{})
		go load("fake")
	case tables.ShardReady, tables.ShardDraining:
		load("fake")
		w.tenants.come(1)
	case tables.ShardFailed:
		load("fake:script=load 1 fail BAD_MODEL_FILE")
	}
	if state == tables.ShardDraining {
		if _, err := w.Drain(-1); err != nil {
			t.Fatal(err)
		}
	}
	w.until(t, in(state))
	return w
}

// TestEveryPair fires every event in every state. What must come out is the table's row; that the effects did their part
// shows in what is still open at the end.
func TestEveryPair(t *testing.T) {
	pairs := 0
	for _, state := range tables.ShardStates() {
		for _, event := range tables.ShardEvents() {
			pairs++
			t.Run(state.String()+"/"+event.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := place(t, state)
					defer w.end(t)
					checkPair(t, w, tables.ShardTransition(state, event))
				})
			})
		}
	}
	if want := len(tables.ShardStates()) * len(tables.ShardEvents()); pairs != want {
		t.Errorf("%d pairs were tried, the table has %d", pairs, want)
	}
}

func checkPair(t *testing.T, w *world, row tables.ShardRow) {
	t.Helper()
	l := newLoad(w.life, w.order("fake"))
	w.mu.Lock()
	instance := w.instance
	err := w.fire(row.Event, func() { // what each event's own caller prepares
		switch row.Event {
		case tables.ShardEventLoad:
			w.load = l
		case tables.ShardEventLoaded, tables.ShardEventEngineRestarted:
			w.stage(t)
		case tables.ShardEventLoadFailed:
			w.load.stop()
			w.load = nil
		}
	})
	state, impossible := w.state, w.impossible
	changedInstance := w.instance != instance
	w.mu.Unlock()
	l.stop()

	if state != row.Next {
		t.Errorf("the state is %s, want %s", state, row.Next)
	}
	switch row.Outcome {
	case tables.OutcomeNext:
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
	default:
		if !errors.Is(err, code(row.Error)) {
			t.Errorf("error %v, want %s", err, row.Error)
		}
	}
	if want := row.Outcome == tables.OutcomeImpossible; (impossible == 1) != want {
		t.Errorf("%d impossible events are counted, want counted: %t", impossible, want)
	}
	if want := has(row, tables.ShardEffectNewInstance); changedInstance != want {
		t.Errorf("new instance: %t, want %t", changedInstance, want)
	}
	synctest.Wait()
	if want := has(row, tables.ShardEffectFailSessionsEngineFault); want != told(w, workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT) {
		t.Errorf("sessions must have failed with ENGINE_FAULT: %t", want)
	}
}

func told(w *world, want workerpb.ErrorCode) bool {
	for _, c := range w.tenants.heard() {
		if c == want {
			return true
		}
	}
	return false
}

func has(row tables.ShardRow, effect tables.ShardEffect) bool {
	for _, e := range row.Effects {
		if e == effect {
			return true
		}
	}
	return false
}

// stage does what runLoad does before its event: an engine that has passed its probe stands ready. The caller holds mu.
func (w *world) stage(t *testing.T) {
	t.Helper()
	if w.state != tables.ShardLoading {
		return
	}
	m, err := w.source.Open(context.Background(), "fake")
	if err != nil {
		t.Fatal(err)
	}
	e, text, err := m.NewEngine()
	if err != nil {
		t.Fatal(err)
	}
	w.load.stop()
	w.loaded = &Loaded{Engine: e, Text: text, Instance: [16]byte{1}, lost: w.lost}
	w.probe = &probe{passed: time.Now()}
}
