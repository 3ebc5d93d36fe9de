package rpc

import (
	"context"
	"runtime/debug"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// workerService is WorkerService.
type workerService struct {
	workerpb.UnimplementedWorkerServiceServer
	server *Server
}

func (w *workerService) GetCapability(context.Context, *workerpb.GetCapabilityRequest) (*workerpb.GetCapabilityResponse, error) {
	return &workerpb.GetCapabilityResponse{Capability: w.server.Capability()}, nil
}

func (w *workerService) GetHealth(context.Context, *workerpb.GetHealthRequest) (*workerpb.GetHealthResponse, error) {
	return &workerpb.GetHealthResponse{Health: w.server.healthNow(w.server.options.Shard.Status())}, nil
}

func (w *workerService) WatchHealth(r *workerpb.WatchHealthRequest, stream grpc.ServerStreamingServer[workerpb.WatchHealthResponse]) error {
	if err := w.server.strict(r); err != nil {
		return err
	}
	for {
		status, changed := w.server.options.Shard.Watch()
		if err := stream.Send(&workerpb.WatchHealthResponse{Health: w.server.healthNow(status)}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Session joins a stream with its session: a goroutine reads, another one writes, and this one sees to their end, also when
// the caller does not take what is written.
func (w *workerService) Session(stream grpc.BidiStreamingServer[workerpb.SessionRequest, workerpb.SessionResponse]) error {
	u := w.server.options.Directory.Stream()
	bound := w.server.options.Handshake
	late := time.AfterFunc(bound, func() {
		w.server.options.Directory.Refuse(u, fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "no open came for %v", bound))
	})
	defer late.Stop()
	var opened atomic.Pointer[workerpb.Open]
	go w.read(stream, u, late, &opened) // ends with the stream, which ends with this handler at the latest
	wrote := make(chan error, 1)
	go func() { wrote <- w.write(stream, u) }() // so does this
	if over, err := w.serve(stream.Context(), u, wrote, &opened); over {
		return err
	}
	stuck := time.NewTimer(w.server.options.SendWait)
	defer stuck.Stop()
	select {
	case err := <-wrote:
		return err
	case <-stuck.C: // the caller does not read
		return u.Status()
	}
}

// serve waits for the end of a stream, and looks now and then whether its caller still may what it does. It is true when the
// last message is out.
func (w *workerService) serve(ctx context.Context, u *live.Upstream, wrote <-chan error, opened *atomic.Pointer[workerpb.Open]) (bool, error) {
	tick := time.NewTicker(w.server.options.RightsChecked)
	defer tick.Stop()
	for {
		select {
		case err := <-wrote:
			return true, err
		case <-u.Over():
			return false, nil
		case <-tick.C:
			if o := opened.Load(); o != nil && w.server.options.Guard != nil {
				if _, err := w.mayOpen(ctx, o); revoked(err) {
					u.End(fault.Of(err))
				}
			}
		}
	}
}

// write sends what the session says, until the stream is to end.
func (w *workerService) write(stream grpc.BidiStreamingServer[workerpb.SessionRequest, workerpb.SessionResponse], u *live.Upstream) error {
	for {
		m, ok := u.Next(stream.Context())
		if !ok {
			break
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if err := u.Status(); err != nil {
		return err
	}
	return stream.Context().Err()
}

// read hands every message on until the stream ends.
func (w *workerService) read(stream grpc.BidiStreamingServer[workerpb.SessionRequest, workerpb.SessionResponse], u *live.Upstream, late *time.Timer, opened *atomic.Pointer[workerpb.Open]) {
	defer u.Ended()
	defer late.Stop()
	defer func() {
		if p := recover(); p != nil {
			w.server.options.Log.Error("reading a stream panicked", "panic", p, "stack", string(debug.Stack()))
			w.server.options.Directory.Refuse(u, fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "worker %s", w.server.options.WorkerID))
		}
	}()
	caller, first, refused := live.Caller{}, true, false
	for {
		m, err := stream.Recv()
		switch {
		case err != nil:
			return
		case refused: // the stream is about to end
			continue
		case first:
			late.Stop()
			first = false
			u.Speaks(m)
			if caller, err = w.mayOpen(stream.Context(), m.GetOpen()); err != nil {
				w.server.options.Directory.Refuse(u, fault.Of(err))
				refused = true
				continue
			}
			opened.Store(m.GetOpen())
			u.From(caller)
		case control(m):
			if exceeded := w.server.options.Quotas.Control(caller.Account); exceeded != nil {
				u.End(exceeded)
				refused = true
				continue
			}
		}
		u.Receive(m)
	}
}

// control says whether a message costs the sender nothing, neither credit nor an answer.
func control(m *workerpb.SessionRequest) bool {
	switch m.GetKind().(type) {
	case *workerpb.SessionRequest_CancelStep, *workerpb.SessionRequest_ReceiveCredit, *workerpb.SessionRequest_Close:
		return true
	}
	return false
}

// mayOpen asks whether the caller may open, as a hop or as a driver, and says who it is.
func (w *workerService) mayOpen(ctx context.Context, o *workerpb.Open) (live.Caller, error) {
	const method = workerpb.WorkerService_Session_FullMethodName
	what := auth.Infer
	if o.GetHeld() != nil || o.GetRing() != nil {
		what = auth.Chain
	}
	who, err := w.server.allow(ctx, method, o.GetOnBehalfOf(), what)
	if err == nil && o.GetOnBehalfOf() != "" {
		_, err = w.server.allow(ctx, method, o.GetOnBehalfOf(), auth.Delegate)
	}
	return live.Caller{Principal: string(who), OnBehalfOf: o.GetOnBehalfOf(), Account: account(ctx, who)}, err
}

func (w *workerService) CancelSession(_ context.Context, r *workerpb.CancelSessionRequest) (*workerpb.CancelSessionResponse, error) {
	err := w.gone(r.GetSessionId(), r.GetSessionKey(), r.Attempt, tables.SessionEventCancelSession)
	return &workerpb.CancelSessionResponse{}, err
}

func (w *workerService) ReleaseSession(_ context.Context, r *workerpb.ReleaseSessionRequest) (*workerpb.ReleaseSessionResponse, error) {
	err := w.gone(r.GetSessionId(), r.GetSessionKey(), r.Attempt, tables.SessionEventReleaseSession)
	return &workerpb.ReleaseSessionResponse{}, err
}

func (w *workerService) gone(id, key []byte, attempt *uint64, event tables.SessionEvent) error {
	switch {
	case len(id) != 16:
		return session.Malformed("session_id", "16 bytes")
	case len(key) != 32:
		return session.Malformed("session_key", "32 bytes")
	}
	if err := w.server.options.Directory.Gone(engine.SessionID(id), key, attempt, event); err != nil {
		return err
	}
	return nil
}

func (w *workerService) GetMetrics(context.Context, *workerpb.GetMetricsRequest) (*workerpb.GetMetricsResponse, error) {
	return w.server.options.Directory.Metrics(), nil
}

// healthNow is the report of a status.
func (s *Server) healthNow(status shard.Status) *workerpb.Health {
	h := &workerpb.Health{Ready: status.Ready, State: stateOf(status.State), Instance: status.Instance[:]}
	if status.Probed {
		h.ProbeAge, h.ProbeTook = durationpb.New(status.ProbeAge), durationpb.New(status.ProbeTook)
	}
	if status.Err != nil && !status.Ready {
		h.Error = status.Err.Proto()
	}
	if status.State == tables.ShardLoading {
		h.Progress = progressOf(status)
	}
	if status.State == tables.ShardDraining {
		h.DrainLeft = durationpb.New(status.DrainLeft)
	}
	h.Use = s.options.Directory.Use(s.room())
	h.Hops = s.options.Directory.Hops()
	return h
}

// room is the tokens that can be reserved.
func (s *Server) room() uint64 { return uint64(s.options.Sessions) * uint64(s.options.Context) }

// stateOf is a state of the shard table on the wire.
func stateOf(state tables.ShardState) workerpb.ShardState {
	return workerpb.ShardState(workerpb.ShardState_value["SHARD_STATE_"+state.String()])
}

func progressOf(status shard.Status) *workerpb.LoadProgress {
	p := status.Progress
	return &workerpb.LoadProgress{Phase: workerpb.LoadPhase(p.Phase), Done: p.Done, Total: p.Total}
}
