//go:build unix

package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds every wait for a process; it is no measure of speed.
const patience = 60 * time.Second

// binaries is where TestMain put dgr and dgr-worker.
var binaries string

// TestMain builds both programs once. The tests run them as a user would: as processes, over sockets.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "dgr-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := 1
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		binaries = dir
		if code = m.Run(); code == 0 {
			if err := goleak.Find(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir string) error {
	root, err := filepath.Abs("../../../..")
	if err != nil {
		return err
	}
	for _, program := range []struct{ module, tags string }{
		{"services/gateway/cmd/dgr", ""}, {"services/worker/cmd/dgr-worker", workerTags},
	} {
		cmd := exec.Command("go", "build", "-tags", program.tags, "-o", dir+string(filepath.Separator), "./"+program.module)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s does not build: %w\n%s", program.module, err, out)
		}
	}
	return nil
}

// process is a started program; the test ends it if nothing else does.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   *bufio.Reader // its standard output
	ended chan struct{}

	mu  sync.Mutex
	err bytes.Buffer // its standard error
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.Write(b)
}

func (p *process) stderr() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err.String()
}

// start runs a program. It gets a standard input that stays open.
func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, ended: make(chan struct{})}
	p.cmd = exec.Command(filepath.Join(binaries, program), args...)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = in, write, p
	p.out = bufio.NewReader(read)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = in.Close(), write.Close()
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.ended
		_, _ = hold.Close(), read.Close()
		if t.Failed() {
			t.Logf("%s %s wrote:\n%s", program, strings.Join(args, " "), p.stderr())
		}
	})
	return p
}

// wait is the exit code, once the process has ended.
func (p *process) wait() int {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-timer.C:
		p.t.Fatalf("%s did not end within %v", p.cmd.Path, patience)
		return 0
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// line is the next line of standard output.
func (p *process) line() string {
	p.t.Helper()
	text, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s ended its output with %q (%v); standard error:\n%s", p.cmd.Path, text, err, p.stderr())
	}
	return strings.TrimSuffix(text, "\n")
}

// outcome is how a program ended.
type outcome struct {
	stdout, stderr string
	code           int
}

// run runs dgr to its end.
func run(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "dgr"), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("dgr %s did not end within %v; it wrote:\n%s%s", strings.Join(args, " "), patience, out.String(), errs.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// good fails the test unless the program ended well.
func (o outcome) good(t *testing.T) outcome {
	t.Helper()
	if o.code != 0 {
		t.Fatalf("exit code %d, standard error:\n%s", o.code, o.stderr)
	}
	return o
}

// sentence is the one line of standard error of a program that must end with code.
func (o outcome) sentence(t *testing.T, code int) string {
	t.Helper()
	text := strings.TrimSuffix(o.stderr, "\n")
	if o.code != code || !strings.HasPrefix(text, "dgr: ") || strings.Contains(text, "\n") || strings.Contains(text, "goroutine ") {
		t.Errorf("exit code %d and standard error %q; want %d and one sentence", o.code, o.stderr, code)
	}
	return text
}

func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q does not say %q", text, word)
		}
	}
}

// announced is what a ready worker says of itself.
type announced struct {
	ID      string `json:"worker_id"`
	Address string `json:"address"`
	Admin   string `json:"admin"`
	Layers  string `json:"layers"`
	PID     int    `json:"pid"` // from dgr up alone
}

// worker is a dgr-worker that the test started by itself.
type worker struct {
	*process
	announced
}

// startWorker starts a worker that may dial any other on this machine, and waits until it is ready.
func startWorker(t *testing.T, model, layers string, more ...string) *worker {
	t.Helper()
	args := append([]string{
		"--model", model, "--layers", layers, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--threads", "1", "--drain", "1s",
		"--chain-allow", "127.0.0.1:*", "--announce", "--exit-with-stdin", "--log-level", "warn", "--worker-id", "w" + strings.ReplaceAll(layers, ":", "-"),
	}, more...)
	if strings.HasPrefix(model, "fake") {
		args = append(args, "--engine", "fake")
	}
	w := &worker{process: start(t, "dgr-worker", args...)}
	if err := json.Unmarshal([]byte(w.line()), &w.announced); err != nil {
		t.Fatal(err)
	}
	return w
}

// startRoute starts a worker for each part; the route is in the order given.
func startRoute(t *testing.T, model string, parts ...string) (workers []*worker, route string) {
	t.Helper()
	var addresses []string
	for _, part := range parts {
		w := startWorker(t, model, part)
		workers, addresses = append(workers, w), append(addresses, w.Address)
	}
	return workers, strings.Join(addresses, ",")
}

// begin starts a run and returns once its first text has come.
func begin(t *testing.T, args ...string) *process {
	t.Helper()
	p := start(t, "dgr", append([]string{"run"}, args...)...)
	if _, err := io.ReadFull(p.out, make([]byte, 1)); err != nil {
		t.Fatalf("no text came: %v; standard error:\n%s", err, p.stderr())
	}
	return p
}

// gone waits until the process with this id is no more.
func gone(t *testing.T, pid int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); alive(pid); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still running", pid)
		}
	}
}

// alive says whether a process runs; one that ended and was not reaped does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !os.IsNotExist(err)
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}
