package rpc_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/rpc"
)

// fickle allows everything until it is told otherwise.
type fickle struct{ verdict atomic.Pointer[error] }

func (*fickle) Authenticate(context.Context, auth.Peer) (auth.Principal, error) {
	return "tester", nil
}

func (f *fickle) Authorize(context.Context, auth.Principal, auth.Peer, auth.Operation) error {
	if e := f.verdict.Load(); e != nil {
		return *e
	}
	return nil
}

func (f *fickle) says(err error) { f.verdict.Store(&err) }

func fickleWorker(t *testing.T) (*worker, *fickle) {
	f := &fickle{}
	w := whole(t, setting{options: func(o *rpc.Options) {
		o.Guard = &auth.Guard{Authenticator: f, Authorizer: f, Log: discard}
		o.RightsChecked = 20 * time.Millisecond
	}})
	return w, f
}

// A session and a call whose caller has lost its rights end, and what they held is free.
func TestRevokedRightsEndWhatRuns(t *testing.T) {
	w, f := fickleWorker(t)
	d := dialTo(t, w)
	d.open(1, []*worker{w})
	watch, err := workerpb.NewWorkerServiceClient(d.conn).WatchHealth(t.Context(), &workerpb.WatchHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	f.says(errors.New("not any more"))
	closed, end := d.end()
	is(t, end, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	if closed.GetError().GetCode() != workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED {
		t.Errorf("closed says %v", closed)
	}
	for err == nil {
		_, err = watch.Recv()
	}
	code(t, err, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	soon(t, "the session is gone", func() bool { return w.dir.Sessions() == 0 })
}

// While the authority does not answer, what runs goes on, and nothing new is let in.
func TestAuthorityDownEndsNothingThatRuns(t *testing.T) {
	w, f := fickleWorker(t)
	d := dialTo(t, w)
	d.open(1, []*worker{w})
	f.says(fault.New(workerpb.ErrorCode_ERROR_CODE_AUTHORITY_DOWN, "it sleeps"))
	next := dialTo(t, w)
	next.send(openOf(2, []*worker{w}))
	_, end := next.end()
	is(t, end, workerpb.ErrorCode_ERROR_CODE_AUTHORITY_DOWN)
	for n := range uint64(5) { // the rights are asked for meanwhile
		waited := time.After(20 * time.Millisecond)
		d.send(step(n+1, n, uint32(n), prompt(40)))
		if _, _, failed := d.answer(n + 1); failed != nil {
			t.Fatal(failed)
		}
		<-waited
	}
}

// refusesOnce allows everything but the first.
type refusesOnce struct{ asked atomic.Bool }

func (r *refusesOnce) Authorize(context.Context, auth.Principal, auth.Peer, auth.Operation) error {
	if !r.asked.Swap(true) {
		return errors.New("not the first time")
	}
	return nil
}

// A caller that is refused cannot try again on the same stream.
func TestARefusedStreamStaysRefused(t *testing.T) {
	w := whole(t, setting{options: func(o *rpc.Options) {
		o.Guard = &auth.Guard{Authenticator: &fickle{}, Authorizer: &refusesOnce{}, Log: discard}
	}})
	d := dialTo(t, w)
	d.send(openOf(1, []*worker{w}))
	d.send(openOf(1, []*worker{w}))
	_, end := d.end()
	is(t, end, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	if n := w.dir.Sessions(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
}

// Where callers must prove who they are, there is no reflection.
func TestReflectionIsOffBehindAGuard(t *testing.T) {
	guarded, _ := fickleWorker(t)
	for _, c := range []struct {
		w      *worker
		served bool
	}{{guarded, false}, {whole(t, setting{}), true}} {
		stream, err := grpc_reflection_v1.NewServerReflectionClient(connect(t, c.w)).ServerReflectionInfo(t.Context())
		if err == nil {
			err = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if (err == nil) != c.served {
			t.Errorf("reflection: %v, %v", status.Code(err), err)
		}
	}
}
