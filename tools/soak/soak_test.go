package soak

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A short soak: what is used comes back, and the table says so.
func TestAllComesBack(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "dgr-worker")
	build := exec.Command("go", "build", "-o", program, "github.com/distributed-gguf-runtime/dgr/services/worker/cmd/dgr-worker")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build dgr-worker: %v\n%s", err, out)
	}
	var told bytes.Buffer
	err := Run(t.Context(), Options{Worker: program, Sessions: 60, Duration: 5 * time.Second, Seed: 7, Out: &told})
	t.Log(told.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"BEFORE", "goroutines", "second hop", "as asked"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
}

func TestWhatDoesNotComeBackIsNamed(t *testing.T) {
	t.Parallel()
	text := `# HELP go_goroutines n
go_goroutines 10
process_open_fds 8
process_resident_memory_bytes 1e+07
dgr_worker_buffered_bytes 0
dgr_worker_sessions 0
dgr_worker_engine_sessions 0
dgr_worker_engine_cache_reserved_tokens 0
`
	before, err := parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := compare([]figures{before}, []figures{before}); err != nil {
		t.Errorf("what came back is called missing: %v", err)
	}
	for was, is := range map[string]string{
		"go_goroutines 10": "go_goroutines 27", "process_open_fds 8": "process_open_fds 13", "buffered_bytes 0": "buffered_bytes 1",
		"engine_sessions 0": "engine_sessions 1", "memory_bytes 1e+07": "memory_bytes 1e+08",
		"tokens 0\n": "tokens 0\ndgr_worker_impossible_transitions_total{table=\"session\",state=\"a\",event=\"b\"} 1\n",
	} {
		after, err := parse(strings.NewReader(strings.Replace(text, was, is, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if err := compare([]figures{before}, []figures{after}); err == nil {
			t.Errorf("%s is not noticed", is)
		}
	}
	if _, err := parse(strings.NewReader("go_goroutines 1\n")); err == nil {
		t.Errorf("missing metrics are not noticed")
	}
}
