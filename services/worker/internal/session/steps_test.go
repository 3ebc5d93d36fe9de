package session_test

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// newStep is a step with everything but its kind.
func newStep(id, after uint64, length uint32) *workerpb.Step {
	return &workerpb.Step{
		StepId: id, After: proto.Uint64(after), ExpectCache: &workerpb.ExpectCache{Length: proto.Uint32(length)},
		Budget: durationpb.New(10 * time.Second),
	}
}

func stepRequest(s *workerpb.Step) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: s}}
}

func prefill(id, after uint64, length uint32, tokens ...uint32) *workerpb.SessionRequest {
	s := newStep(id, after, length)
	s.Kind = &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: tokens}}
	return stepRequest(s)
}

func generate(id, after uint64, length, count uint32, tokens ...uint32) *workerpb.SessionRequest {
	s := newStep(id, after, length)
	s.Kind = &workerpb.Step_Generate{Generate: &workerpb.Generate{
		Tokens: tokens, MaxTokens: count, TokenBudget: durationpb.New(2 * time.Second),
		Sampling: &workerpb.Sampling{Temperature: proto.Float32(0)},
	}}
	return stepRequest(s)
}

func decode(id, after uint64, length uint32, want workerpb.Want, tokens ...uint32) *workerpb.SessionRequest {
	s := newStep(id, after, length)
	d := &workerpb.Decode{Tokens: tokens, Want: want}
	if want == workerpb.Want_WANT_SAMPLE {
		d.Sampling = &workerpb.Sampling{}
	}
	s.Kind = &workerpb.Step_Decode{Decode: d}
	return stepRequest(s)
}

func truncate(id, after uint64, length, to uint32) *workerpb.SessionRequest {
	s := newStep(id, after, length)
	s.Kind = &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: proto.Uint32(to)}}
	return stepRequest(s)
}

func cancel(id, through uint64, undo bool) *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{
		CancelStep: &workerpb.CancelStep{StepId: id, Through: through, Undo: undo},
	}}
}

func closing() *workerpb.SessionRequest {
	return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}}
}

// describe is one line for a message, without what is the same in every run or of no interest.
func describe(m proto.Message) string {
	switch m := m.(type) {
	case *workerpb.SessionRequest:
		return describeRequest(m)
	case *workerpb.SessionResponse:
		return describeResponse(m)
	}
	return fmt.Sprint(m)
}

func describeRequest(m *workerpb.SessionRequest) string {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionRequest_Open:
		o := kind.Open
		held := ""
		if o.GetHeld() != nil {
			held = fmt.Sprintf(" held %d", o.GetHeld().GetLength())
		}
		return fmt.Sprintf("open attempt %d layers [%d,%d) route %d budget %v%s", o.GetAttempt(), o.GetExpect().GetLayers().GetFirst(),
			o.GetExpect().GetLayers().GetEnd(), len(o.GetRoute()), o.GetBudget().AsDuration(), held)
	case *workerpb.SessionRequest_Step:
		s := kind.Step
		return fmt.Sprintf("step %d after %d at %d: %s%s", s.GetStepId(), s.GetAfter(), s.GetExpectCache().GetLength(), describeKind(s), describeBoundary(s.GetBoundary()))
	case *workerpb.SessionRequest_Iteration:
		i := kind.Iteration
		return fmt.Sprintf("iteration %d of step %d: token %d%s", i.GetIndex(), i.GetStepId(), i.GetToken(), describeBoundary(i.GetBoundary()))
	case *workerpb.SessionRequest_CancelStep:
		return fmt.Sprintf("cancel %d to %d undo %v", kind.CancelStep.GetStepId(), kind.CancelStep.GetThrough(), kind.CancelStep.GetUndo())
	case *workerpb.SessionRequest_Frame:
		return fmt.Sprintf("frame %d of step %d: %d bytes", kind.Frame.GetIndex(), kind.Frame.GetStepId(), len(kind.Frame.GetData()))
	case *workerpb.SessionRequest_ReceiveCredit:
		return fmt.Sprintf("receive credit %d tokens %d bytes", kind.ReceiveCredit.GetTokens(), kind.ReceiveCredit.GetBytes())
	case *workerpb.SessionRequest_Close:
		return "close"
	}
	return "nothing"
}

func describeKind(s *workerpb.Step) string {
	switch kind := s.GetKind().(type) {
	case *workerpb.Step_Prefill:
		return fmt.Sprintf("prefill %v", kind.Prefill.GetTokens())
	case *workerpb.Step_Decode:
		return fmt.Sprintf("decode %v %v", kind.Decode.GetTokens(), kind.Decode.GetWant())
	case *workerpb.Step_Generate:
		return fmt.Sprintf("generate %v max %d", kind.Generate.GetTokens(), kind.Generate.GetMaxTokens())
	case *workerpb.Step_Truncate:
		return fmt.Sprintf("truncate to %d", kind.Truncate.GetLength())
	}
	return "nothing"
}

func describeBoundary(b *workerpb.Boundary) string {
	if b == nil {
		return ""
	}
	return fmt.Sprintf(" boundary %dx%d", b.GetRows(), b.GetWidth())
}

func describeResponse(m *workerpb.SessionResponse) string {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Opened:
		o := kind.Opened
		hops := make([]string, len(o.GetHops()))
		for i, h := range o.GetHops() {
			hops[i] = fmt.Sprintf("%d=%s(%d)", h.GetHop().GetIndex(), h.GetHop().GetWorkerId(), h.GetFound().GetLength())
		}
		return fmt.Sprintf("opened cache %d hops %s", o.GetCache().GetLength(), strings.Join(hops, " "))
	case *workerpb.SessionResponse_Credit:
		return fmt.Sprintf("credit %d steps %d bytes", kind.Credit.GetSteps(), kind.Credit.GetBytes())
	case *workerpb.SessionResponse_Token:
		return fmt.Sprintf("token %d of step %d: %d %q", kind.Token.GetIndex(), kind.Token.GetStepId(), kind.Token.GetId(), kind.Token.GetBytes())
	case *workerpb.SessionResponse_StepResult:
		r := kind.StepResult
		return fmt.Sprintf("result of step %d: cache %d %v hops %d", r.GetStepId(), r.GetCache().GetLength(), r.GetFinish(), len(r.GetTiming()))
	case *workerpb.SessionResponse_StepFailed:
		f := kind.StepFailed
		return fmt.Sprintf("failed step %d: %s cache %d", f.GetStepId(), describeError(f.GetError()), f.GetCache().GetLength())
	case *workerpb.SessionResponse_Draining:
		return fmt.Sprintf("draining %s", describeHop(kind.Draining.GetHop()))
	case *workerpb.SessionResponse_Frame:
		return fmt.Sprintf("frame %d of step %d: %d bytes", kind.Frame.GetIndex(), kind.Frame.GetStepId(), len(kind.Frame.GetData()))
	case *workerpb.SessionResponse_Closed:
		return fmt.Sprintf("closed %v %s lingering %v", kind.Closed.GetReason(), describeError(kind.Closed.GetError()), kind.Closed.GetLingering())
	}
	return "nothing"
}

func describeError(e *workerpb.ShardError) string {
	if e == nil {
		return "without error"
	}
	return fmt.Sprintf("%s by %s about %s", fault.Name(e.GetCode()), describeHop(e.GetOrigin()), describeHop(e.GetSubject()))
}

func describeHop(h *workerpb.HopRef) string {
	if h == nil {
		return "nobody"
	}
	return fmt.Sprintf("%d=%s", h.GetIndex(), h.GetWorkerId())
}
