package rpc

import (
	"context"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// Principal is who a peer was found to be; empty is nobody in particular.
type Principal string

// Operation is what is asked for, as an Authorizer sees it.
type Operation string

// The operations.
const (
	OperationSession  Operation = "session"  // Session, CancelSession, ReleaseSession as a driver
	OperationChain    Operation = "chain"    // Session as a hop before this one
	OperationDelegate Operation = "delegate" // name another in Open.on_behalf_of
	OperationObserve  Operation = "observe"  // GetCapability, GetHealth, WatchHealth, GetMetrics
	OperationText     Operation = "text"
	OperationShard    Operation = "shard" // LoadShard, UnloadShard, Drain
)

// Authenticator finds out who calls. It fails closed: an error is UNAUTHENTICATED unless it says otherwise.
type Authenticator interface {
	Authenticate(ctx context.Context) (Principal, error)
}

// Authorizer says who may do what. It fails closed: an error is PERMISSION_DENIED unless it says otherwise.
type Authorizer interface {
	Authorize(ctx context.Context, who Principal, what Operation) error
}

// anybody and anything are for loopback, and for an address that was opened with --insecure.
type (
	anybody  struct{}
	anything struct{}
)

func (anybody) Authenticate(context.Context) (Principal, error)        { return "", nil }
func (anything) Authorize(context.Context, Principal, Operation) error { return nil }

// operations of the services; what is not listed (health and reflection) is open to all.
var operations = map[string]Operation{
	workerpb.WorkerService_ServiceDesc.ServiceName: OperationObserve,
	workerpb.ShardService_ServiceDesc.ServiceName:  OperationShard,
	workerpb.TextService_ServiceDesc.ServiceName:   OperationText,
}

// operationOf is what a method does; "" is open to all. A Session stream is looked at again once its Open is known.
func operationOf(method string) Operation {
	switch method {
	case workerpb.WorkerService_Session_FullMethodName:
		return ""
	case workerpb.WorkerService_CancelSession_FullMethodName, workerpb.WorkerService_ReleaseSession_FullMethodName:
		return OperationSession
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return operations[service]
}

// allow checks one caller.
func (s *Server) allow(ctx context.Context, what Operation) error {
	who, err := s.options.Authenticator.Authenticate(ctx)
	if err != nil {
		return orCode(err, workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED)
	}
	if err := s.options.Authorizer.Authorize(ctx, who, what); err != nil {
		return orCode(err, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	}
	return nil
}

// orCode keeps a typed error and gives any other the code.
func orCode(err error, code workerpb.ErrorCode) error {
	if f := fault.Of(err); !f.Inferred && f.Code != workerpb.ErrorCode_ERROR_CODE_INTERNAL {
		return f
	}
	return fault.New(code, "%w", err)
}

// unary is around every unary call: access, strictness, typed errors, and a panic that stays in its call.
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer s.recover(info.FullMethod, &err)
	if what := operationOf(info.FullMethod); what != "" {
		if err := s.allow(ctx, what); err != nil {
			return nil, s.typed(err)
		}
		if m, ok := request.(proto.Message); ok {
			if err := session.Strict(m); err != nil {
				return nil, s.typed(err)
			}
		}
	}
	answer, err = handle(ctx, request)
	return answer, s.typed(err)
}

// stream is around every stream.
func (s *Server) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer s.recover(info.FullMethod, &err)
	if what := operationOf(info.FullMethod); what != "" {
		if err := s.allow(stream.Context(), what); err != nil {
			return s.typed(err)
		}
	}
	return s.typed(handle(server, stream))
}

// recover makes a panic the INTERNAL of one call.
func (s *Server) recover(method string, err *error) {
	if p := recover(); p != nil {
		s.options.Log.Error("a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = s.typed(fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "worker %s, %s", s.options.WorkerID, method))
	}
}

// typed makes an error of ours name this worker; others stay as they are.
func (s *Server) typed(err error) error {
	if err == nil {
		return nil
	}
	f := fault.Of(err)
	if f.Inferred {
		return err
	}
	me := &workerpb.HopRef{WorkerId: s.options.WorkerID}
	return f.At(me, me)
}
