package session_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
)

const (
	stepScope    = workerpb.ErrorScope_ERROR_SCOPE_STEP
	sessionScope = workerpb.ErrorScope_ERROR_SCOPE_SESSION
)

func wantCode(t *testing.T, err error, code workerpb.ErrorCode) *fault.Error {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != code {
		t.Fatalf("error %v, want %s", err, fault.Name(code))
	}
	return f
}

func TestOpenSaysWhatIsMeant(t *testing.T) {
	opens := make(chan *workerpb.Open, 1)
	r := play(t, func(h *head) error {
		opens <- h.opened(4)
		return h.untilEnd()
	})
	s := open(t, r)
	o := <-opens
	if len(o.GetSessionId()) != 16 || len(o.GetSessionKey()) != 32 || o.GetAttempt() != 1 || o.GetEgress() != workerpb.Egress_EGRESS_FORWARD {
		t.Errorf("identity of %v", o)
	}
	if string(o.GetExpect().GetFingerprint()) != string(fingerprint[:]) || o.GetExpect().GetLayers().GetEnd() != 4 || o.GetContextTokens() != 64 {
		t.Errorf("expectation of %v", o)
	}
	if o.GetHeld() != nil || o.GetRing() != nil || o.GetReceive().Tokens == nil || o.GetReceive().Bytes == nil || o.GetLinger() == nil || o.GetBudget().AsDuration() <= 0 {
		t.Errorf("a driver's Open is wrong: %v", o)
	}
	if s.Opened().GetMaxStepTokens() != 16 || s.Length() != 0 || s.Err() != nil {
		t.Errorf("opened %v, length %d, %v", s.Opened(), s.Length(), s.Err())
	}
}

func TestPrefillKeepsTheWindowFullAndNotFuller(t *testing.T) {
	tokens := []uint32{0, 1, 2, 3, 4, 5, 6}
	extra := make(chan bool, 1)
	r := play(t, func(h *head) error {
		h.opened(3)
		var steps []*workerpb.Step
		for range 3 { // three in flight before any answer
			steps = append(steps, h.step())
		}
		// The fourth must wait for credit: what comes within a moment would be a breach.
		more := make(chan *workerpb.Step, 1)
		go func() { more <- h.step() }()
		select {
		case <-more:
			extra <- true
			return nil
		case <-time.After(50 * time.Millisecond):
			extra <- false
		}
		h.credit(1)
		steps = append(steps, <-more)
		for i, step := range steps {
			if step.GetStepId() != uint64(i+1) || step.GetAfter() != uint64(i) || step.GetExpectCache().GetLength() != uint32(2*i) || step.GetBudget().AsDuration() <= 0 {
				t.Errorf("step %d is %v", i, step)
			}
			h.done(step.GetStepId(), workerpb.Finish_FINISH_DONE, step.GetPrefill().GetTokens()...)
		}
		return h.untilEnd()
	})
	s := open(t, r)
	if err := s.Prefill(t.Context(), tokens); err != nil {
		t.Fatal(err)
	}
	if <-extra {
		t.Error("a step was sent without credit")
	}
	if !slices.Equal(s.Tokens(), tokens) {
		t.Errorf("the hops hold %v, want %v", s.Tokens(), tokens)
	}
}

func TestGenerateStreamsTokensAndGivesRoomBack(t *testing.T) {
	const n = 40
	r := play(t, func(h *head) error {
		h.opened(8)
		chunk, run := h.step(), h.step()
		h.credit(2)
		h.done(chunk.GetStepId(), workerpb.Finish_FINISH_DONE, chunk.GetPrefill().GetTokens()...)
		g := run.GetGenerate()
		if run.GetAfter() != chunk.GetStepId() || g.GetMaxTokens() != n || g.GetSampling().GetAnswerStart() != 3 || g.GetTokenBudget().AsDuration() <= 0 {
			t.Errorf("the run is %v", run)
		}
		evaluated := g.GetTokens()
		room := uint32(4)
		for i := range uint32(n) {
			for room == 0 { // four may wait unread; then room must come back
				room += h.recv().GetReceiveCredit().GetTokens()
			}
			room--
			h.token(run.GetStepId(), i, i%8)
			if i < n-1 {
				evaluated = append(evaluated, i%8)
			}
		}
		h.done(run.GetStepId(), workerpb.Finish_FINISH_LENGTH, evaluated...)
		return h.untilEnd()
	})
	o := options()
	o.ReceiveTokens = 4
	s, err := session.Open(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abandon()
	run, err := s.Generate(t.Context(), session.Generation{Tokens: []uint32{7, 6, 5}, MaxTokens: n})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(n) {
		token, err := run.Next(t.Context())
		if err != nil || token.Index != i || token.ID != i%8 || string(token.Bytes) != string('a'+rune(i%8)) {
			t.Fatalf("token %d is %+v, %v", i, token, err)
		}
	}
	if _, err := run.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last token: %v, want EOF", err)
	}
	result, ok := run.Result()
	if !ok || result.Finish != workerpb.Finish_FINISH_LENGTH || result.Sampled != n || len(result.Prefill) != 1 || s.Length() != 3+n-1 {
		t.Errorf("result %+v, %v, length %d", result, ok, s.Length())
	}
}

// The time until the first token begins when the run is sent, so it is not sent behind a long prompt.
func TestRunIsNotSentBehindMoreThanAStepAHop(t *testing.T) {
	early := make(chan bool, 1)
	r := play(t, func(h *head) error {
		h.opened(8)
		var steps []*workerpb.Step
		for range 4 {
			steps = append(steps, h.step())
		}
		for i, step := range steps {
			if least := options().StepBudget * time.Duration(i+1); step.GetBudget().AsDuration() < least {
				t.Errorf("step %d has %v, as if it did not wait for those before it", i, step.GetBudget().AsDuration())
			}
		}
		next := make(chan *workerpb.Step, 1)
		go func() { next <- h.step() }()
		for _, step := range steps[:2] {
			h.done(step.GetStepId(), workerpb.Finish_FINISH_DONE, step.GetPrefill().GetTokens()...)
		}
		select { // two are unanswered still, and there is one hop
		case <-next:
			early <- true
			return nil
		case <-time.After(50 * time.Millisecond):
			early <- false
		}
		h.done(steps[2].GetStepId(), workerpb.Finish_FINISH_DONE, steps[2].GetPrefill().GetTokens()...)
		run := <-next // one is unanswered
		h.done(steps[3].GetStepId(), workerpb.Finish_FINISH_DONE, steps[3].GetPrefill().GetTokens()...)
		h.token(run.GetStepId(), 0, 1)
		h.done(run.GetStepId(), workerpb.Finish_FINISH_LENGTH, run.GetGenerate().GetTokens()...)
		return h.untilEnd()
	})
	s := open(t, r)
	run, err := s.Generate(t.Context(), session.Generation{Tokens: make([]uint32, 10), MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	if <-early {
		t.Fatal("the run was sent behind two chunks that nobody had answered")
	}
	if token, err := run.Next(t.Context()); err != nil || token.ID != 1 {
		t.Errorf("token %+v, %v", token, err)
	}
	if _, err := run.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the last token: %v", err)
	}
}

func TestFailedChunkNamesTheFirstFaultAndTheSessionGoesOn(t *testing.T) {
	r := play(t, func(h *head) error {
		h.opened(8)
		steps := []*workerpb.Step{h.step(), h.step(), h.step()}
		h.failed(2, workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE, stepScope)
		h.failed(3, workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED, stepScope)
		h.done(1, workerpb.Finish_FINISH_DONE, steps[0].GetPrefill().GetTokens()...) // the result of the first comes last
		again := h.step()
		if again.GetStepId() != 4 || again.GetAfter() != 1 || again.GetExpectCache().GetLength() != 2 {
			t.Errorf("the step after a failure is %v", again)
		}
		h.done(4, workerpb.Finish_FINISH_DONE, again.GetPrefill().GetTokens()...)
		return h.untilEnd()
	})
	s := open(t, r)
	err := s.Prefill(t.Context(), []uint32{0, 1, 2, 3, 4, 5})
	wantCode(t, err, workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
	if s.Length() != 2 || s.Err() != nil {
		t.Fatalf("length %d, session %v", s.Length(), s.Err())
	}
	if err := s.Prefill(t.Context(), []uint32{2, 3}); err != nil || s.Length() != 4 {
		t.Errorf("%v, length %d", err, s.Length())
	}
}

func TestRefusedOpenKeepsTheWorkersWords(t *testing.T) {
	refusal := fault.New(workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY, "all 4 sessions are taken").
		At(&workerpb.HopRef{Index: proto.Uint32(0)}, &workerpb.HopRef{Index: proto.Uint32(1), WorkerId: "w1"})
	r := play(t, func(h *head) error {
		h.recv()
		return refusal
	})
	_, err := session.Open(t.Context(), r, options())
	f := wantCode(t, err, workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY)
	if f.Message != refusal.Message || f.Subject.GetWorkerId() != "w1" || f.Inferred || f.Recovery != workerpb.Recovery_RECOVERY_RETRY_OTHER {
		t.Errorf("the refusal arrived as %+v", f)
	}
}

func TestClosedErrorReachesTheRun(t *testing.T) {
	lost := &workerpb.ShardError{
		Code: workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST, Message: "hop 1 is gone", Scope: sessionScope,
		Recovery: workerpb.Recovery_RECOVERY_RESYNC, Subject: &workerpb.HopRef{Index: proto.Uint32(1), WorkerId: "w1"},
	}
	r := play(t, func(h *head) error {
		h.opened(8)
		h.token(h.step().GetStepId(), 0, 3)
		_ = h.closed(workerpb.CloseReason_CLOSE_REASON_ERROR, lost)
		return fault.FromProto(lost)
	})
	s := open(t, r)
	run, err := s.Generate(t.Context(), session.Generation{Tokens: []uint32{1}, MaxTokens: 9})
	if err != nil {
		t.Fatal(err)
	}
	if token, err := run.Next(t.Context()); err != nil || token.ID != 3 {
		t.Fatalf("the token before the loss: %+v, %v", token, err)
	}
	_, err = run.Next(t.Context())
	f := wantCode(t, err, workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)
	if f.Subject.GetIndex() != 1 || f.Inferred {
		t.Errorf("the loss arrived as %+v", f)
	}
	wantCode(t, s.Prefill(t.Context(), []uint32{1}), workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)
}

func TestBrokenLinkIsInferredAndNamesTheHead(t *testing.T) {
	r := play(t, func(h *head) error {
		h.opened(8)
		h.step()
		return status.Error(codes.Unavailable, "error reading from server: EOF")
	})
	s := open(t, r)
	f := wantCode(t, s.Prefill(t.Context(), []uint32{1}), workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)
	if !f.Inferred || f.Subject.GetIndex() != 0 || f.Subject.GetWorkerId() != "w0" || f.Recovery != workerpb.Recovery_RECOVERY_RESYNC {
		t.Errorf("the loss arrived as %+v", f)
	}
}

func TestSilentWorkerIsNotWaitedForLongerThanPromised(t *testing.T) {
	r := play(t, func(h *head) error { return h.untilEnd() })
	o := options()
	o.OpenBudget = 20 * time.Millisecond
	_, err := session.Open(t.Context(), r, o)
	wantCode(t, err, workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED)

	r = play(t, func(h *head) error { h.opened(8); return h.untilEnd() })
	o = options()
	o.StepBudget, o.TokenBudget = 20*time.Millisecond, 20*time.Millisecond
	s, err := session.Open(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abandon()
	f := wantCode(t, s.Prefill(t.Context(), []uint32{1}), workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED)
	if !f.Inferred || f.Subject.GetIndex() != 0 {
		t.Errorf("the deadline arrived as %+v", f)
	}
}

func TestStopKeepsWholeIterations(t *testing.T) {
	r := play(t, func(h *head) error {
		h.opened(8)
		run := h.step()
		h.token(run.GetStepId(), 0, 4)
		cancel := h.recv().GetCancelStep()
		if cancel.GetStepId() != run.GetStepId() || cancel.GetThrough() != run.GetStepId() || cancel.GetUndo() {
			t.Errorf("stop is %v", cancel)
		}
		h.token(run.GetStepId(), 1, 5) // was in flight
		h.done(run.GetStepId(), workerpb.Finish_FINISH_CANCELLED, 1, 4)
		return h.untilEnd()
	})
	s := open(t, r)
	run, err := s.Generate(t.Context(), session.Generation{Tokens: []uint32{1}, MaxTokens: 9})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	run.Stop()
	run.Stop()
	if token, err := run.Next(t.Context()); err != nil || token.ID != 5 {
		t.Errorf("the token in flight: %+v, %v", token, err)
	}
	if _, err := run.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after a stop: %v, want EOF", err)
	}
	if result, ok := run.Result(); !ok || result.Finish != workerpb.Finish_FINISH_CANCELLED || s.Length() != 2 {
		t.Errorf("result %+v, length %d", result, s.Length())
	}
}

func TestEndedContextUndoesPrefill(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := play(t, func(h *head) error {
		h.opened(8)
		step := h.step()
		cancel()
		m := h.recv().GetCancelStep()
		if m.GetStepId() != step.GetStepId() || !m.GetUndo() {
			t.Errorf("cancel is %v", m)
		}
		h.failed(step.GetStepId(), workerpb.ErrorCode_ERROR_CODE_CANCELLED, stepScope)
		return h.untilEnd()
	})
	s := open(t, r)
	wantCode(t, s.Prefill(ctx, []uint32{1}), workerpb.ErrorCode_ERROR_CODE_CANCELLED)
	if s.Length() != 0 || s.Err() != nil {
		t.Errorf("length %d, session %v", s.Length(), s.Err())
	}
}

func TestCloseReportsUsageAndIsIdempotent(t *testing.T) {
	r := play(t, func(h *head) error {
		h.opened(8)
		step := h.step()
		h.done(step.GetStepId(), workerpb.Finish_FINISH_DONE, step.GetPrefill().GetTokens()...)
		if m := h.recv().GetClose(); m == nil {
			t.Error("no Close came")
		}
		return h.closed(workerpb.CloseReason_CLOSE_REASON_REQUESTED, nil)
	})
	s := open(t, r)
	if err := s.Prefill(t.Context(), []uint32{1, 2}); err != nil {
		t.Fatal(err)
	}
	usage, err := s.Close(t.Context(), false)
	if err != nil || usage.GetTokensEvaluated() != 2 || s.Err() != nil {
		t.Errorf("usage %v, %v, session %v", usage, err, s.Err())
	}
	if _, err := s.Close(t.Context(), false); err != nil {
		t.Errorf("second Close: %v", err)
	}
	wantCode(t, s.Prefill(t.Context(), []uint32{1}), workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION)
}

func TestKeptPrefixesAreOfferedAndBegunWith(t *testing.T) {
	offers := make(chan []*workerpb.PrefixOffer, 1)
	script := func(h *head) error {
		offers <- h.opened(8).GetPrefix()
		return h.untilEnd()
	}
	o := options()
	o.Prompt, o.Offers = []uint32{1, 2, 3, 4}, []uint32{3, 2}
	s, err := session.Open(t.Context(), discover(t, &server{t: t, script: script, hashes: []uint32{1, 2, 3}}), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Abandon)
	if got := s.Tokens(); !slices.Equal(got, []uint32{1, 2, 3}) {
		t.Errorf("it begins with %v, the hops hold the first three", got)
	}
	sent := <-offers
	if len(sent) != 3 || sent[0].GetLength() != 4 || sent[1].GetLength() != 3 || sent[2].GetLength() != 2 || len(sent[0].GetChainHash()) != 16 {
		t.Errorf("offered were %v", sent)
	}
}

func TestResumeFindsWhatTheHopsHold(t *testing.T) {
	attempts := make(chan *workerpb.Open, 2)
	script := func(h *head) error {
		o := h.opened(8)
		attempts <- o
		if o.GetAttempt() == 1 {
			step := h.step()
			h.done(step.GetStepId(), workerpb.Finish_FINISH_DONE, step.GetPrefill().GetTokens()...)
			h.step() // its answer is lost with the link, though it was done
			return status.Error(codes.Unavailable, "gone")
		}
		if o.GetAttempt() == 3 {
			return h.untilEnd()
		}
		step := h.step()
		if step.GetStepId() != 1 || step.GetAfter() != 0 || step.GetExpectCache().GetLength() != 3 {
			t.Errorf("the first step of the second attempt is %v", step)
		}
		h.done(step.GetStepId(), workerpb.Finish_FINISH_DONE, step.GetPrefill().GetTokens()...)
		return h.untilEnd()
	}
	first := open(t, discover(t, &server{t: t, script: script}))
	wantCode(t, first.Prefill(t.Context(), []uint32{1, 2, 3}), workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)

	// The hops of the next route hold all three.
	second, err := first.Resume(t.Context(), discover(t, &server{t: t, script: script, hashes: []uint32{1, 2, 3}}))
	if err != nil {
		t.Fatal(err)
	}
	defer second.Abandon()
	a, b := <-attempts, <-attempts
	if string(a.GetSessionId()) != string(b.GetSessionId()) || string(a.GetSessionKey()) != string(b.GetSessionKey()) || b.GetAttempt() != 2 {
		t.Errorf("the second attempt is %v", b)
	}
	if !slices.Equal(second.Tokens(), []uint32{1, 2, 3}) {
		t.Errorf("found %v", second.Tokens())
	}
	if err := second.Prefill(t.Context(), []uint32{4}); err != nil || second.Length() != 4 {
		t.Errorf("%v, length %d", err, second.Length())
	}

	// Hops that hold more than this driver knows cannot be gone on with.
	_, err = second.Resume(t.Context(), discover(t, &server{t: t, script: script, hashes: []uint32{1, 2, 3, 4, 5, 6, 7}}))
	if f := wantCode(t, err, workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH); f.Recovery != workerpb.Recovery_RECOVERY_REPLAY {
		t.Errorf("recovery is %v", f.Recovery)
	}
}

func TestLogitsComeInFrames(t *testing.T) {
	r := play(t, func(h *head) error {
		h.opened(8)
		step := h.step()
		data := make([]byte, 2*8*4)
		data[3], data[2] = 0x3f, 0x80 // 1.0 in the first value
		for i := range 4 {
			h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Frame{Frame: &workerpb.Frame{
				StepId: step.GetStepId(), Index: proto.Uint32(uint32(i)), Data: data[i*16 : (i+1)*16],
			}}})
		}
		h.chain.Append(step.GetDecode().GetTokens()...)
		h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepResult{StepResult: &workerpb.StepResult{
			StepId: step.GetStepId(), Cache: h.state(), Finish: workerpb.Finish_FINISH_DONE,
			Output: &workerpb.Output{Kind: &workerpb.Output_Logits{Logits: &workerpb.Boundary{
				Rows: 2, Width: 8, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: 64,
			}}},
		}}})
		return h.untilEnd()
	})
	s := open(t, r)
	d, err := s.Decode(t.Context(), []uint32{1, 2}, workerpb.Want_WANT_LOGITS_ALL, nil)
	if err != nil || len(d.Logits) != 2 || len(d.Logits[1]) != 8 || d.Logits[0][0] != 1 {
		t.Errorf("logits %v, %v", d, err)
	}
}

func TestOverflowIsRefusedBeforeAnythingIsSent(t *testing.T) {
	r := play(t, func(h *head) error { h.opened(8); return h.untilEnd() })
	s := open(t, r)
	wantCode(t, s.Prefill(t.Context(), make([]uint32, 65)), workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW)
	_, err := s.Generate(t.Context(), session.Generation{Tokens: make([]uint32, 10), MaxTokens: 56})
	wantCode(t, err, workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW)
}
