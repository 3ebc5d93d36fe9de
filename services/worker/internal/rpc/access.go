package rpc

import (
	"context"
	"errors"
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
			if err := s.strict(m); err != nil {
				return nil, s.typed(err)
			}
		}
	}
	answer, err = handle(ctx, request)
	if m, ok := answer.(proto.Message); ok && err == nil {
		answer = s.words(m)
	}
	return answer, s.typed(err)
}

// strict refuses what is unknown in a request that names no revision.
func (s *Server) strict(m proto.Message) error {
	if err := s.options.Revisions.Strict(m, 0); err != nil {
		return err
	}
	return nil
}

// words is an answer for a caller that named no revision.
func (s *Server) words(m proto.Message) proto.Message {
	return session.Words(s.options.Revisions, m, s.options.Revisions.Min)
}

// worded is a stream whose caller named no revision.
type worded struct {
	grpc.ServerStream
	server *Server
}

// SendMsg is grpc.ServerStream's.
func (w worded) SendMsg(answer any) error {
	if m, ok := answer.(proto.Message); ok {
		answer = w.server.words(m)
	}
	return w.ServerStream.SendMsg(answer)
}

// stream is around every stream.
func (s *Server) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer s.recover(info.FullMethod, &err)
	if what := operationOf(info.FullMethod); what != "" {
		if _, err := s.allow(stream.Context(), info.FullMethod, "", what); err != nil {
			return s.typed(err)
		}
	}
	if info.FullMethod == workerpb.WorkerService_Session_FullMethodName {
		return s.named(handle(server, stream)) // its upstream knows the caller's revision
	}
	return s.typed(handle(server, worded{stream, s}))
}

// recover makes a panic the INTERNAL of one call.
func (s *Server) recover(method string, err *error) {
	if p := recover(); p != nil {
		s.options.Log.Error("a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
		*err = s.typed(fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "worker %s, %s", s.options.WorkerID, method))
	}
}

// typed makes an error of ours name this worker, in the words of a caller that named no revision; others stay as they are.
func (s *Server) typed(err error) error {
	var f *fault.Error
	if err = s.named(err); errors.As(err, &f) {
		return session.InWords(s.options.Revisions, f, s.options.Revisions.Min)
	}
	return err
}

// named makes an error of ours name this worker; others stay as they are.
func (s *Server) named(err error) error {
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
