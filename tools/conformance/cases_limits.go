package conformance

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/metadata"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const quota = workerpb.ErrorCode_ERROR_CODE_QUOTA_EXCEEDED

// limitCases are about what one principal may have, and what a connection may do.
func limitCases() []Case {
	return []Case{
		{ID: "limits.set", Clauses: []string{"CAP-6"}, Says: "The limits of principals, connections and messages are set.", Run: func(t *T) {
			for _, h := range t.Hops {
				l := t.capability(h).GetLimits()
				p := l.GetPrincipal()
				if min(p.GetOpening(), p.GetSessions(), p.GetStreams(), p.GetRequests(), p.GetRequestBurst(), p.GetControl(), p.GetControlBurst()) == 0 {
					t.Errorf("the limits of a principal are %v", p)
				}
				if l.GetMetadataBytes() == 0 || l.GetPingInterval() == nil || l.GetConnectionStreams() == 0 || l.GetHandshake() == nil || l.GetRightsChecked() == nil {
					t.Errorf("limits are %v", l)
				}
			}
		}},
		{ID: "limits.streams", Clauses: []string{"LIM-1"}, Skip: atMost(64, "calls under way", (*workerpb.PrincipalLimits).GetStreams), Says: "One call more than limits.principal.streams is QUOTA_EXCEEDED; once one has ended, it is let in.", Run: streamsBounded},
		{ID: "limits.sessions", Clauses: []string{"LIM-1"}, Skip: either(atMost(64, "sessions", (*workerpb.PrincipalLimits).GetSessions), fewerThanSlots), Says: "One session more than limits.principal.sessions is QUOTA_EXCEEDED; once one has ended, it opens.", Run: sessionsBounded},
		{ID: "limits.control", Clauses: []string{"LIM-2", "ERR-6"}, Skip: atMost(1<<17, "control messages at once", (*workerpb.PrincipalLimits).GetControlBurst), Says: "Control messages that come too fast end the attempt with QUOTA_EXCEEDED; another session opens.", Run: controlBounded},
		{ID: "limits.message", Clauses: []string{"LIM-3"}, Says: "A message that is too large ends its stream; nothing of it is run, and another session opens.", Run: messageBounded},
		{ID: "limits.metadata", Clauses: []string{"LIM-3"}, Says: "A call with too much metadata is refused; the next one is answered.", Run: func(t *T) {
			ctx := metadata.AppendToOutgoingContext(t.ctx, "padding", string(make([]byte, t.head().Is.GetLimits().GetMetadataBytes())))
			if _, err := t.head().Worker.GetHealth(ctx, &workerpb.GetHealthRequest{}); err == nil {
				t.Errorf("a call with %d bytes of metadata was answered", t.head().Is.GetLimits().GetMetadataBytes())
			}
			t.health(t.head())
		}},
		{ID: "limits.handshake", Clauses: []string{"LIM-4"}, Skip: quickHandshake, Says: "A connection that says nothing is closed after limits.handshake.", Run: func(t *T) {
			conn := t.dialRaw()
			_ = conn.SetReadDeadline(time.Now().Add(t.handshake() + 3*time.Second))
			if _, err := io.Copy(io.Discard, conn); err != nil && errors.Is(err, context.DeadlineExceeded) || timedOut(err) {
				t.Errorf("the connection stands %v after it should have been closed", 3*time.Second)
			}
		}},
		{ID: "limits.silent-stream", Clauses: []string{"LIM-4"}, Skip: quickHandshake, Says: "A Session stream without an open ends with DEADLINE_EXCEEDED after limits.handshake.", Run: func(t *T) {
			l := t.link(t.head())
			t.want(l.refusal(), workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED)
		}},
		{ID: "limits.pings", Clauses: []string{"LIM-5"}, Says: "Who pings too often is disconnected.", Run: pingsBounded},
		{ID: "limits.requests", Clauses: []string{"LIM-1"}, Skip: atMost(500, "calls at once", (*workerpb.PrincipalLimits).GetRequestBurst), Says: "Calls that come too fast are QUOTA_EXCEEDED; after retry_after one is let in.", Run: requestsBounded},
	}
}

// atMost is a Case.Skip for limits that are too high to be reached by a case.
func atMost(n uint32, what string, of func(*workerpb.PrincipalLimits) uint32) func(*Target) string {
	return func(t *Target) string {
		if limit := of(t.head().Is.GetLimits().GetPrincipal()); limit > n {
			return label("a principal may have %d %s, a case tries at most %d", limit, what, n)
		}
		return ""
	}
}

// fewerThanSlots is a Case.Skip for workers that have no room for a session more than a principal may have.
func fewerThanSlots(t *Target) string {
	if l := t.head().Is.GetLimits(); l.GetPrincipal().GetSessions() >= l.GetSessions() {
		return label("a principal may have %d sessions, the worker has room for %d", l.GetPrincipal().GetSessions(), l.GetSessions())
	}
	return ""
}

func (t *T) handshake() time.Duration { return t.head().Is.GetLimits().GetHandshake().AsDuration() }

func quickHandshake(t *Target) string {
	if bound := t.head().Is.GetLimits().GetHandshake().AsDuration(); bound > 2*time.Second {
		return label("limits.handshake is %v, which is longer than a case waits", bound)
	}
	return ""
}

func streamsBounded(t *T) {
	var ends []context.CancelFunc
	var refused error
	for range t.head().Is.GetLimits().GetPrincipal().GetStreams() + 1 {
		ctx, cancel := context.WithCancel(t.ctx)
		t.Cleanup(cancel)
		stream, err := t.head().Worker.WatchHealth(ctx, &workerpb.WatchHealthRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if refused = err; err != nil {
			break
		}
		ends = append(ends, cancel)
	}
	t.want(t.errorOf(refused), quota)
	for _, end := range ends {
		end()
	}
	t.until("calls are let in again", func() bool {
		_, err := t.head().Worker.GetHealth(t.ctx, &workerpb.GetHealthRequest{})
		return err == nil
	})
}

func sessionsBounded(t *T) {
	var all []*driver
	for range t.head().Is.GetLimits().GetPrincipal().GetSessions() {
		all = append(all, t.openDriver())
	}
	t.refuse(quota, func(*workerpb.Open) {})
	all[0].usable()
	for _, d := range all {
		d.finish()
	}
	t.openDriver().finish()
}

func requestsBounded(t *T) {
	for range t.head().Is.GetLimits().GetPrincipal().GetRequestBurst() + 1000 {
		if _, err := t.head().Worker.GetHealth(t.ctx, &workerpb.GetHealthRequest{}); err != nil {
			e := t.want(t.errorOf(err), quota)
			select {
			case <-time.After(e.GetRetryAfter().AsDuration() + 50*time.Millisecond):
			case <-t.ctx.Done():
			}
			t.health(t.head())
			return
		}
	}
	t.Errorf("no call was too many")
}

func controlBounded(t *T) {
	d := t.openDriver()
	p := t.head().Is.GetLimits().GetPrincipal()
	for range 4 * p.GetControlBurst() {
		d.send(receiveCredit(1, 0))
	}
	d.ends(quota)
	t.openDriver().finish()
}

func messageBounded(t *T) {
	before := t.metrics(t.tail()).GetTotal().GetTokensEvaluated()
	d := t.openDriver()
	s := d.step(prefill(t.ids(1, 1)...))
	s.GetPrefill().Tokens = make([]uint32, t.head().Is.GetLimits().GetMessageBytes()+(64<<10)+1) // a byte each
	d.give(s)
	for d.take() {
	}
	if errors.Is(d.end, io.EOF) {
		t.Errorf("the stream ended well")
	}
	t.openDriver().finish()
	if after := t.metrics(t.tail()).GetTotal().GetTokensEvaluated(); after != before {
		t.Errorf("%d tokens of it were evaluated", after-before)
	}
}

// dialRaw is a connection to the first worker that says nothing.
func (t *T) dialRaw() net.Conn {
	conn, err := (&net.Dialer{}).DialContext(t.ctx, "tcp", t.head().Address)
	if err != nil {
		t.Fatalf("dial %s: %v", t.head().Address, err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func timedOut(err error) bool {
	var net net.Error
	return errors.As(err, &net) && net.Timeout()
}

// pingsBounded speaks HTTP/2 itself; a worker that does not understand it, for it wants TLS, hangs up too.
func pingsBounded(t *T) {
	conn := t.dialRaw()
	_ = conn.SetDeadline(time.Now().Add(patience))
	framer := http2.NewFramer(conn, conn)
	_, err := io.WriteString(conn, http2.ClientPreface)
	if err == nil {
		err = framer.WriteSettings()
	}
	for range 64 {
		if err == nil {
			err = framer.WritePing(false, [8]byte{1})
		}
	}
	for {
		frame, err := framer.ReadFrame()
		if timedOut(err) {
			t.Fatalf("64 pings at once, and the connection stands")
		}
		if err != nil {
			return
		}
		if f, ok := frame.(*http2.GoAwayFrame); ok && f.ErrCode != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("the worker hung up with %v, ENHANCE_YOUR_CALM is due", f.ErrCode)
		}
	}
}
