package up

import (
	"bufio"
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

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// workerName is the worker's program.
const workerName = "dgr-worker"

// Worker is one started worker.
type Worker struct {
	ID          string `json:"worker_id"`
	Address     string `json:"address"` // HOST:PORT of gRPC
	Admin       string `json:"admin"`   // HOST:PORT of HTTP
	Layers      string `json:"layers"`  // FIRST:END
	Fingerprint string `json:"fingerprint"`
	NLayer      uint32 `json:"n_layer"`
	PID         int    `json:"pid"`
}

// child is a worker's process. It ends with its standard input, so it never outlives this process.
type child struct {
	part    engine.LayerRange
	cmd     *exec.Cmd
	stdin   io.Closer
	ready   chan Worker   // its announcement; at most one
	gone    chan struct{} // closed once the process has ended and all it wrote was read
	err     error         // how it ended; valid once gone
	stopped func()        // asks it to end, once

	mu   sync.Mutex
	last string // message of the last line that it logged
	own  string // last line of those that are meant for a person
}

// entry is a line of a worker's log.
type entry struct {
	Message string `json:"msg"`
	// of the message `loading`, bytes; Total 0: unknown
	Phase string `json:"phase"`
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

// find is the worker's program: the one that was named, the one beside this program, or the first of $PATH.
func find(named string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("the worker program %s cannot be run (%w); give --worker-binary the path of dgr-worker", named, err)
		}
		return path, nil
	}
	if self, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(self); err == nil {
			self = resolved
		}
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), workerName)); err == nil {
			return path, nil
		}
	}
	path, err := exec.LookPath(workerName)
	if err != nil {
		return "", fmt.Errorf("dgr-worker is neither beside dgr nor in $PATH; install it, or give --worker-binary its path")
	}
	return path, nil
}

// start runs a worker. log gets every line that it writes to standard error, and what the line says where it is of the log.
func start(binary string, args, environ []string, part engine.LayerRange, log func(string, entry)) (*child, error) {
	c := &child{part: part, ready: make(chan Worker, 1), gone: make(chan struct{})}
	c.cmd = exec.Command(binary, args...)
	c.cmd.Env = environ
	c.cmd.SysProcAttr = ownGroup() // a Ctrl-C is for dgr, which ends its workers in order
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("the worker program %s cannot be started: %w", binary, err)
	}
	c.stopped = sync.OnceFunc(func() {
		_ = c.cmd.Process.Signal(syscall.SIGTERM) // where there are no signals, the end of its input says the same
		_ = c.stdin.Close()
	})
	var reading sync.WaitGroup
	reading.Go(func() { c.announcements(stdout) })
	reading.Go(func() { c.lines(stderr, log) })
	go func() {
		reading.Wait()
		c.err = c.cmd.Wait()
		_ = c.stdin.Close()
		close(c.gone)
	}()
	return c, nil
}

// announcements reads standard output: one JSON line once the shard is ready.
func (c *child) announcements(r io.Reader) {
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		var w Worker
		if json.Unmarshal(scanner.Bytes(), &w) == nil && w.Address != "" {
			w.PID = c.cmd.Process.Pid
			select {
			case c.ready <- w:
			default:
			}
		}
	}
	_, _ = io.Copy(io.Discard, r) // after a line too long for the scanner; the worker must not block
}

func (c *child) lines(r io.Reader, log func(string, entry)) {
	reader := bufio.NewReaderSize(r, 4096)
	for {
		text, isPrefix, err := reader.ReadLine()
		if err != nil {
			return
		}
		line := strings.TrimSpace(string(text))
		if line == "" || isPrefix {
			continue
		}
		var said entry
		if json.Unmarshal(text, &said) != nil || said.Message == "" {
			said = entry{Message: line}
		}
		c.mu.Lock()
		c.last = said.Message
		if own, ok := strings.CutPrefix(line, workerName+": "); ok {
			c.own = own
		}
		c.mu.Unlock()
		log(line, said)
	}
}

// epitaph is how the process ended, with the last thing that it said. Valid once gone.
func (c *child) epitaph() string {
	how := "exit code 0"
	var exit *exec.ExitError
	if errors.As(c.err, &exit) {
		how = exit.ProcessState.String()
	} else if c.err != nil {
		how = c.err.Error()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.own != "":
		return fmt.Sprintf("%s: %s", how, c.own)
	case c.last != "":
		return fmt.Sprintf("%s; its last line: %s", how, c.last)
	}
	return how
}

// end waits until the process has ended; when ctx ends before it, it is killed.
func (c *child) end(ctx context.Context) {
	select {
	case <-c.gone:
	case <-ctx.Done():
		_ = c.cmd.Process.Kill()
		<-c.gone
	}
}
