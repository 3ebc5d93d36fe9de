//go:build llama && cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

// real are the arguments of a worker with llama.cpp on free ports. One thread: the models are tiny.
func real(more ...string) []string {
	return append([]string{"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--announce", "--threads", "1", "--chain-allow", "127.0.0.1:*"}, more...)
}

// write writes a tiny model into folder; claim, if not empty, is the architecture that its header names.
func write(t *testing.T, folder, claim string) string {
	t.Helper()
	spec, err := tiny.Default("llama")
	if err != nil {
		t.Fatal(err)
	}
	spec.Claim = claim
	path := filepath.Join(folder, "tiny.gguf")
	if err := tiny.Write(t.Context(), path, spec); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLlamaRouteSaysWhatOneWorkerSays(t *testing.T) {
	const n = 16
	path := write(t, t.TempDir(), "")
	whole := start(t, nil, real("--model", path)...).ready()
	head := start(t, nil, real("--model", path, "--layers", "0:1")...)
	tail := start(t, nil, real("--model", path, "--layers", "1:")...)
	want, err := take(t, generate(t, open(t, whole), n), n)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := take(t, generate(t, open(t, head.ready(), tail.ready()), n), n); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// A worker needs the file of its own shard alone, and is known to serve the same model.
func TestLlamaServesShardsFromTheirOwnFiles(t *testing.T) {
	const n = 16
	path := write(t, t.TempDir(), "")
	whole := start(t, nil, real("--model", path)...).ready()
	m, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := gguf.HashModel(t.Context(), m, nil)
	if err != nil {
		t.Fatal(err)
	}
	var route []announcement
	for _, layers := range []engine.LayerRange{{First: 0, End: 1}, {First: 1}} {
		shard := filepath.Join(t.TempDir(), "shard.gguf")
		if _, err := m.WriteShard(t.Context(), manifest, gguf.Shard{Path: shard, Layers: layers}, nil); err != nil {
			t.Fatal(err)
		}
		route = append(route, start(t, nil, real("--model", shard)...).ready())
		start(t, nil, real("--model", shard, "--layers", "0:4")...).fails(exitFailed, "is a shard that holds")
	}
	if route[0].Layers != "0:1" || route[1].Layers != "1:4" || route[0].Fingerprint != whole.Fingerprint || route[1].Fingerprint != whole.Fingerprint {
		t.Errorf("announced %+v; the whole model is %+v", route, whole)
	}
	want, err := take(t, generate(t, open(t, whole), n), n)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := take(t, generate(t, open(t, route...), n), n); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestLlamaRelaySaysWhatARouteSays(t *testing.T) {
	path := write(t, t.TempDir(), "")
	var chained, apart []announcement
	for _, layers := range []string{"0:1", "1:3", "3:"} {
		chained = append(chained, start(t, nil, real("--model", path, "--layers", layers)...).ready())
		apart = append(apart, start(t, nil, real("--model", path, "--layers", layers, "--chain-allow", "")...).ready())
	}
	sameThroughARelay(t, chained, apart)
}

func TestLlamaLoadsFromTheStore(t *testing.T) {
	store := t.TempDir()
	write(t, store, "")
	c := start(t, nil, real("--store", store, "--log-level", "debug")...)
	s := shardService(t, c.field("listening", "address"))
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := load(ctx, s, &workerpb.LoadShardRequest{Model: "../tiny", First: proto.Uint32(0)}); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_MALFORMED)) {
		t.Errorf("a path: %v", err)
	}
	if _, err := load(ctx, s, &workerpb.LoadShardRequest{Model: "none", First: proto.Uint32(0)}); !errors.Is(err, engine.BadModelFile) {
		t.Errorf("no such model: %v", err)
	}
	if _, err := load(ctx, s, &workerpb.LoadShardRequest{Model: "tiny", First: proto.Uint32(2)}); err != nil {
		t.Fatal(err)
	}
	if a := c.ready(); a.Layers != "2:4" {
		t.Errorf("announced %+v", a)
	}
}

func TestLlamaRefusesAnArchitecture(t *testing.T) {
	start(t, nil, real("--model", write(t, t.TempDir(), "mamba"))...).fails(exitFailed, "mamba")
}

// Compute threads must not wait busily, unless somebody asked for it.
func TestLlamaWaitsCalmly(t *testing.T) {
	path := write(t, t.TempDir(), "")
	for said, want := range map[string]string{"A=1": "GOMP_SPINCOUNT=1000", "GOMP_SPINCOUNT=7": "GOMP_SPINCOUNT=7", "OMP_WAIT_POLICY=active": ""} {
		c := start(t, []string{said}, real("--model", path)...)
		c.ready()
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.cmd.Process.Pid))
		if err != nil {
			t.Skipf("what a process was given cannot be seen on this system: %v", err)
		}
		got := ""
		for entry := range strings.SplitSeq(string(environ), "\x00") {
			if strings.HasPrefix(entry, "GOMP_SPINCOUNT=") {
				got = entry
			}
		}
		if got != want {
			t.Errorf("told %s it runs with %q, want %q", said, got, want)
		}
	}
}
