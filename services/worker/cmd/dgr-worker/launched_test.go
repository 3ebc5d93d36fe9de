package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// actAsWorker makes this test program the worker itself, so that tests run the real binary's main in a process of its own.
const actAsWorker = "DGR_TEST_ACT_AS_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(actAsWorker) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// bound is how long a test waits for a process; nothing here takes nearly as long.
const bound = 30 * time.Second

// launched is a worker process.
type launched struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr spoken
	timer  *time.Timer
	waited bool
}

// spoken is what a process has written to standard error so far.
type spoken struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed at the next Write
}

func (s *spoken) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
	return s.text.Write(p)
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// next returns what was written and a channel that is closed when there is more.
func (s *spoken) next() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		s.more = make(chan struct{})
	}
	return s.text.String(), s.more
}

// says waits until standard error holds words.
func (c *launched) says(words string) {
	c.t.Helper()
	late := time.After(bound)
	for {
		text, more := c.stderr.next()
		if strings.Contains(text, words) {
			return
		}
		select {
		case <-more:
		case <-late:
			c.t.Fatalf("it never said %q: %s", words, text)
		}
	}
}

// field waits for a log line with the message and returns one of its fields.
func (c *launched) field(message, key string) string {
	c.t.Helper()
	c.says("msg=" + message + " ")
	for line := range strings.Lines(c.stderr.String()) {
		if _, rest, ok := strings.Cut(line, " "+key+"="); ok && strings.Contains(line, "msg="+message+" ") {
			value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			return value
		}
	}
	c.t.Fatalf("no %s in the line %q: %s", key, message, c.stderr.String())
	return ""
}

// start runs the worker with args. It is killed, and waited for, at the end of the test.
func start(t *testing.T, environ []string, args ...string) *launched {
	t.Helper()
	c := &launched{t: t, cmd: exec.Command(os.Args[0], args...)}
	c.cmd.Env = append([]string{actAsWorker + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, environ...)
	c.cmd.Stderr = &c.stderr
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdout = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.timer = time.AfterFunc(bound, func() { _ = c.cmd.Process.Kill() })
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // most are gone by now
		c.exit()
	})
	return c
}

// faked are the arguments of a worker with the fake engine on free ports.
func faked(more ...string) []string {
	return append([]string{"--engine", "fake", "--model", "fake:layers=5", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--announce"}, more...)
}

// ready waits for the announcement.
func (c *launched) ready() announcement {
	c.t.Helper()
	line, err := c.stdout.ReadString('\n')
	if err != nil {
		c.t.Fatalf("no announcement: %v; exit %d: %s", err, c.exit(), c.stderr.String())
	}
	var a announcement
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
	return a
}

// exit waits for the process and returns its exit code; −1 after a signal.
func (c *launched) exit() int {
	c.t.Helper()
	if !c.waited {
		c.waited = true
		_, _ = io.Copy(io.Discard, c.stdout) // Wait must not close the pipe under a reader
		_ = c.cmd.Wait()                     // the code below says it all
		c.timer.Stop()
	}
	return c.cmd.ProcessState.ExitCode()
}

func (c *launched) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// sentences are the lines of standard error that are no log.
func (c *launched) sentences() []string {
	var lines []string
	for line := range strings.Lines(c.stderr.String()) {
		if strings.HasPrefix(line, "dgr-worker: ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// fails waits for the exit and checks that the process said nothing but one sentence with all words.
func (c *launched) fails(code int, words ...string) {
	c.t.Helper()
	if got := c.exit(); got != code {
		c.t.Errorf("exit code %d, want %d", got, code)
	}
	text := c.stderr.String()
	if strings.Count(text, "\n") != 1 || len(c.sentences()) != 1 {
		c.t.Errorf("standard error is not one sentence:\n%s", text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			c.t.Errorf("standard error does not hold %q:\n%s", w, text)
		}
	}
}

// get asks the admin port.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: bound, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}
