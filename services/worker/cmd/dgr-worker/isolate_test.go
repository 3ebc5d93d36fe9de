//go:build llama && cgo && linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	client "github.com/distributed-gguf-runtime/dgr/libs/client/worker"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// engineOf is the process of a worker's engine.
func engineOf(t *testing.T, worker int) (engine int) {
	t.Helper()
	require.Eventually(t, func() bool {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", worker))
		require.NoError(t, err)
		for _, list := range lists {
			children, err := os.ReadFile(list)
			if first := strings.Fields(string(children)); err == nil && len(first) > 0 {
				engine, err = strconv.Atoi(first[0])
				require.NoError(t, err)
			}
		}
		return engine != 0
	}, bound, 5*time.Millisecond, "the worker has no process of an engine")
	return engine
}

// The loss of the engine's process costs the sessions and not the worker.
func TestLlamaEngineIsKilled(t *testing.T) {
	path := write(t, t.TempDir(), "")
	c := start(t, nil, real("--model", path)...)
	worker := c.ready()
	const n = 8
	want, err := take(t, generate(t, open(t, worker), n), n)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := client.Open(worker.Address, dial.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	instance := func() []byte {
		t.Helper()
		able, err := peer.Capability(t.Context())
		if err != nil {
			t.Fatalf("the worker does not say what it is: %v", err)
		}
		return able.GetInstance()
	}
	for what, strike := range map[string]func(pid int){
		"killed while idle": func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) },
		"aborted while a run goes on": func(pid int) {
			run := generate(t, open(t, worker), 200)
			if _, err := take(t, run, 3); err != nil {
				t.Fatal(err)
			}
			_ = syscall.Kill(pid, syscall.SIGABRT)
			if _, err := take(t, run, 200); !errors.Is(err, engine.EngineFault) {
				t.Errorf("the run ended with %v, want ENGINE_FAULT", err)
			}
		},
	} {
		before := instance()
		strike(engineOf(t, c.cmd.Process.Pid))
		require.Eventually(t, func() bool {
			now := instance() // it answers throughout
			health, err := peer.Health(t.Context())
			return err == nil && health.GetReady() && !slices.Equal(before, now)
		}, bound, 10*time.Millisecond, "%s: no new engine serves", what)
		if got, err := take(t, generate(t, open(t, worker), n), n); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: afterwards %v, %v; want %v", what, got, err, want)
		}
	}
}

// Without isolation the worker has no other process.
func TestLlamaInTheWorkersProcess(t *testing.T) {
	path := write(t, t.TempDir(), "")
	const n = 8
	apart, err := take(t, generate(t, open(t, start(t, nil, real("--model", path)...).ready()), n), n)
	if err != nil {
		t.Fatal(err)
	}
	within, err := take(t, generate(t, open(t, start(t, nil, real("--model", path, "--isolate=false")...).ready()), n), n)
	if err != nil || !slices.Equal(apart, within) {
		t.Errorf("%v, %v; want %v", within, err, apart)
	}
}
