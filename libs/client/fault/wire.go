package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// maxMessage is the greatest length of ShardError.message, bytes.
const maxMessage = 1024

// Proto is the error as it stands in StepFailed, in Closed and in a status detail.
func (e *Error) Proto() *workerpb.ShardError {
	p := &workerpb.ShardError{
		Code: e.Code, Message: clip(e.Message), Scope: e.Scope, Recovery: e.Recovery,
		Origin: e.Origin, Subject: e.Subject, Detail: e.Detail,
	}
	if retries(e.Recovery) {
		p.RetryAfter = durationpb.New(e.RetryAfter)
	}
	return p
}

// clip cuts a message to what the contract allows, at a rune's edge.
func clip(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	const mark = "…"
	cut := maxMessage - len(mark)
	for cut > 0 && message[cut]&0xc0 == 0x80 {
		cut--
	}
	return message[:cut] + mark
}

// FromProto is the error that a peer sent. nil stays nil.
func FromProto(p *workerpb.ShardError) *Error {
	if p == nil {
		return nil
	}
	return &Error{
		Code: p.GetCode(), Message: p.GetMessage(), Scope: p.GetScope(), Recovery: known(p.GetRecovery()),
		RetryAfter: p.GetRetryAfter().AsDuration(), Origin: p.GetOrigin(), Subject: p.GetSubject(), Detail: p.GetDetail(),
	}
}

// known keeps a recovery that this revision knows; any other means NEVER.
func known(r workerpb.Recovery) workerpb.Recovery {
	if _, ok := workerpb.Recovery_name[int32(r)]; ok && r != workerpb.Recovery_RECOVERY_UNSPECIFIED {
		return r
	}
	return workerpb.Recovery_RECOVERY_NEVER
}

// GRPCStatus is the status that carries the error; grpc-go calls it when a handler returns an *Error.
func (e *Error) GRPCStatus() *status.Status {
	code := codes.Aborted
	if row := tables.ErrorByCode(e.Code); row.Code != workerpb.ErrorCode_ERROR_CODE_UNSPECIFIED {
		code = row.GRPC
	}
	s, err := status.New(code, clip(e.Message)).WithDetails(e.Proto())
	if err != nil { // a proto that does not marshal: the bare status still says what it can
		return status.New(code, clip(e.Message))
	}
	return s
}

// FromStatus turns what a gRPC call returned into an *Error: the peer's own where the status carries one, else an inferred
// one. nil stays nil.
func FromStatus(err error) *Error {
	if err == nil {
		return nil
	}
	var f *Error
	if errors.As(err, &f) {
		return f
	}
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	for _, detail := range s.Details() {
		if p, ok := detail.(*workerpb.ShardError); ok {
			return FromProto(p)
		}
	}
	f = New(inferredCode(s.Code()), "%s", particulars(s))
	f.Inferred, f.cause = true, err
	return f
}

// particulars is the text of a bare status; a peer may leave it empty.
func particulars(s *status.Status) string {
	if s.Message() == "" {
		return fmt.Sprintf("the peer answered %s", s.Code())
	}
	return s.Message()
}

// inferredCode is what a bare gRPC status of a peer most likely means; the peer did not say it.
func inferredCode(code codes.Code) workerpb.ErrorCode {
	switch code {
	case codes.Canceled:
		return workerpb.ErrorCode_ERROR_CODE_CANCELLED
	case codes.DeadlineExceeded:
		return workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED
	case codes.Unavailable:
		return workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE
	case codes.Unauthenticated:
		return workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED
	case codes.PermissionDenied:
		return workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED
	case codes.Unimplemented:
		return workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION
	case codes.InvalidArgument, codes.ResourceExhausted:
		return workerpb.ErrorCode_ERROR_CODE_MALFORMED
	}
	return workerpb.ErrorCode_ERROR_CODE_INTERNAL
}

// FromContext is the error of a wait that ended with ctx: DEADLINE_EXCEEDED after its deadline, CANCELLED otherwise. waited says
// for what, as `the answer to Open`.
func FromContext(ctx context.Context, waited string) *Error {
	code := workerpb.ErrorCode_ERROR_CODE_CANCELLED
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED
	}
	f := New(code, "while waiting for %s", waited)
	f.cause = context.Cause(ctx)
	return f
}

// After returns a copy with an advice when to try again.
func (e *Error) After(d time.Duration) *Error {
	return e.With(func(c *Error) { c.RetryAfter = d })
}
