package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// shardService is ShardService.
type shardService struct {
	workerpb.UnimplementedShardServiceServer
	server *Server
}

// LoadShard loads a model of the store; the end of the stream cancels it.
func (s *shardService) LoadShard(r *workerpb.LoadShardRequest, stream grpc.ServerStreamingServer[workerpb.LoadShardResponse]) error {
	order, err := s.order(r)
	if err != nil {
		return err
	}
	var lost error
	send := func(m *workerpb.LoadShardResponse) {
		if lost == nil {
			lost = stream.Send(m)
		}
	}
	err = s.server.options.Shard.Load(stream.Context(), order, func(status shard.Status) {
		if status.State == tables.ShardLoading {
			send(&workerpb.LoadShardResponse{Progress: progressOf(status)})
		}
	})
	if err != nil {
		return shard.Named(err, order.Model)
	}
	last := &workerpb.LoadShardResponse{Progress: &workerpb.LoadProgress{Phase: workerpb.LoadPhase_LOAD_PHASE_READY}}
	if l := s.server.options.Shard.Status().Loaded; l != nil {
		last.Fingerprint = l.Fingerprint[:]
	}
	send(last)
	return lost
}

// order checks a request.
func (s *shardService) order(r *workerpb.LoadShardRequest) (shard.Order, error) {
	malformed := func(path, expected string) (shard.Order, error) {
		return shard.Order{}, session.Malformed(path, expected)
	}
	if err := s.server.strict(r); err != nil {
		return shard.Order{}, err
	}
	switch {
	case r.GetModel() == "" || len(r.GetModel()) > 256:
		return malformed("model", "a name of 1 to 256 bytes")
	case r.First == nil:
		return malformed("first", "present")
	case r.End != nil && r.GetEnd() <= r.GetFirst():
		return malformed("end", "greater than first, or absent")
	case len(r.GetFingerprint()) != 0 && len(r.GetFingerprint()) != 32:
		return malformed("fingerprint", "32 bytes or absent")
	case s.server.options.Store == nil:
		return shard.Order{}, fault.New(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, "worker %s has no model store", s.server.options.WorkerID)
	}
	order, err := s.server.options.Store.Order(r.GetModel())
	if err != nil {
		return shard.Order{}, err
	}
	order.Layers = engine.LayerRange{First: r.GetFirst(), End: r.GetEnd()}
	if len(r.GetFingerprint()) == 32 {
		want := [32]byte(r.GetFingerprint())
		order.Fingerprint = &want
	}
	return order, nil
}

func (s *shardService) UnloadShard(ctx context.Context, _ *workerpb.UnloadShardRequest) (*workerpb.UnloadShardResponse, error) {
	if err := s.server.options.Shard.Unload(ctx); err != nil {
		return nil, err
	}
	return &workerpb.UnloadShardResponse{State: stateOf(s.server.options.Shard.Status().State)}, nil
}

func (s *shardService) Drain(_ context.Context, r *workerpb.DrainRequest) (*workerpb.DrainResponse, error) {
	budget := time.Duration(-1) // as configured
	if r.GetBudget() != nil {
		if r.GetBudget().CheckValid() != nil || r.GetBudget().AsDuration() < 0 {
			return nil, session.Malformed("budget", "0 s or more")
		}
		budget = r.GetBudget().AsDuration()
	}
	status, err := s.server.options.Shard.Drain(budget)
	answer := &workerpb.DrainResponse{
		State: stateOf(status.State), Left: durationpb.New(status.DrainLeft),
		Sessions: proto.Uint32(uint32(s.server.options.Directory.Sessions())),
	}
	if err != nil {
		answer.Error = fault.Of(s.server.typed(err)).Proto()
	}
	return answer, nil
}
