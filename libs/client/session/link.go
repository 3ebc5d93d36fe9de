package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// errHungUp is why a stream ends that this side no longer wants.
var errHungUp = errors.New("this driver hung up")

// send puts messages on the stream in order, until the stream ends.
func (s *Session) send() {
	for {
		select {
		case m := <-s.out:
			if s.stream.Send(m) != nil {
				return // the receiver learns why
			}
		case <-s.stream.Context().Done():
			return
		}
	}
}

// receive takes every message at once; it never waits for whoever reads the tokens.
func (s *Session) receive() {
	defer close(s.ended)
	opened := false
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.fail(s.verdict(err, opened))
			return
		}
		if o := m.GetOpened(); o != nil && !opened {
			opened = true
			s.first <- o
			continue
		}
		if f := s.handle(m); f != nil {
			s.fail(f)
		}
	}
}

// verdict is why the stream ended: what the worker said, or what its silence means. nil after a Closed without error.
func (s *Session) verdict(err error, opened bool) *fault.Error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed != nil {
		if closed.GetError() == nil {
			return nil
		}
		return fault.FromProto(closed.GetError())
	}
	head := s.route.Hops[0]
	f := fault.Of(err)
	switch {
	case errors.Is(err, io.EOF):
		return s.broken("it ended the stream without Closed")
	case !f.Inferred:
		return f
	case status.Code(err) == codes.Canceled && errors.Is(context.Cause(s.stream.Context()), errHungUp):
		return s.at(fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED, "this driver hung up"), 0)
	case !opened:
		return s.at(head.Worker.Fault(err), 0)
	}
	return s.at(fault.New(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST, "").With(func(e *fault.Error) {
		e.Message = fmt.Sprintf("The link to the worker at %s broke (%s); open again with a greater attempt.", head.Worker.Address(), status.Convert(err).Message())
		e.Inferred = true
	}), 0)
}

// fail ends the session: every step without an answer fails with f. Only the first reason counts. nil is a good end.
func (s *Session) fail(f *fault.Error) {
	s.mu.Lock()
	if s.err == nil && f != nil {
		s.err = f
	}
	reason := s.err
	if reason == nil {
		reason = s.at(fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED, "the session was closed"), 0)
	}
	for _, id := range slices.Sorted(maps.Keys(s.steps)) {
		p := s.steps[id]
		s.doubtful = append(s.doubtful, p.evaluated()...)
		delete(s.steps, id)
		p.end(nil, reason)
	}
	s.changed()
	s.mu.Unlock()
	s.cancel(errHungUp)
}

// changed wakes whoever waits. The caller holds mu.
func (s *Session) changed() {
	close(s.wake)
	s.wake = make(chan struct{})
}

// handle takes one message. An error is a breach of the contract that ends the session.
func (s *Session) handle(m *workerpb.SessionResponse) *fault.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.changed()
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Opened:
		return s.broken("it opened twice")
	case *workerpb.SessionResponse_Credit:
		s.credit += uint64(kind.Credit.GetSteps())
	case *workerpb.SessionResponse_Token:
		return s.token(kind.Token)
	case *workerpb.SessionResponse_Frame:
		return s.frame(kind.Frame)
	case *workerpb.SessionResponse_StepResult:
		return s.result(kind.StepResult)
	case *workerpb.SessionResponse_StepFailed:
		return s.failed(kind.StepFailed)
	case *workerpb.SessionResponse_Draining:
		s.draining = kind.Draining
	case *workerpb.SessionResponse_Closed:
		s.closed = kind.Closed
	}
	return nil // kinds of later revisions are not for us
}

// enqueue gives a message to the sender.
func (s *Session) enqueue(ctx context.Context, m *workerpb.SessionRequest) error {
	select {
	case s.out <- m:
		return nil
	case <-s.stream.Context().Done():
		return s.overErr()
	case <-ctx.Done():
		return fault.FromContext(ctx, "the link to the head worker")
	}
}

// overErr is why nothing can be sent any more.
func (s *Session) overErr() error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.at(fault.New(workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION, "the session is closed"), 0)
}

// Close ends the session on every hop and frees its caches. keepPrefix lets the workers keep them for sessions of the same
// domain. The usage is the head's; nil when the session was over before. Idempotent.
func (s *Session) Close(ctx context.Context, keepPrefix bool) (*workerpb.Usage, error) {
	ctx, stop := context.WithTimeout(ctx, closeWait)
	defer stop()
	defer s.Abandon()
	_ = s.enqueue(ctx, &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{KeepPrefix: keepPrefix}}})
	select {
	case <-s.ended:
	case <-ctx.Done():
		return nil, s.at(fault.FromContext(ctx, "Closed"), 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed.GetUsage(), nil
}

// Abandon hangs up. The caches linger as long as was agreed. Idempotent; it returns once nothing of the session runs here.
func (s *Session) Abandon() {
	s.cancel(errHungUp)
	s.group.Wait()
}

// await waits until done says yes, ctx ends, or limit passes; done is asked under mu. A nil error means yes.
func (s *Session) await(ctx context.Context, limit time.Duration, what string, done func() bool) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ok, wake := done(), s.wake
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return fault.FromContext(ctx, what)
		case <-timer.C:
			f := s.at(fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "%s did not come within %v", what, limit), 0)
			f.Inferred = true
			s.fail(f)
			return f
		}
	}
}
