package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
	client "github.com/distributed-gguf-runtime/dgr/libs/client/worker"
)

// prompt is what every run here continues.
var prompt = []uint32{3, 1, 4, 1, 5, 9, 2, 6}

// open opens a session on the workers; it is over at the end of the test.
func open(t *testing.T, workers ...announcement) *session.Session {
	t.Helper()
	s, err := openWith(t, dial.Default(), workers...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openWith is open for one who shows something.
func openWith(t *testing.T, o dial.Options, workers ...announcement) (*session.Session, error) {
	t.Helper()
	clients := make([]*client.Client, len(workers))
	for i, w := range workers {
		c, err := client.Open(w.Address, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients[i] = c
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	r, err := route.Discover(ctx, clients)
	if err != nil {
		return nil, err
	}
	s, err := session.Open(ctx, r, session.Default())
	if err != nil {
		return nil, err
	}
	t.Cleanup(s.Abandon)
	return s, nil
}

// generate begins a greedy run.
func generate(t *testing.T, s *session.Session, n uint32) *session.Run {
	t.Helper()
	greedy := float32(0)
	run, err := s.Generate(t.Context(), session.Generation{Tokens: prompt, MaxTokens: n, Sampling: &workerpb.Sampling{Temperature: &greedy}})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// take returns the ids of the next n tokens, or fewer at the end of the run.
func take(t *testing.T, run *session.Run, n int) ([]uint32, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var ids []uint32
	for len(ids) < n {
		token, err := run.Next(ctx)
		if err != nil {
			return ids, err
		}
		ids = append(ids, token.ID)
	}
	return ids, nil
}

// startRoute starts workers whose layers are cut at the given places, each of which may dial the others.
func startRoute(t *testing.T, model string, cuts ...string) ([]*launched, []announcement) {
	t.Helper()
	children := make([]*launched, len(cuts)+1)
	announced := make([]announcement, len(cuts)+1)
	bounds := append(append([]string{"0"}, cuts...), "")
	for i := range children {
		children[i] = start(t, nil, faked("--model", model, "--layers", bounds[i]+":"+bounds[i+1], "--chain-allow", "127.0.0.1:*")...)
	}
	for i, c := range children {
		announced[i] = c.ready()
	}
	return children, announced
}

func TestARouteSaysWhatOneWorkerSays(t *testing.T) {
	const n = 24
	var want []uint32
	for _, cuts := range [][]string{nil, {"2"}, {"1", "2", "4"}} {
		children, announced := startRoute(t, "fake:layers=5", cuts...)
		got, err := take(t, generate(t, open(t, announced...), n), n)
		if err != nil || len(got) != n {
			t.Fatalf("cut at %v: %d tokens, %v", cuts, len(got), err)
		}
		if want == nil {
			want = got
		}
		if !slices.Equal(got, want) {
			t.Errorf("cut at %v: %v, want %v", cuts, got, want)
		}
		for _, c := range children {
			c.signal(syscall.SIGKILL)
		}
	}
}

func TestAKilledTailIsNamed(t *testing.T) {
	children, announced := startRoute(t, "fake:layers=5,script=step slow 2ms", "2")
	run := generate(t, open(t, announced...), 1000)
	if _, err := take(t, run, 3); err != nil {
		t.Fatal(err)
	}
	children[1].signal(syscall.SIGKILL)
	killed := time.Now()
	_, err := take(t, run, 1000)
	if took := time.Since(killed); took > 2*time.Second {
		t.Errorf("it took %s to say", took)
	}
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST || f.Subject.GetIndex() != 1 {
		t.Errorf("the run ended with %v about %v", err, f)
	}
	children[0].signal(syscall.SIGTERM)
	if code := children[0].exit(); code != exitFine {
		t.Errorf("the head ended with %d: %s", code, children[0].stderr.String())
	}
}

func TestDrainClosesWhatStays(t *testing.T) {
	c := start(t, nil, faked("--drain", "200ms")...)
	a := c.ready()
	s := open(t, a)
	run := generate(t, s, 4)
	if _, err := take(t, run, 5); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	c.signal(syscall.SIGTERM)
	if code := c.exit(); code != exitFine {
		t.Errorf("exit code %d: %s", code, c.stderr.String())
	}
	select {
	case <-s.Done():
	case <-time.After(bound):
		t.Fatal("the session never ended")
	}
	if err := s.Err(); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_DRAINING)) {
		t.Errorf("the session ended with %v", err)
	}
}

func TestDrainLetsARunEnd(t *testing.T) {
	c := start(t, nil, faked("--model", "fake:layers=5,script=step slow 5ms")...)
	s := open(t, c.ready())
	run := generate(t, s, 30)
	if _, err := take(t, run, 2); err != nil {
		t.Fatal(err)
	}
	c.signal(syscall.SIGTERM)
	c.says("draining")
	if ids, err := take(t, run, 100); !errors.Is(err, io.EOF) || len(ids) != 28 {
		t.Errorf("%d more tokens, then %v", len(ids), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := s.Close(ctx, false); err != nil {
		t.Errorf("close: %v", err)
	}
	if code := c.exit(); code != exitFine {
		t.Errorf("exit code %d: %s", code, c.stderr.String())
	}
}

func TestSecondSignalEndsNow(t *testing.T) {
	c := start(t, nil, faked()...)
	open(t, c.ready())
	c.signal(syscall.SIGTERM)
	c.says("draining")
	ended := make(chan int)
	go func() { ended <- c.exit() }()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	var code int
	for running := true; running; {
		select {
		case <-again.C: // those that come too soon count as the first
			_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
		case code = <-ended:
			running = false
		}
	}
	if code != exitFailed || !strings.Contains(c.stderr.String(), "dgr-worker: a second signal") || len(c.sentences()) != 1 {
		t.Errorf("exit code %d: %s", code, c.stderr.String())
	}
}

// The sessions of a lost engine hear of it; the worker gets a new one and serves on.
func TestALostEngineCostsItsSessionsOnly(t *testing.T) {
	c := start(t, nil, faked("--model", "fake:layers=5,script=step 5 lost")...)
	a := c.ready()
	if _, err := take(t, generate(t, open(t, a), 100), 100); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT)) {
		t.Errorf("the run ended with %v", err)
	}
	w, err := client.Open(a.Address, dial.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := w.WatchHealth(ctx, func(h *workerpb.Health) bool { return !h.GetReady() }); err != nil {
		t.Fatal(err)
	}
	if ids, err := take(t, generate(t, open(t, a), 10), 11); !errors.Is(err, io.EOF) || len(ids) != 10 {
		t.Errorf("the next run gave %d tokens, then %v", len(ids), err)
	}
}
