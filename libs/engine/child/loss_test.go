//go:build unix

package child_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child"
)

const patience = 20 * time.Second // of these tests, not of the engine

func start(t *testing.T, script string, change ...func(*child.Options)) *child.Engine {
	t.Helper()
	o := options(script)
	o.Output = discard{}
	for _, c := range change {
		c(&o)
	}
	e, err := child.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

type discard struct{}

func (discard) Write(data []byte) (int, error) { return len(data), nil }

var session = engine.SessionID{7}

// ready loads and opens one session.
func ready(t *testing.T, e *child.Engine) {
	t.Helper()
	if _, err := e.Load(t.Context(), request(), nil); err != nil {
		t.Fatal(err)
	}
	if err := e.Open(t.Context(), session, 48); err != nil {
		t.Fatal(err)
	}
}

func step(e *child.Engine, ctx context.Context) error {
	results, err := e.Step(ctx, []engine.Step{{Session: session, Tokens: make([]engine.TokenID, 24)}})
	if err != nil {
		return err
	}
	return results[0].Err
}

// until looks again and again for what nothing tells of.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !so(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("it is not so that %s", what)
		}
	}
}

// wantLost checks that everything answers ENGINE_FAULT with the words, and at once.
func wantLost(t *testing.T, e *child.Engine, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, engine.EngineFault) {
		t.Fatalf("error %v, want ENGINE_FAULT", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error %q does not say %q", err, w)
		}
	}
	select {
	case <-e.Lost():
	case <-time.After(patience):
		t.Fatal("Lost does not tell")
	}
	_, health := e.Health(t.Context(), true)
	_, load := e.Load(t.Context(), request(), nil)
	for what, err := range map[string]error{"Open": e.Open(t.Context(), engine.SessionID{9}, 8), "Step": step(e, t.Context()), "Health": health, "Load": load} {
		if !errors.Is(err, engine.EngineFault) {
			t.Errorf("%s of an engine without a process: %v, want ENGINE_FAULT", what, err)
		}
	}
	if m := e.Metrics(); m.SessionsOpen != 0 || m.CacheReserved != 0 {
		t.Errorf("metrics of an engine without a process are %+v", m)
	}
	if able := e.Capabilities(); able.Shard != nil || able.Name == "" {
		t.Errorf("capabilities of an engine without a process are %+v", able)
	}
}

func TestAbortTellsTheNativeMessage(t *testing.T) {
	t.Parallel()
	t.Run("step", func(t *testing.T) {
		t.Parallel()
		e := start(t, "abort")
		ready(t, e)
		wantLost(t, e, step(e, t.Context()), "GGML_ASSERT(n > 0) failed")
	})
	t.Run("load", func(t *testing.T) {
		t.Parallel()
		e := start(t, "abort-load")
		_, err := e.Load(t.Context(), request(), nil)
		wantLost(t, e, err, "GGML_ASSERT(n > 0) failed")
	})
}

func TestKilled(t *testing.T) {
	t.Parallel()
	t.Run("new", func(t *testing.T) {
		t.Parallel()
		e := start(t, "")
		e.Kill()
		<-e.Lost()
		wantLost(t, e, e.Open(t.Context(), session, 8), "killed")
	})
	t.Run("load", func(t *testing.T) {
		t.Parallel()
		e := start(t, "load stuck")
		_, err := e.Load(t.Context(), request(), func(engine.LoadProgress) { e.Kill() })
		wantLost(t, e, err, "killed")
	})
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		e := start(t, "")
		ready(t, e)
		e.Kill()
		wantLost(t, e, step(e, t.Context()), "killed")
	})
	t.Run("step", func(t *testing.T) {
		t.Parallel()
		e := start(t, "step slow 20ms")
		ready(t, e)
		done := make(chan error, 1)
		go func() { done <- step(e, context.Background()) }()
		until(t, "the step has begun", func() bool { return e.Metrics().Rows > 0 })
		e.Kill()
		wantLost(t, e, <-done, "killed")
	})
}

func TestHangIsEnded(t *testing.T) {
	t.Parallel()
	short := func(o *child.Options) { o.Patience = 300 * time.Millisecond }
	t.Run("after its context", func(t *testing.T) {
		t.Parallel()
		e := start(t, "hang", short)
		ready(t, e)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		wantLost(t, e, step(e, ctx), "killed")
	})
	t.Run("by Close", func(t *testing.T) {
		t.Parallel()
		e := start(t, "hang", short)
		ready(t, e)
		done := make(chan error, 1)
		go func() { done <- step(e, context.Background()) }()
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		select {
		case err := <-done:
			if !errors.Is(err, engine.LifecycleViolation) && !errors.Is(err, engine.EngineFault) {
				t.Errorf("the step that hung ended with %v", err)
			}
		case <-time.After(patience):
			t.Fatal("the step that hung did not end")
		}
	})
}

// What stops is no loss: the process answers again.
func TestStoppedProcessHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	e := start(t, "step slow 2ms")
	ready(t, e)
	done := make(chan error, 1)
	go func() { done <- step(e, context.Background()) }()
	until(t, "the step has begun", func() bool { return e.Metrics().Rows > 0 })
	if err := syscall.Kill(e.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	e.Capabilities()
	e.Metrics()
	e.Cancel(session)
	if _, err := e.Health(ctx, true); !errors.Is(err, engine.DeadlineExceeded) {
		t.Errorf("Health of a stopped process: %v, want DEADLINE_EXCEEDED", err)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("the observers were held up for %v", took)
	}
	if err := syscall.Kill(e.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, engine.Cancelled) {
		t.Errorf("the step ended with %v, want CANCELLED", err)
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]func() *exec.Cmd{
		"no such program": func() *exec.Cmd { return exec.Command("/nonexistent/engine") },
		"no engine":       func() *exec.Cmd { return exec.Command(os.Args[0], "-test.run", "^$") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if e, err := child.New(child.Options{Command: command, Output: discard{}}); !errors.Is(err, engine.EngineFault) {
				t.Errorf("New: %v, %v, want ENGINE_FAULT", e, err)
			}
		})
	}
}

// A child whose parent is gone ends by itself, whatever it computes.
func TestChildEndsWithItsParent(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestParentThatIsKilled$", "-test.v")
	cmd.Env = append(os.Environ(), "DGR_TEST_PARENT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4<<10)
	var text string
	for !strings.Contains(text, "\n.") {
		n, err := out.Read(buffer)
		if err != nil {
			t.Fatalf("the parent said %q and ended: %v", text, err)
		}
		text += string(buffer[:n])
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	_, text, _ = strings.Cut(text, "child ")
	var pid int
	for _, digit := range text {
		if digit < '0' || digit > '9' {
			break
		}
		pid = 10*pid + int(digit-'0')
	}
	if pid == 0 {
		t.Fatalf("no process id in %q", text)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // it is gone by now
	until(t, "the child has ended", func() bool { return syscall.Kill(pid, 0) != nil })
}

// TestParentThatIsKilled is the parent of the test above.
func TestParentThatIsKilled(t *testing.T) {
	if os.Getenv("DGR_TEST_PARENT") == "" {
		t.Skip("it is run by TestChildEndsWithItsParent")
	}
	e := start(t, "hang")
	ready(t, e)
	os.Stdout.WriteString("child " + strconv.Itoa(e.PID()) + "\n.\n")
	_ = step(e, t.Context())
}
