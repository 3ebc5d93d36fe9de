package rpc

import (
	"context"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// operations of the services; what is not listed (health) is open to all.
var operations = map[string]auth.Operation{
	workerpb.WorkerService_ServiceDesc.ServiceName:              auth.Observe,
	workerpb.ShardService_ServiceDesc.ServiceName:               auth.Admin,
	workerpb.TextService_ServiceDesc.ServiceName:                auth.Text,
	workerpb.RingService_ServiceDesc.ServiceName:                auth.Chain,
	grpc_reflection_v1.ServerReflection_ServiceDesc.ServiceName: auth.Observe,
	"grpc.reflection.v1alpha.ServerReflection":                  auth.Observe,
}

// operationOf is what a method does; "" is open to all. A Session stream is looked at again once its Open is known.
func operationOf(method string) auth.Operation {
	switch method {
	case workerpb.WorkerService_Session_FullMethodName:
		return ""
	case workerpb.WorkerService_CancelSession_FullMethodName, workerpb.WorkerService_ReleaseSession_FullMethodName:
		return auth.Infer
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return operations[service]
}

// allow checks one caller of a method and says who it is; nobody in particular where nobody has to prove anything.
func (s *Server) allow(ctx context.Context, method, onBehalfOf string, what auth.Operation) (auth.Principal, error) {
	if s.options.Guard == nil {
		return "", nil
	}
	peer := auth.PeerOf(ctx, method)
	peer.OnBehalfOf = onBehalfOf
	return s.options.Guard.Allow(ctx, peer, what)
}

// unary is around every unary call: access, strictness, typed errors, and a panic that stays in its call.
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer s.recover(info.FullMethod, &err)
	if what := operationOf(info.FullMethod); what != "" {
		if _, err := s.allow(ctx, info.FullMethod, "", what); err != nil {
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
		if _, err := s.allow(stream.Context(), info.FullMethod, "", what); err != nil {
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
