package rpc

import (
	"bytes"
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

// textService is TextService.
type textService struct {
	workerpb.UnimplementedTextServiceServer
	server *Server
}

// text is the vocabulary of the model that the caller means.
func (t *textService) text(fingerprint []byte) (engine.TextEngine, error) {
	l := t.server.options.Shard.Status().Loaded
	switch {
	case len(fingerprint) != 32:
		return nil, session.Malformed("fingerprint", "32 bytes")
	case l == nil:
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_NOT_READY, "worker %s", t.server.options.WorkerID)
	case !bytes.Equal(fingerprint, l.Fingerprint[:]):
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH, "worker %s holds the model %x, the caller means %x",
			t.server.options.WorkerID, l.Fingerprint[:6], fingerprint[:6])
	}
	return l.Text, nil
}

func (t *textService) Tokenize(ctx context.Context, r *workerpb.TokenizeRequest) (*workerpb.TokenizeResponse, error) {
	text, err := t.text(r.GetFingerprint())
	if err != nil {
		return nil, err
	}
	ids, err := text.Tokenize(ctx, r.GetText(), r.GetAddSpecial(), r.GetParseSpecial())
	if err != nil {
		return nil, err
	}
	answer := &workerpb.TokenizeResponse{Tokens: make([]uint32, len(ids))}
	for i, id := range ids {
		answer.Tokens[i] = uint32(id)
	}
	return answer, nil
}

func (t *textService) Detokenize(ctx context.Context, r *workerpb.DetokenizeRequest) (*workerpb.DetokenizeResponse, error) {
	text, err := t.text(r.GetFingerprint())
	if err != nil {
		return nil, err
	}
	ids := make([]engine.TokenID, len(r.GetTokens()))
	for i, id := range r.GetTokens() {
		ids[i] = engine.TokenID(id)
	}
	data, err := text.Detokenize(ctx, ids, r.GetSpecial())
	return &workerpb.DetokenizeResponse{Data: data}, err
}

func (t *textService) RenderChat(_ context.Context, r *workerpb.RenderChatRequest) (*workerpb.RenderChatResponse, error) {
	return nil, t.noChat(r.GetFingerprint())
}

func (t *textService) ParseChat(_ context.Context, r *workerpb.ParseChatRequest) (*workerpb.ParseChatResponse, error) {
	return nil, t.noChat(r.GetFingerprint())
}

// noChat says why no chat is rendered: the model cannot, or this version.
func (t *textService) noChat(fingerprint []byte) error {
	text, err := t.text(fingerprint)
	if err != nil {
		return err
	}
	if !text.HasChatTemplate() {
		return fault.New(workerpb.ErrorCode_ERROR_CODE_NO_TEMPLATE, "")
	}
	return fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "text.chat is OFF in this version; render the prompt yourself")
}
