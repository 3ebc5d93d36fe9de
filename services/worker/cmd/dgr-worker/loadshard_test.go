package main

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// shardService is the operator's side of a worker.
func shardService(t *testing.T, address string) workerpb.ShardServiceClient {
	t.Helper()
	conn, err := dial.Open(address, dial.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return workerpb.NewShardServiceClient(conn)
}

// load loads a model and returns the last progress.
func load(ctx context.Context, s workerpb.ShardServiceClient, r *workerpb.LoadShardRequest) (*workerpb.LoadShardResponse, error) {
	stream, err := s.LoadShard(ctx, r)
	if err != nil {
		return nil, err
	}
	var last *workerpb.LoadShardResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return last, fault.FromStatus(err)
		}
		last = m
	}
}

func TestLoadUnloadDrainOverTheWire(t *testing.T) {
	busy := shardService(t, start(t, nil, faked()...).ready().Address)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	request := &workerpb.LoadShardRequest{Model: "fake:layers=3", First: proto.Uint32(1)}
	if _, err := load(ctx, busy, request); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_LOAD_IN_PROGRESS)) {
		t.Errorf("a load on a loaded worker: %v", err)
	}
	for range 2 { // idempotent
		if r, err := busy.UnloadShard(ctx, &workerpb.UnloadShardRequest{}); err != nil || r.GetState() != workerpb.ShardState_SHARD_STATE_UNLOADED {
			t.Fatalf("unload: %v %v", r, err)
		}
	}
	wrong := &workerpb.LoadShardRequest{Model: "fake:layers=3", First: proto.Uint32(1), Fingerprint: make([]byte, 32)}
	if _, err := load(ctx, busy, wrong); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH)) {
		t.Errorf("another fingerprint: %v", err)
	}
	last, err := load(ctx, busy, request)
	if err != nil || last.GetProgress().GetPhase() != workerpb.LoadPhase_LOAD_PHASE_READY || len(last.GetFingerprint()) != 32 {
		t.Fatalf("load: %v %v", last, err)
	}
	drained, err := busy.Drain(ctx, &workerpb.DrainRequest{Budget: durationpb.New(time.Minute)})
	if err != nil || drained.GetError() != nil || drained.GetSessions() != 0 {
		t.Errorf("drain: %v %v", drained, err)
	}
}

func TestAnnouncesWhatWasLoadedLater(t *testing.T) {
	c := start(t, nil, "--engine", "fake", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--announce", "--log-level", "debug")
	address := c.field("listening", "address")
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := load(ctx, shardService(t, address), &workerpb.LoadShardRequest{Model: "fake:layers=3", First: proto.Uint32(0), End: proto.Uint32(2)}); err != nil {
		t.Fatal(err)
	}
	if a := c.ready(); a.Address != address || a.Layers != "0:2" {
		t.Errorf("announced %+v", a)
	}
}

// The end of the stream cancels the load.
func TestLoadThatNobodyWantsAnyMore(t *testing.T) {
	c := start(t, nil, "--engine", "fake", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "debug")
	s := shardService(t, c.field("listening", "address"))
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	stream, err := s.LoadShard(ctx, &workerpb.LoadShardRequest{Model: "fake:script=load stuck", First: proto.Uint32(0)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	c.says("event=CancelLoad to=UNLOADED")
}
