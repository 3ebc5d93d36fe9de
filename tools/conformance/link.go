package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// patience is how long a case waits for a message that must come.
const patience = 10 * time.Second

// quiet is how long a case waits to see that nothing comes.
const quiet = 150 * time.Millisecond

// link is one Session stream.
type link struct {
	t      *T
	stream grpc.BidiStreamingClient[workerpb.SessionRequest, workerpb.SessionResponse]
	in     chan *workerpb.SessionResponse
	end    error  // set before in is closed; io.EOF for status OK
	speaks uint32 // revision in whose words the target must answer; as agreed on once Opened came
	hangUp context.CancelFunc
}

// link opens a stream to a hop and sends nothing.
func (t *T) link(h *Hop) *link {
	ctx, cancel := context.WithCancel(t.ctx)
	stream, err := h.Worker.Session(ctx)
	if err != nil {
		cancel()
		t.Fatalf("open a stream to %s: %v", h.Address, err)
	}
	l := &link{t: t, stream: stream, in: make(chan *workerpb.SessionResponse, 4096), hangUp: cancel, speaks: 1}
	go l.read(ctx)
	t.Cleanup(cancel)
	return l
}

// read takes what comes until the stream ends.
func (l *link) read(ctx context.Context) {
	defer close(l.in)
	for {
		m, err := l.stream.Recv()
		if err != nil {
			l.end = err
			return
		}
		select {
		case l.in <- m:
		case <-ctx.Done():
			l.end = ctx.Err()
			return
		}
	}
}

// send sends a message; a stream that the worker has ended takes it silently, and its end is read instead.
func (l *link) send(m *workerpb.SessionRequest) {
	if err := l.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		l.t.Fatalf("send %T: %v", m.GetKind(), err)
	}
}

// next is the next message; nil when the stream is over.
func (l *link) next() *workerpb.SessionResponse {
	select {
	case m := <-l.in:
		if o := m.GetOpened(); o != nil {
			l.speaks = o.GetRevision()
		}
		l.t.inWords(m, l.speaks)
		return m
	case <-time.After(patience):
		l.t.Fatalf("nothing came for %v", patience)
		return nil
	}
}

// silent says that nothing but credit comes for a while.
func (l *link) silent(what string) {
	after := time.After(quiet)
	for {
		select {
		case m := <-l.in:
			if m.GetCredit() == nil {
				l.t.Fatalf("%s: %v came", what, brief(m))
			}
		case <-after:
			return
		}
	}
}

// refusal takes the stream's end and what it failed with; there must be no Opened.
func (l *link) refusal() *workerpb.ShardError {
	for m := l.next(); m != nil; m = l.next() {
		l.t.Fatalf("%v came before the refusal", brief(m))
	}
	return l.t.errorOf(l.end)
}

// errorOf is the ShardError of a status, checked against the rules for all of them.
func (t *T) errorOf(err error) *workerpb.ShardError {
	if err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("it succeeded, an error was due")
	}
	s, _ := status.FromError(err)
	var found []*workerpb.ShardError
	for _, detail := range s.Details() {
		if e, ok := detail.(*workerpb.ShardError); ok {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		t.Fatalf("the status has %d ShardErrors, one is due: %v", len(found), err)
	}
	if row := tables.ErrorByCode(found[0].GetCode()); row.Name != "" && row.GRPC != s.Code() {
		t.Errorf("%s came with status %v, the table says %v", row.Name, s.Code(), row.GRPC)
	}
	if s.Code() == codes.OK {
		t.Errorf("an error came with status OK")
	}
	t.sane(found[0])
	t.inWords(found[0], 1)
	return found[0]
}

// sane checks what holds for every error.
func (t *T) sane(e *workerpb.ShardError) {
	if e.GetOrigin().GetWorkerId() != peerName {
		t.errors = append(t.errors, e)
	}
	row := tables.ErrorByCode(e.GetCode())
	retry := e.GetRecovery() == workerpb.Recovery_RECOVERY_RETRY_SAME || e.GetRecovery() == workerpb.Recovery_RECOVERY_RETRY_OTHER
	switch {
	case e == nil:
		t.Fatalf("there is no error where one is due")
	case row.Name == "":
		t.Errorf("the code %d is not in the table", e.GetCode())
	case len(e.GetMessage()) == 0 || len(e.GetMessage()) > 1024 || !utf8.ValidString(e.GetMessage()):
		t.Errorf("the message of %s has %d bytes: %q", row.Name, len(e.GetMessage()), e.GetMessage())
	case e.GetScope() == workerpb.ErrorScope_ERROR_SCOPE_UNSPECIFIED:
		t.Errorf("%s has no scope", row.Name)
	case e.GetRecovery() == workerpb.Recovery_RECOVERY_UNSPECIFIED:
		t.Errorf("%s has no recovery", row.Name)
	case retry != (e.GetRetryAfter() != nil):
		t.Errorf("%s has recovery %v and retry_after %v", row.Name, e.GetRecovery(), e.GetRetryAfter())
	case e.GetOrigin() == nil:
		t.Errorf("%s does not say which hop says it", row.Name)
	}
}

// want checks the code of an error.
func (t *T) want(e *workerpb.ShardError, code workerpb.ErrorCode) *workerpb.ShardError {
	if e.GetCode() != code {
		t.Fatalf("%v came (%s), %v was due", name(e.GetCode()), e.GetMessage(), name(code))
	}
	return e
}

func name(code workerpb.ErrorCode) string { return strings.TrimPrefix(code.String(), "ERROR_CODE_") }

// brief is a message as a report shows it.
func brief(m *workerpb.SessionResponse) string {
	text := fmt.Sprintf("%T %v", m.GetKind(), m)
	if len(text) > 240 {
		text = text[:240] + "…"
	}
	return text
}
