package rpc_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/rpc"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
)

// Bounds of the worker that is attacked. A row of its boundaries is 16 KiB.
const (
	hostileWindows  = 16 << 20
	hostileOutgoing = 64 << 20
	hostileWidth    = 4096
	hostileRows     = 8
)

// hostileWorker holds middle layers, so that boundaries come in and go back to a caller.
func hostileWorker(t *testing.T) *worker {
	t.Helper()
	return start(t, engine.LayerRange{First: 1, End: 3}, setting{
		model: "fake:layers=4,width=4096", sessions: 64, sendWait: 200 * time.Millisecond,
		limits:    func(l *session.Limits) { l.FrameBytes, l.WindowBytes, l.MaxWindowBytes = 64<<10, 1<<20, 4<<20 },
		directory: func(o *live.Options) { o.WindowBytes, o.OutgoingBytes = hostileWindows, hostileOutgoing },
		options:   func(o *rpc.Options) { o.MessageBytes = 1 << 20 },
	})
}

// hostile is one client that means harm: it does its worst until ctx ends. id is of its session.
type hostile func(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte)

// returned is an Open whose boundaries come back.
func returned(w *worker, id byte) *workerpb.SessionRequest {
	m := openOf(id, []*worker{w})
	o := m.GetOpen()
	o.Egress, o.Receive = workerpb.Egress_EGRESS_RETURN, &workerpb.ReceiveWindow{Tokens: proto.Uint32(1 << 30), Bytes: proto.Uint64(1 << 60)}
	return m
}

// boundaryStep is a step of hostileRows tokens without its boundary's bytes.
func boundaryStep(id, after uint64, at uint32) *workerpb.SessionRequest {
	m := step(id, after, at, prompt(1, 2, 3, 4, 5, 6, 7, 8))
	m.GetStep().Budget = durationpb.New(time.Minute)
	m.GetStep().Boundary = &workerpb.Boundary{
		Rows: hostileRows, Width: hostileWidth, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: hostileRows * hostileWidth * 4,
	}
	return m
}

func frameOf(id uint64, index uint32, bytes int) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: id, Index: proto.Uint32(index), Data: make([]byte, bytes)}}}
}

type stream = grpc.BidiStreamingClient[workerpb.SessionRequest, workerpb.SessionResponse]

// begin opens a session and says whether it did.
func begin(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte, change func(*workerpb.Open)) (stream, bool) {
	s, err := workerpb.NewWorkerServiceClient(conn).Session(ctx)
	if err != nil {
		return nil, false
	}
	m := returned(w, id)
	if change != nil {
		change(m.GetOpen())
	}
	if s.Send(m) != nil {
		return nil, false
	}
	answer, err := s.Recv()
	return s, err == nil && answer.GetOpened() != nil
}

func hostiles() []hostile {
	return []hostile{neverReads, halfFrames, oversize, manyStreams, halfOpen, slowReader, lies, supersedes}
}

// neverReads makes the worker evaluate and never takes what it gets for it.
func neverReads(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte) {
	s, ok := begin(ctx, conn, w, id, nil)
	for n := uint64(1); ok && n <= 8; n++ {
		ok = s.Send(boundaryStep(n, n-1, uint32(n-1)*hostileRows)) == nil && s.Send(frameOf(n, 0, 64<<10)) == nil && s.Send(frameOf(n, 1, 64<<10)) == nil
	}
	<-ctx.Done()
}

// halfFrames begins boundaries and never ends them.
func halfFrames(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte) {
	if s, ok := begin(ctx, conn, w, id, nil); ok && s.Send(boundaryStep(1, 0, 0)) == nil && s.Send(frameOf(1, 0, 64<<10)) == nil {
		<-ctx.Done()
	}
}

// oversize announces more than anybody has.
func oversize(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte) {
	for ctx.Err() == nil {
		s, ok := begin(ctx, conn, w, id, nil)
		if ok {
			m := boundaryStep(1, 0, 0)
			m.GetStep().Boundary.Size = 1 << 40
			_ = s.Send(m)
		}
		drain(s)
		pause(ctx)
	}
}

// manyStreams opens streams and says nothing on them.
func manyStreams(ctx context.Context, conn *grpc.ClientConn, _ *worker, _ byte) {
	for range 16 {
		_, _ = workerpb.NewWorkerServiceClient(conn).Session(ctx)
	}
	<-ctx.Done()
}

// halfOpen connects and does not shake hands, and opens a session whose stream it closes at once.
func halfOpen(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte) {
	if raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.address); err == nil {
		defer raw.Close()
		_, _ = raw.Write([]byte("PRI * HT"))
	}
	if s, ok := begin(ctx, conn, w, id, nil); ok {
		_ = s.CloseSend()
	}
	<-ctx.Done()
}

// slowReader takes a message now and then.
func slowReader(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte) {
	s, ok := begin(ctx, conn, w, id, nil)
	for n := uint64(1); ok && ctx.Err() == nil; n++ {
		ok = s.Send(boundaryStep(n, n-1, uint32(n-1)*hostileRows)) == nil && s.Send(frameOf(n, 0, 64<<10)) == nil && s.Send(frameOf(n, 1, 64<<10)) == nil
		pause(ctx)
		if ok {
			_, err := s.Recv()
			ok = err == nil
		}
	}
}

// lies sends frames that are not what was announced.
func lies(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte) {
	for ctx.Err() == nil {
		s, ok := begin(ctx, conn, w, id, nil)
		if ok && s.Send(boundaryStep(1, 0, 0)) == nil {
			_ = s.Send(frameOf(1, uint32(rand.N(3)), 1+rand.N(128<<10)))
		}
		drain(s)
		pause(ctx)
	}
}

// supersedes opens a session again and again, and reads nothing of the older attempts.
func supersedes(ctx context.Context, conn *grpc.ClientConn, w *worker, id byte) {
	for attempt := uint64(1); ctx.Err() == nil; attempt++ {
		if s, ok := begin(ctx, conn, w, id, func(o *workerpb.Open) { o.Attempt = attempt }); ok {
			_ = s.Send(boundaryStep(1, 0, 0))
		}
		pause(ctx)
	}
}

// pause is what keeps a client from spinning.
func pause(ctx context.Context) {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
	}
}

func drain(s stream) {
	for s != nil {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}

// soon waits until something is so.
func soon(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !so(); waitABit() {
		if time.Now().After(end) {
			t.Fatalf("it is not so that %s", what)
		}
	}
}

// With 200 clients that mean harm, what is buffered stays within its bounds, an honest session goes on, and all comes back
// when they have gone.
func TestHostileClientsAreBounded(t *testing.T) {
	w := hostileWorker(t)
	patient, enough := context.WithTimeout(t.Context(), 2*time.Minute)
	defer enough()
	honest := &driver{t: t, conn: connect(t, w), cancel: enough}
	stream, ok := begin(patient, honest.conn, w, 0, nil)
	if !ok {
		t.Fatal("the honest session does not open")
	}
	honest.stream = stream
	goroutines := runtime.NumGoroutine()

	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	conns := make([]*grpc.ClientConn, 25)
	for i := range conns {
		conns[i] = connect(t, w)
	}
	kinds := hostiles()
	for i := range 200 {
		clients.Go(func() { kinds[i%len(kinds)](ctx, conns[i%len(conns)], w, byte(i+1)) })
	}
	goesOn(t, honest, 20)
	most := w.dir.Buffered().Most()
	cancel()
	clients.Wait()
	for _, c := range conns {
		_ = c.Close()
	}
	if most > hostileWindows+hostileOutgoing {
		t.Errorf("%d bytes were buffered, the bounds are %d and %d", most, hostileWindows, hostileOutgoing)
	}
	t.Logf("at most %d KiB were buffered", most>>10)
	if most < 1<<20 {
		t.Errorf("only %d bytes were ever buffered: nobody was hostile", most)
	}
	soon(t, "their sessions are gone", func() bool { return w.dir.Sessions() == 1 })
	soon(t, "nothing is buffered", func() bool { return w.dir.Buffered().Now() == 0 })
	soon(t, "their goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if use := w.dir.Use(64 * 256); use.GetSessions() != 1 || use.GetReservedTokens() != 128 {
		t.Errorf("in use are %v", use)
	}
	honest.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
	if _, err := honest.stream.Recv(); err != nil && err != io.EOF {
		t.Error(err)
	}
}

// A client that never reads makes the worker evaluate no more than may wait to be sent; then its session ends.
func TestWhoNeverReadsIsNotWorkedFor(t *testing.T) {
	w := hostileWorker(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, ok := begin(ctx, connect(t, w), w, 1, nil)
	if !ok {
		t.Fatal("the session does not open")
	}
	for n := uint64(1); n <= 8; n++ {
		m := boundaryStep(n, n-1, uint32(n-1)*hostileRows)
		m.GetStep().Budget = durationpb.New(500 * time.Millisecond)
		for _, m := range []*workerpb.SessionRequest{m, frameOf(n, 0, 64<<10), frameOf(n, 1, 64<<10)} {
			if err := s.Send(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	soon(t, "the session is gone", func() bool { return w.dir.Sessions() == 0 })
	m := w.dir.Metrics()
	if n := m.GetTotal().GetTokensEvaluated(); n == 0 || n > 5*hostileRows {
		t.Errorf("%d tokens were evaluated for somebody who takes nothing", n)
	}
	if len(m.GetErrors()) != 1 || m.GetErrors()[0].GetCode() != uint32(workerpb.ErrorCode_ERROR_CODE_SLOW_CONSUMER) {
		t.Errorf("the errors are %v", m.GetErrors())
	}
	soon(t, "nothing is buffered", func() bool { return w.dir.Buffered().Now() == 0 })
}

// A client that reads late gets everything: the worker waits with what there is no room for.
func TestWhoReadsLateGetsAll(t *testing.T) {
	w := hostileWorker(t)
	d := dialTo(t, w)
	d.send(returned(w, 1))
	d.receive()
	for n := uint64(1); n <= 8; n++ {
		d.send(boundaryStep(n, n-1, uint32(n-1)*hostileRows))
		d.send(frameOf(n, 0, 64<<10))
		d.send(frameOf(n, 1, 64<<10))
	}
	soon(t, "all steps are here and some ran", func() bool {
		total := w.dir.Metrics().GetTotal()
		return total.GetBytesIn() == 8*hostileRows*hostileWidth*4 && total.GetTokensEvaluated() > 0
	})
	for n := uint64(1); n <= 8; n++ {
		if _, _, failed := d.answer(n); failed != nil {
			t.Fatalf("step %d: %v", n, failed)
		}
	}
}

// goesOn runs n steps on a session, each to its result, and goes back when the context is full.
func goesOn(t *testing.T, d *driver, n uint64) {
	t.Helper()
	at, id := uint32(0), uint64(0)
	for range n {
		id++
		d.send(boundaryStep(id, id-1, at))
		d.send(frameOf(id, 0, 64<<10))
		d.send(frameOf(id, 1, 64<<10))
		if _, result, failed := d.answer(id); failed != nil || result.GetCache().GetLength() != at+hostileRows {
			t.Fatalf("step %d: %v, %v", id, result, failed)
		}
		if at += hostileRows; at+hostileRows > 128 {
			id++
			m := step(id, id-1, at, nil)
			m.GetStep().Kind = &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: proto.Uint32(0)}}
			d.send(m)
			if _, _, failed := d.answer(id); failed != nil {
				t.Fatal(failed)
			}
			at = 0
		}
	}
}
