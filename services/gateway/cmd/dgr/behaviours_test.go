//go:build unix

package main_test

import (
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
)

// These tests repeat what users of comparable systems met.

// One client holds a session open and does nothing; a second is answered at once.
func TestIdleSessionHoldsNobodyUp(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=4", "0:2", "2:4")
	r := connect(t, addresses)
	idle := openSession(t, r, nil)
	before := time.Now()
	generate(t, openSession(t, r, nil), prompt(5), 5)
	if took := time.Since(before); took > time.Second {
		t.Errorf("beside an idle session an answer took %v", took)
	}
	generate(t, idle, prompt(5), 5)
}

// One of two sessions is stopped or abandoned while it runs; the other's answer goes on, with the same tokens.
func TestCancelledSessionTouchesNoOther(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=4,script=step slow 1ms", "0:2", "2:4")
	r := connect(t, addresses)
	first := openSession(t, r, nil)
	alone := generate(t, first, prompt(9), 80)
	if _, err := first.Close(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(*session.Session, *session.Run){
		"stopped":   func(_ *session.Session, run *session.Run) { run.Stop() },
		"abandoned": func(s *session.Session, _ *session.Run) { s.Abandon() },
		"closed":    func(s *session.Session, _ *session.Run) { _, _ = s.Close(t.Context(), false) },
	} {
		t.Run(name, func(t *testing.T) {
			doomed, other := openSession(t, r, nil), openSession(t, r, nil)
			run, err := doomed.Generate(t.Context(), session.Generation{Tokens: prompt(90), MaxTokens: 1000})
			if err != nil {
				t.Fatal(err)
			}
			kept, err := other.Generate(t.Context(), session.Generation{Tokens: prompt(9), MaxTokens: 80})
			if err != nil {
				t.Fatal(err)
			}
			var ids []uint32
			for range 20 {
				token, err := kept.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, token.ID)
			}
			end(doomed, run)
			more, err := rest(t.Context(), kept)
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if ids = append(ids, more...); !slices.Equal(ids, alone) {
				t.Errorf("beside a session that was %s: %v, alone %v", name, ids, alone)
			}
			if _, err := other.Close(t.Context(), false); err != nil {
				t.Error(err)
			}
		})
	}
}

// A worker is restarted with another model on the same port: it is refused by the model's name, at any hop.
func TestAnotherModelOnTheSamePortIsRefused(t *testing.T) {
	for index, part := range []string{"0:2", "2:4"} {
		t.Run(part, func(t *testing.T) {
			workers, addresses := startRoute(t, "fake:layers=4", "0:2", "2:4")
			r := connect(t, addresses)
			workers[index].signal(syscall.SIGKILL)
			workers[index].wait()
			startWorker(t, "fake:layers=4,seed=2", part, "--listen", workers[index].Address)
			if err := r.Hops[index].Worker.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := session.Open(t.Context(), r, session.Default())
			f := fault.Of(err)
			if f.Code != workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH || f.Subject.GetIndex() != uint32(index) {
				t.Errorf("error %+v, want SHARD_MISMATCH of hop %d", f, index)
			}
		})
	}
}

// A draining worker lets open sessions end, takes no new ones, and exits well.
func TestDrainingWorkerLetsSessionsEnd(t *testing.T) {
	for index, part := range []string{"0:2", "2:4"} {
		t.Run(part, func(t *testing.T) {
			workers, _ := startRoute(t, "fake:layers=4,script=step slow 2ms", "0:2", "2:4")
			patient := startWorker(t, "fake:layers=4,script=step slow 2ms", part, "--drain", "30s")
			addresses := workers[0].Address + "," + patient.Address
			if index == 0 {
				addresses = patient.Address + "," + workers[1].Address
			}
			r := connect(t, addresses)
			s := openSession(t, r, nil)
			run, err := s.Generate(t.Context(), session.Generation{Tokens: prompt(5), MaxTokens: 120})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := run.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			patient.signal(syscall.SIGTERM)
			ids, err := rest(t.Context(), run)
			if !errors.Is(err, io.EOF) || len(ids) != 119 {
				t.Fatalf("%d tokens after the drain began, %v", len(ids), err)
			}
			if d, ok := s.Draining(); !ok || d.GetHop().GetIndex() != uint32(index) || d.GetLeft().AsDuration() <= 0 {
				t.Errorf("draining is %v", d)
			}
			_, err = session.Open(t.Context(), r, session.Default())
			if f := fault.Of(err); f.Code != workerpb.ErrorCode_ERROR_CODE_DRAINING || f.Subject.GetIndex() != uint32(index) {
				t.Errorf("a new session: %v", err)
			}
			if _, err := s.Close(t.Context(), false); err != nil {
				t.Error(err)
			}
			if code := patient.wait(); code != 0 {
				t.Errorf("the drained worker ended with %d", code)
			}
		})
	}
}
