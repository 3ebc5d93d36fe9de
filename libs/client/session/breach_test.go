package session_test

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
)

func TestResponsesAreTakenLeniently(t *testing.T) {
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 500, protowire.BytesType), []byte("later"))
	r := play(t, func(h *head) error {
		h.opened(8)
		strange := &workerpb.SessionResponse{} // a kind that this revision does not know
		strange.ProtoReflect().SetUnknown(unknown)
		h.send(strange)
		step := h.step()
		h.chain.Append(step.GetPrefill().GetTokens()...)
		result := &workerpb.StepResult{StepId: step.GetStepId(), Cache: h.state(), Finish: 99}
		result.ProtoReflect().SetUnknown(unknown)
		h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepResult{StepResult: result}})
		h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepFailed{StepFailed: &workerpb.StepFailed{
			StepId: h.step().GetStepId(), Cache: h.state(), Error: &workerpb.ShardError{Code: 999, Recovery: 77, Scope: stepScope},
		}}})
		return h.untilEnd()
	})
	s := open(t, r)
	if err := s.Prefill(t.Context(), []uint32{1}); err != nil {
		t.Fatal(err)
	}
	f := wantCode(t, s.Prefill(t.Context(), []uint32{1}), 999)
	if f.Recovery != workerpb.Recovery_RECOVERY_NEVER {
		t.Errorf("an unknown recovery is %v, want NEVER", f.Recovery)
	}
}

// A worker that breaks the contract is told apart from one that fails: INTERNAL, inferred, and the session is over.
func TestBreachesEndTheSession(t *testing.T) {
	run := func(h *head) uint64 { h.opened(8); return h.step().GetStepId() }
	for name, script := range map[string]func(*head){
		"other tokens in the cache": func(h *head) { h.done(run(h), workerpb.Finish_FINISH_DONE, 1, 2) },
		"fewer tokens in the cache": func(h *head) { h.done(run(h), workerpb.Finish_FINISH_DONE) },
		"two answers":               func(h *head) { id := run(h); h.done(id, 1, 6, 7); h.done(id, 1) },
		"answer to nothing":         func(h *head) { run(h); h.done(9, 1) },
		"token of nothing":          func(h *head) { run(h); h.token(9, 0, 1) },
		"token out of order":        func(h *head) { h.token(run(h), 1, 1) },
		"token twice":               func(h *head) { id := run(h); h.token(id, 0, 1); h.token(id, 0, 1) },
		"failure without an error": func(h *head) {
			h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_StepFailed{StepFailed: &workerpb.StepFailed{StepId: run(h)}}})
		},
		"more tokens than room": func(h *head) {
			id := run(h)
			for i := range uint32(9) {
				h.token(id, i, 1)
			}
		},
		"output that nobody asked for": func(h *head) {
			h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Frame{Frame: &workerpb.Frame{StepId: run(h), Data: []byte{1}}}})
		},
		"opened twice": func(h *head) {
			h.opened(8)
			h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: &workerpb.Opened{}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := play(t, func(h *head) error { script(h); return h.untilEnd() })
			o := options()
			o.ReceiveTokens = 8
			s, err := session.Open(t.Context(), r, o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Abandon()
			var last error
			if g, err := s.Generate(t.Context(), session.Generation{Tokens: []uint32{6, 7}, MaxTokens: 20}); err != nil {
				last = err
			} else {
				<-s.Done() // nothing is read, so that the room runs out
				for last == nil {
					_, last = g.Next(t.Context())
				}
			}
			if errors.Is(last, io.EOF) { // the breach came behind the answer
				last = s.Err()
			}
			if f := wantCode(t, last, workerpb.ErrorCode_ERROR_CODE_INTERNAL); !f.Inferred || f.Subject.GetIndex() != 0 {
				t.Errorf("the breach arrived as %+v", f)
			}
		})
	}
}

func TestOpenRefusesAWorkerThatBreaksTheContract(t *testing.T) {
	for name, spoil := range map[string]func(*workerpb.Opened){
		"revision":  func(o *workerpb.Opened) { o.Revision = 9 },
		"no window": func(o *workerpb.Opened) { o.Window = nil },
		"no step":   func(o *workerpb.Opened) { o.MaxStepTokens = 0 },
		"strange cache": func(o *workerpb.Opened) {
			o.Cache = &workerpb.CacheState{Length: proto.Uint32(3), ChainHash: make([]byte, 16)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := play(t, func(h *head) error {
				h.recv()
				o := &workerpb.Opened{
					Revision: 1, Window: &workerpb.Credit{Steps: proto.Uint32(1)}, MaxStepTokens: 4, FrameBytes: 1 << 16, Cache: h.state(),
				}
				spoil(o)
				h.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: o}})
				return h.untilEnd()
			})
			_, err := session.Open(t.Context(), r, options())
			wantCode(t, err, workerpb.ErrorCode_ERROR_CODE_INTERNAL)
		})
	}
}
