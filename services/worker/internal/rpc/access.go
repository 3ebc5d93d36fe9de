package rpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// operations of the services. What is not listed needs all that there is, but for health, which is open to all.
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
	what, listed := operations[service]
	switch {
	case service == grpc_health_v1.Health_ServiceDesc.ServiceName:
		return ""
	case !listed:
		return auth.Admin
	}
	return what
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

// account is whose quota a caller uses: its own as a principal, else that of where it calls from.
func account(ctx context.Context, who auth.Principal) string {
	if who != "" {
		return string(who)
	}
	host, _, err := net.SplitHostPort(auth.PeerOf(ctx, "").Address)
	ip, parseErr := netip.ParseAddr(host)
	if err != nil || parseErr != nil {
		return "address:" + host
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() { // a host has as many as it likes of these
		ip = netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return "address:" + ip.String()
}

// enter lets a call in: who may do it, and has not too much under way. leave says that the call is over. A Session stream is
// only asked who it is; what it may do is asked when its Open has come.
func (s *Server) enter(ctx context.Context, method string) (leave func(), err error) {
	var who auth.Principal
	if what := operationOf(method); what != "" {
		who, err = s.allow(ctx, method, "", what)
	} else if method == workerpb.WorkerService_Session_FullMethodName && s.options.Guard != nil {
		who, err = s.options.Guard.Who(ctx, auth.PeerOf(ctx, method))
	}
	if err != nil {
		return nil, err
	}
	quotas, whose := s.options.Quotas, account(ctx, who)
	if exceeded := quotas.Request(whose); exceeded != nil {
		return nil, exceeded
	}
	leave, exceeded := quotas.Stream(whose)
	if exceeded != nil {
		return nil, exceeded
	}
	return leave, nil
}

// unary is around every unary call: access, strictness, typed errors, and a panic that stays in its call.
func (s *Server) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer s.recover(info.FullMethod, &err)
	leave, err := s.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, s.typed(err)
	}
	defer leave()
	if m, ok := request.(proto.Message); ok && operationOf(info.FullMethod) != "" {
		if err := s.strict(m); err != nil {
			return nil, s.typed(err)
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

// stream is around every stream. One that was let in is looked at again while it runs; a Session stream sees to that itself.
func (s *Server) stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer s.recover(info.FullMethod, &err)
	ctx := stream.Context()
	leave, err := s.enter(ctx, info.FullMethod)
	if err != nil {
		return s.typed(err)
	}
	defer leave()
	if info.FullMethod == workerpb.WorkerService_Session_FullMethodName {
		return s.named(handle(server, stream)) // its upstream knows the caller's revision
	}
	stream = worded{stream, s}
	what := operationOf(info.FullMethod)
	if what == "" || s.options.Guard == nil {
		return s.typed(handle(server, stream))
	}
	held, revoke := context.WithCancelCause(ctx)
	defer revoke(nil)
	var watch sync.WaitGroup
	watch.Go(func() {
		s.watchRights(held, revoke, func() error { _, err := s.allow(held, info.FullMethod, "", what); return err })
	})
	err = handle(server, lease{stream, held})
	if cause := context.Cause(held); ctx.Err() == nil && cause != nil {
		err = cause
	}
	revoke(nil)
	watch.Wait()
	return s.typed(err)
}

// lease is a stream that ends when its caller's rights do.
type lease struct {
	grpc.ServerStream
	ctx context.Context
}

// Context ends with the rights.
func (l lease) Context() context.Context { return l.ctx }

// watchRights asks now and then whether a caller still may, until ctx ends.
func (s *Server) watchRights(ctx context.Context, revoke func(error), may func() error) {
	tick := time.NewTicker(s.options.RightsChecked)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := may(); revoked(err) {
				revoke(err)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// revoked says whether an answer about a stream that runs ends it. That the authority does not answer does not: new calls are
// refused meanwhile, but what it allowed goes on.
func revoked(err error) bool {
	if err == nil {
		return false
	}
	code := fault.Of(err).Code
	return code == workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED || code == workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED
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
