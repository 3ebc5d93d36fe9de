package conformance

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

var errNoHealth = errors.New("the message has no health")

// Messages that are not Open and not a Step.
func cancelStep(id, through uint64, undo bool) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{CancelStep: &workerpb.CancelStep{StepId: id, Through: through, Undo: undo}}}
}

func receiveCredit(tokens uint32, bytes uint64) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: &workerpb.ReceiveCredit{Tokens: proto.Uint32(tokens), Bytes: proto.Uint64(bytes)}}}
}

func closing() *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}}
}

func frame(id uint64) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: id, Index: proto.Uint32(0), Data: []byte{1, 2, 3, 4}}}}
}

func iteration(id uint64) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Iteration{Iteration: &workerpb.Iteration{StepId: id, Index: proto.Uint32(0), Token: proto.Uint32(1)}}}
}

func stepOf(t *T) *workerpb.SessionRequest {
	d := &driver{}
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: d.step(prefill(t.ids(1, 1)...))}}
}

// attemptCases are about one id, its key and its attempts.
func attemptCases() []Case {
	lingering := func(o *workerpb.Open) { o.Linger = durationpb.New(5 * time.Second) }
	return []Case{
		{ID: "attempt.wrong-key", Clauses: []string{"OPN-3", "LOS-4"}, Says: "Another key for a live id is PERMISSION_DENIED and the session goes on.", Run: func(t *T) {
			d := t.openDriver(lingering)
			o := proto.CloneOf(d.open)
			o.SessionKey, o.Attempt = random(32), 2
			t.refuseAt(t.head(), workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, o)
			d.usable()
			d.finish()
		}},
		{ID: "attempt.wrong-key-lingering", Clauses: []string{"OPN-3", "LOS-4"}, Says: "Another key for a lingering id is PERMISSION_DENIED and its cache stays.", Run: func(t *T) {
			d := t.linger(5)
			o := proto.CloneOf(d.open)
			o.SessionKey, o.Attempt = random(32), 2
			t.refuseAt(t.head(), workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED, o)
			t.again(d, 5).finish()
		}},
		{ID: "attempt.same", Clauses: []string{"OPN-4"}, Says: "A second stream with the same attempt is STALE_ATTEMPT and the first goes on.", Run: func(t *T) {
			d := t.openDriver()
			t.refuseAt(t.head(), workerpb.ErrorCode_ERROR_CODE_STALE_ATTEMPT, proto.CloneOf(d.open))
			d.usable()
			d.finish()
		}},
		{ID: "attempt.lower", Clauses: []string{"OPN-4"}, Says: "A lower attempt is STALE_ATTEMPT and the live one goes on.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Attempt = 9 })
			o := proto.CloneOf(d.open)
			o.Attempt = 8
			t.refuseAt(t.head(), workerpb.ErrorCode_ERROR_CODE_STALE_ATTEMPT, o)
			d.usable()
			d.finish()
		}},
		{ID: "attempt.stale-lingering", Clauses: []string{"OPN-4"}, Says: "The same attempt for a lingering cache is STALE_ATTEMPT and the cache stays.", Run: func(t *T) {
			d := t.linger(4)
			t.refuseAt(t.head(), workerpb.ErrorCode_ERROR_CODE_STALE_ATTEMPT, proto.CloneOf(d.open))
			t.again(d, 4).finish()
		}},
		{ID: "attempt.supersedes", Clauses: []string{"OPN-5", "OPN-7", "OPN-14"}, Says: "A greater attempt ends the older with SUPERSEDED and finds its cache; step ids begin anew.", Run: func(t *T) {
			d := t.openDriver(lingering)
			d.result(d.put(d.step(prefill(t.ids(6, 2)...))))
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			next := t.openWith(t.head(), o)
			next.tokens = d.tokens
			next.holds(next.opened.GetCache(), d.tokens)
			for _, h := range next.opened.GetHops() {
				next.holds(h.GetFound(), d.tokens)
			}
			if c := d.over(); c.GetReason() != workerpb.CloseReason_CLOSE_REASON_SUPERSEDED || c.GetError().GetCode() != workerpb.ErrorCode_ERROR_CODE_SUPERSEDED {
				t.Errorf("the older attempt ended with %v", c)
			}
			next.usable()
			next.finish()
		}},
		{ID: "attempt.supersedes-running", Clauses: []string{"OPN-5", "CAN-2"}, Says: "A greater attempt during a run ends it, waits for the engine, and finds a prefix of what was sent and told.", Run: func(t *T) {
			d := t.openDriver()
			tokens := t.ids(3, 2)
			id := d.put(d.step(generate(t.room(d)-2, tokens)))
			for len(d.of(id).tokens) == 0 {
				if !d.take() {
					t.Fatalf("the stream ended: %v", d.end)
				}
			}
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			next := t.openWith(t.head(), o)
			d.over()
			all := append(append([]uint32(nil), tokens...), sampled(d.of(id))...)
			n := int(next.opened.GetCache().GetLength())
			if n > len(all) {
				t.Fatalf("the new attempt finds %d tokens, the driver was told of %d", n, len(all))
			}
			next.tokens = all[:n]
			next.holds(next.opened.GetCache(), next.tokens)
			next.usable()
			next.finish()
		}},
		{ID: "attempt.unknown-begins-empty", Clauses: []string{"OPN-6"}, Says: "An unknown id with a great attempt begins empty.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Attempt = 1 << 40 })
			d.holds(d.opened.GetCache(), nil)
			d.usable()
			d.finish()
		}},
		{ID: "attempt.closed-begins-empty", Clauses: []string{"OPN-6", "CAN-4"}, Says: "After Close the id begins empty again.", Run: func(t *T) {
			d := t.openDriver(lingering)
			d.usable()
			d.finish()
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			next := t.openWith(t.head(), o)
			next.holds(next.opened.GetCache(), nil)
			next.finish()
		}},
		{ID: "attempt.linger-adopted", Clauses: []string{"CAN-6", "OPN-5", "OPN-14", "LOS-2"}, Says: "After a broken stream a greater attempt finds the cache on every hop and goes on from it.", Run: func(t *T) {
			d := t.linger(7)
			next := t.again(d, 7)
			next.usable()
			next.finish()
		}},
		{ID: "attempt.linger-zero", Clauses: []string{"CAN-6"}, Says: "With linger 0 a broken stream leaves nothing.", Run: func(t *T) {
			t.quiet()
			d := t.openDriver()
			d.usable()
			d.hangUp()
			for d.take() {
			}
			t.quiet() // before it, the greater attempt may find the stream alive and take its cache over
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			next := t.openWith(t.head(), o)
			next.holds(next.opened.GetCache(), nil)
			next.finish()
		}},
		{ID: "attempt.linger-expires", Clauses: []string{"TIM-4"}, Says: "A lingering cache is gone after its linger.", Run: func(t *T) {
			d := t.lingerFor(6, 200*time.Millisecond)
			if got := d.opened.GetLinger().AsDuration(); got > 200*time.Millisecond {
				t.Errorf("Opened.linger is %v, 200 ms were asked for", got)
			}
			time.Sleep(time.Second)
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			next := t.openWith(t.head(), o)
			next.holds(next.opened.GetCache(), nil)
			next.finish()
		}},
	}
}

// linger opens a session, caches n tokens and breaks the stream.
func (t *T) linger(n int) *driver { return t.lingerFor(n, 10*time.Second) }

func (t *T) lingerFor(n int, linger time.Duration) *driver {
	d := t.openDriver(func(o *workerpb.Open) { o.Linger = durationpb.New(linger) })
	d.result(d.put(d.step(prefill(t.ids(n, 2)...))))
	before := t.health(t.head()).GetUse().GetLingering()
	d.hangUp()
	for d.take() {
	}
	t.until("the cache lingers", func() bool { return t.health(t.head()).GetUse().GetLingering() > before })
	return d
}

// quiet waits until the head has no session, of this case or of one before.
func (t *T) quiet() {
	t.until("no session is left", func() bool { return t.health(t.head()).GetUse().GetSessions() == 0 })
}

// until waits for what no message confirms.
func (t *T) until(what string, done func() bool) {
	for end := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

// again opens the next attempt, which must find n tokens.
func (t *T) again(d *driver, n int) *driver {
	o := proto.CloneOf(d.open)
	o.Attempt++
	next := t.openWith(t.head(), o)
	next.tokens = d.tokens[:n]
	next.holds(next.opened.GetCache(), next.tokens)
	return next
}

// orderCases are messages in states that do not allow them.
func orderCases() []Case {
	var cases []Case
	for _, f := range []struct {
		id   string
		make func(*T) *workerpb.SessionRequest
	}{
		{"step", stepOf},
		{"frame", func(*T) *workerpb.SessionRequest { return frame(1) }},
		{"cancel-step", func(*T) *workerpb.SessionRequest { return cancelStep(1, 1, true) }},
		{"iteration", func(*T) *workerpb.SessionRequest { return iteration(1) }},
		{"receive-credit", func(*T) *workerpb.SessionRequest { return receiveCredit(1, 1) }},
		{"close", func(*T) *workerpb.SessionRequest { return closing() }},
	} {
		cases = append(cases, Case{ID: "order.before-open." + f.id, Clauses: []string{"OPN-1"}, Says: "A " + f.id + " message before Open is LIFECYCLE_VIOLATION.", Run: func(t *T) {
			l := t.link(t.head())
			l.send(f.make(t))
			e := t.want(l.refusal(), unlawful)
			if e.GetDetail().GetLifecycle().GetTable() != "session" {
				t.Errorf("the detail is %v", e.GetDetail())
			}
		}})
	}
	return append(cases, Case{ID: "order.open-twice", Clauses: []string{"OPN-2"}, Says: "A second Open on one stream ends the attempt with LIFECYCLE_VIOLATION.", Run: func(t *T) {
		d := t.openDriver()
		o := t.openFor(0)
		d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
		d.ends(unlawful)
	}},
		Case{ID: "order.iteration-from-driver", Clauses: []string{"GEN-8"}, Says: "An Iteration from a driver ends the attempt with LIFECYCLE_VIOLATION.", Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(somePrefill(t))))
			d.send(iteration(1))
			d.ends(unlawful)
		}},
		Case{ID: "order.frame-without-step", Clauses: []string{"FLO-5", "STP-7"}, Says: "A frame that no step announced ends the attempt.", Run: func(t *T) {
			d := t.openDriver()
			d.send(frame(1))
			d.ends(malformed)
		}},
		Case{ID: "order.step-id-repeated", Clauses: []string{"STP-1"}, Says: "A step id that was used ends the attempt as MALFORMED.", Run: func(t *T) {
			d := t.openDriver()
			s := d.step(somePrefill(t))
			d.result(d.put(s))
			d.give(s)
			d.ends(malformed)
		}},
		Case{ID: "order.step-id-lower", Clauses: []string{"STP-1"}, Says: "A step id below the last one ends the attempt as MALFORMED.", Run: func(t *T) {
			d := t.openDriver()
			d.id = 10
			d.result(d.put(d.step(somePrefill(t))))
			d.id = 4
			d.give(d.step(somePrefill(t), func(s *workerpb.Step) { s.After = proto.Uint64(0) }))
			d.ends(malformed)
		}},
		Case{ID: "order.step-id-zero", Clauses: []string{"STP-1", "VER-2"}, Says: "Step id 0 ends the attempt as MALFORMED.", Run: func(t *T) {
			d := t.openDriver()
			d.give(d.step(somePrefill(t), func(s *workerpb.Step) { s.StepId = 0 }))
			d.ends(malformed)
		}},
		Case{ID: "order.step-after-close", Clauses: []string{"CAN-7"}, Says: "A step behind Close is not run.", Run: func(t *T) {
			d := t.openDriver()
			d.send(closing())
			d.give(d.step(somePrefill(t)))
			if c := d.over(); c.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED || c.GetUsage().GetTokensEvaluated() != 0 {
				t.Errorf("the session ended with %v", c)
			}
		}},
		Case{ID: "order.half-close", Clauses: []string{"CAN-6"}, Says: "A driver that half-closes without Close ends its attempt.", Run: func(t *T) {
			d := t.openDriver()
			d.usable()
			if err := d.stream.CloseSend(); err != nil {
				t.Fatalf("half-close: %v", err)
			}
			for d.take() {
			}
		}},
		Case{ID: "order.silent-stream", Clauses: []string{"OPN-1"}, Says: "A stream on which nothing is sent does not disturb another.", Run: func(t *T) {
			for range 8 {
				t.link(t.head())
			}
			d := t.openDriver()
			d.usable()
			d.finish()
		}},
	)
}

// endCases are the ends of sessions.
func endCases() []Case {
	cases := []Case{
		{ID: "end.close", Clauses: []string{"ERR-6", "CAN-4"}, Says: "Close ends with Closed{REQUESTED}, without an error, status OK, and with usage.", Run: func(t *T) {
			d := t.openDriver()
			d.usable()
			c := d.finish()
			if c.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED || c.GetError() != nil || c.GetLingering() || c.GetUsage().GetTokensEvaluated() != 1 {
				t.Errorf("Closed is %v", c)
			}
		}},
		{ID: "end.close-running", Clauses: []string{"CAN-4", "ERR-6"}, Says: "Close during a run ends the session soon.", Run: func(t *T) {
			d := t.openDriver()
			d.put(d.step(generate(t.room(d)-2, t.ids(2, 3))))
			began := time.Now()
			if c := d.finish(); c.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED || time.Since(began) > 5*time.Second {
				t.Errorf("Closed is %v after %v", c, time.Since(began))
			}
		}},
	}
	for call, end := range map[string]func(*T, []byte, []byte, *uint64) error{
		"cancel-session": func(t *T, id, key []byte, attempt *uint64) error {
			_, err := t.head().Worker.CancelSession(t.ctx, &workerpb.CancelSessionRequest{SessionId: id, SessionKey: key, Attempt: attempt})
			return err
		},
		"release-session": func(t *T, id, key []byte, attempt *uint64) error {
			_, err := t.head().Worker.ReleaseSession(t.ctx, &workerpb.ReleaseSessionRequest{SessionId: id, SessionKey: key, Attempt: attempt})
			return err
		},
	} {
		cases = append(cases, endBy(call, end)...)
	}
	return sorted(cases)
}

// endBy are the cases of a call that ends a session.
func endBy(call string, end func(t *T, id, key []byte, attempt *uint64) error) []Case {
	ok := func(t *T, err error) {
		if err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
	return []Case{
		{ID: "end." + call + ".live", Clauses: []string{"CAN-4"}, Says: call + " ends a live session on every hop; twice is the same.", Run: func(t *T) {
			d := t.openDriver()
			d.usable()
			ok(t, end(t, d.open.GetSessionId(), d.open.GetSessionKey(), nil))
			if c := d.over(); c.GetReason() != workerpb.CloseReason_CLOSE_REASON_REQUESTED {
				t.Errorf("Closed is %v", c)
			}
			ok(t, end(t, d.open.GetSessionId(), d.open.GetSessionKey(), nil))
		}},
		{ID: "end." + call + ".running", Clauses: []string{"CAN-4"}, Says: call + " ends a running session.", Run: func(t *T) {
			d := t.openDriver()
			d.put(d.step(generate(t.room(d)-2, t.ids(2, 3))))
			ok(t, end(t, d.open.GetSessionId(), d.open.GetSessionKey(), nil))
			d.over()
		}},
		{ID: "end." + call + ".lingering", Clauses: []string{"CAN-4"}, Says: call + " frees a lingering cache.", Run: func(t *T) {
			d := t.linger(4)
			ok(t, end(t, d.open.GetSessionId(), d.open.GetSessionKey(), nil))
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			next := t.openWith(t.head(), o)
			if h := next.opened.GetHops()[0].GetFound(); h.GetLength() != 0 {
				t.Errorf("the first hop still held %d tokens", h.GetLength())
			}
			next.finish()
		}},
		{ID: "end." + call + ".unknown", Clauses: []string{"CAN-4"}, Says: call + " of an unknown session answers as for a known one.", Run: func(t *T) {
			ok(t, end(t, random(16), random(32), nil))
		}},
		{ID: "end." + call + ".wrong-key", Clauses: []string{"CAN-5", "LOS-4"}, Says: call + " with another key is PERMISSION_DENIED and the session goes on.", Run: func(t *T) {
			d := t.openDriver()
			t.want(t.errorOf(end(t, d.open.GetSessionId(), random(32), nil)), workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
			d.usable()
			d.finish()
		}},
		{ID: "end." + call + ".old-attempt", Clauses: []string{"CAN-5"}, Says: call + " with a bound below the attempt does nothing.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Attempt = 7 })
			ok(t, end(t, d.open.GetSessionId(), d.open.GetSessionKey(), proto.Uint64(6)))
			d.usable()
			d.finish()
		}},
		{ID: "end." + call + ".this-attempt", Clauses: []string{"CAN-5"}, Says: call + " with the present attempt as bound ends it.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Attempt = 7 })
			ok(t, end(t, d.open.GetSessionId(), d.open.GetSessionKey(), proto.Uint64(7)))
			d.over()
		}},
		{ID: "end." + call + ".id-15-bytes", Clauses: []string{"VER-2"}, Says: call + " with an id of 15 bytes is MALFORMED, with its path.", Run: func(t *T) {
			e := t.want(t.errorOf(end(t, random(15), random(32), nil)), malformed)
			if path := e.GetDetail().GetField().GetPath(); path != "session_id" {
				t.Errorf("the detail names the field %q", path)
			}
		}},
		{ID: "end." + call + ".key-31-bytes", Clauses: []string{"VER-2"}, Says: call + " with a key of 31 bytes is MALFORMED, with its path.", Run: func(t *T) {
			e := t.want(t.errorOf(end(t, random(16), random(31), nil)), malformed)
			if path := e.GetDetail().GetField().GetPath(); path != "session_key" {
				t.Errorf("the detail names the field %q", path)
			}
		}},
	}
}

// label is for ids of cases that differ by a number.
func label(format string, args ...any) string { return fmt.Sprintf(format, args...) }
