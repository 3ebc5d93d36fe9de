//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// running is a started `dgr up --json`.
type running struct {
	*process
	Route   string
	Workers []announced
}

func startUp(t *testing.T, args ...string) *running {
	t.Helper()
	u := &running{process: start(t, "dgr", append([]string{"up", "--json"}, args...)...)}
	if err := json.Unmarshal([]byte(u.line()), u); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		for _, w := range u.Workers {
			gone(t, w.PID)
		}
	})
	return u
}

func TestUpServesAndStopsWithASignal(t *testing.T) {
	u := startUp(t, "--model", "fake:layers=7", "--workers", "3")
	var layers []string
	for _, w := range u.Workers {
		layers = append(layers, w.Layers)
	}
	if got := strings.Join(layers, " "); got != "0:3 3:5 5:7" && got != "0:2 2:4 4:7" && got != "0:2 2:5 5:7" && got != "0:3 3:6 6:7" {
		t.Errorf("the layers are cut as %s", got)
	}
	run(t, "", "run", "--route", u.Route, "-p", "x", "-n", "5").good(t)
	u.signal(os.Interrupt)
	if code := u.wait(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	for _, w := range u.Workers {
		if alive(w.PID) {
			t.Errorf("worker %s still runs when dgr up has ended", w.ID)
		}
	}
}

func TestUpTakesLayersAndPrintsHowToGoOn(t *testing.T) {
	p := start(t, "dgr", "up", "--model", "fake:layers=4", "--layers", "0:3,3:", "--context", "64")
	var text strings.Builder
	for !strings.Contains(text.String(), "Ctrl-C") {
		text.WriteString(p.line() + "\n")
	}
	says(t, text.String(), "0:3", "3:4", "dgr run --route 127.0.0.1:")
	_, after, _ := strings.Cut(text.String(), "--route ")
	route, _, _ := strings.Cut(after, " ")
	o := run(t, "", "run", "--route", route, "-p", "x", "-n", "100")
	says(t, o.sentence(t, 1), "CONTEXT_OVERFLOW", "64")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestKilledUpLeavesNoWorker(t *testing.T) {
	u := startUp(t, "--model", "fake:layers=4", "--workers", "2")
	u.signal(syscall.SIGKILL)
	u.wait()
	for _, w := range u.Workers {
		gone(t, w.PID)
	}
}

func TestUpNamesTheWorkerThatDied(t *testing.T) {
	u := startUp(t, "--model", "fake:layers=4", "--workers", "2")
	if err := syscall.Kill(u.Workers[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code := u.wait()
	rest, _ := io.ReadAll(u.out)
	var object struct{ Error struct{ Message string } }
	if err := json.Unmarshal(rest, &object); err != nil || code != 1 {
		t.Fatalf("exit code %d, %q, %v", code, rest, err)
	}
	says(t, object.Error.Message, "worker 2 of 2", "layers 2:4", "killed")
	if alive(u.Workers[0].PID) {
		t.Error("the other worker still runs")
	}
}

func TestUpThatCannotStartLeavesNothing(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.gguf")
	if err := os.WriteFile(broken, []byte("GGUF\x03\x00\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"missing file":      {[]string{"--model", "none.gguf"}, []string{"none.gguf", "BAD_MODEL_FILE"}},
		"truncated file":    {[]string{"--model", broken}, []string{"broken.gguf", "BAD_MODEL_FILE"}},
		"load fails":        {[]string{"--model", "fake:script=load fail ENGINE_OUT_OF_MEMORY"}, []string{"worker ", "of 2", "exit status 1"}},
		"no worker program": {[]string{"--model", "fake", "--worker-binary", filepath.Join(empty, "dgr-worker")}, []string{"--worker-binary"}},
		"not ready in time": {[]string{"--model", "fake:script=load stuck", "--ready-timeout", "300ms"}, []string{"not ready", "--ready-timeout"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := run(t, "", append([]string{"up"}, c.args...)...)
			says(t, o.sentence(t, 1), c.says...)
			if o.stdout != "" {
				t.Errorf("standard output is %q", o.stdout)
			}
		})
	}
}

func TestUpShowsHowFarALoadIs(t *testing.T) {
	p := start(t, "dgr", "up", "--model", "fake:layers=4,script=load slow 3s", "--workers", "2")
	if head := p.line(); !strings.HasPrefix(head, "hop") {
		t.Errorf("the table begins with %q", head)
	}
	says(t, p.stderr(), "layers 0:2 | reading weights", "layers 2:4 | reading weights")
	p.signal(os.Interrupt)
	p.wait()
}

func TestDemoShowsWhatRanWhere(t *testing.T) {
	o := run(t, "", "demo", "--model", "fake:layers=4", "-n", "20").good(t)
	says(t, o.stdout, "2 workers", "A shard is", "0:2", "2:4", "ms a token", "dgr up")
	o = run(t, "", "demo", "--model", "fake:layers=4", "--prompt", "A worker", "-n", "20", "--workers", "3", "--json").good(t)
	var object struct {
		Prompt string
		Answer struct {
			Text   string
			Tokens int
		}
		Workers []announced
	}
	if err := json.Unmarshal([]byte(o.stdout), &object); err != nil || object.Prompt != "A worker" || object.Answer.Tokens != 20 || len(object.Workers) != 3 {
		t.Fatalf("%q, %v", o.stdout, err)
	}
	for _, w := range object.Workers {
		if alive(w.PID) {
			t.Errorf("worker %s still runs when the demo has ended", w.ID)
		}
	}
	if object.Answer.Text == "" {
		t.Error("the demo says nothing")
	}
}

func TestWorkerKilledUnderTheDemoIsNamedWithinTwoSeconds(t *testing.T) {
	for index, layers := range []string{"0:2", "2:4"} {
		t.Run("hop_"+strconv.Itoa(index), func(t *testing.T) {
			p := start(t, "dgr", "demo", "--model", "fake:layers=4,script=step slow 5ms", "-n", "1000")
			var pids []int
			for line := p.line(); line != ""; line = p.line() { // an empty line ends the table
				var hop, pid int
				var part string
				if n, _ := fmt.Sscan(line, &hop, &part, &pid); n == 3 {
					pids = append(pids, pid)
				}
			}
			if len(pids) != 2 {
				t.Fatalf("the table shows the processes %v", pids)
			}
			if _, err := io.ReadFull(p.out, make([]byte, len("A shard is and more"))); err != nil {
				t.Fatal(err)
			}
			before := time.Now()
			if err := syscall.Kill(pids[index], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			code := p.wait()
			if took := time.Since(before); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			says(t, outcome{stderr: p.stderr(), code: code}.sentence(t, 1), "DOWNSTREAM_LOST", "hop "+strconv.Itoa(index), "layers "+layers)
			for _, pid := range pids {
				if alive(pid) {
					t.Errorf("process %d still runs", pid)
				}
			}
		})
	}
}
