//go:build unix && llama

package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
)

// storiesText is what llama.cpp continues greedily, unsplit.
const storiesText = ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. She " +
	"wanted to play with it, but it was too high."

// stories is the path of stories260K.gguf, which is not the project's to ship.
func stories(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../../../shared/models/stories260K.gguf")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Skipf("no trained model to try: %v", err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != "270cba1bd5109f42d03350f60406024560464db173c0e387d91f0426d3bd256d" {
		t.Skipf("%s is another file than the one whose text is known", path)
	}
	return path
}

func TestTrainedModelSaysTheSameOverAnyNumberOfWorkers(t *testing.T) {
	model := stories(t)
	for _, workers := range []int{1, 2, 3, 5} {
		u := startUp(t, "--model", model, "--workers", strconv.Itoa(workers))
		if len(u.Workers) != workers {
			t.Fatalf("%d workers, want %d", len(u.Workers), workers)
		}
		o := run(t, "", "run", "--route", u.Route, "-p", "Once upon a time", "-n", "64").good(t)
		if !strings.HasPrefix(o.stdout, storiesText) {
			t.Errorf("over %d workers: %q, want %q and more", workers, o.stdout, storiesText)
		}
		u.signal(os.Interrupt)
		if code := u.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestKilledNativeWorkerIsNamedWithinTwoSeconds(t *testing.T) {
	model := stories(t)
	for index := range 3 {
		u := startUp(t, "--model", model, "--workers", "3")
		p := begin(t, "--route", u.Route, "-p", "Once upon a time", "-n", "2000")
		before := time.Now()
		if err := syscall.Kill(u.Workers[index].PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		code := p.wait()
		if took := time.Since(before); took > 2*time.Second {
			t.Errorf("hop %d: it took %v", index, took)
		}
		rest, _ := io.ReadAll(p.out)
		says(t, outcome{string(rest), p.stderr(), code}.sentence(t, 1), "DOWNSTREAM_LOST", "hop "+strconv.Itoa(index), u.Workers[index].Address)
		if code := u.wait(); code != 1 {
			t.Errorf("dgr up ended with %d when a worker was killed", code)
		}
	}
}

func TestHandbookPromptsAreContinuedAsPinned(t *testing.T) {
	prompts, err := handbook.Prompts()
	if err != nil {
		t.Fatal(err)
	}
	path, err := handbook.WriteFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	u := startUp(t, "--model", path, "--workers", "2")
	for _, p := range prompts {
		o := run(t, "", "run", "--route", u.Route, "-p", p.Prompt, "-n", strconv.Itoa(p.Tokens)).good(t)
		if o.stdout != p.Continuation+"\n" {
			t.Errorf("%q is continued by %q, want %q", p.Prompt, o.stdout, p.Continuation)
		}
	}
}

func TestDemoReadsTheHandbook(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	o := run(t, "", "demo", "-n", "60").good(t)
	says(t, o.stdout, "A shard is", "0:", "ms a token", "handbook-")
}

func TestTwoModelsOnOneRoute(t *testing.T) {
	path, err := handbook.WriteFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a, b := startWorker(t, path, "0:3"), startWorker(t, stories(t), "3:5")
	o := run(t, "", "run", "--route", a.Address+","+b.Address, "-p", "x")
	says(t, o.sentence(t, 1), "SHARD_MISMATCH", a.Address, b.Address)
}
