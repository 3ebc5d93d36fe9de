package fault_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func hop(index uint32, id string) *workerpb.HopRef {
	return &workerpb.HopRef{Index: proto.Uint32(index), WorkerId: id, Instance: make([]byte, 16)}
}

// Every code of the table crosses the wire as a status and as a message, and is the same error on the other side.
func TestEveryCodeSurvivesTheWire(t *testing.T) {
	t.Parallel()
	if len(tables.Errors()) < 35 {
		t.Fatalf("the table has %d codes", len(tables.Errors()))
	}
	for _, row := range tables.Errors() {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			sent := fault.New(row.Code, "the particulars %d", 7).At(hop(0, "head"), hop(1, "tail"))
			st, ok := status.FromError(fmt.Errorf("wrapped: %w", error(sent)))
			if !ok || st.Code() != row.GRPC {
				t.Fatalf("status %v (%v), want %v", st.Code(), ok, row.GRPC)
			}
			for name, got := range map[string]*fault.Error{
				"status": fault.FromStatus(st.Err()), "message": fault.FromProto(sent.Proto()),
			} {
				if !errors.Is(got, fault.Code(row.Code)) || !proto.Equal(got.Proto(), sent.Proto()) || got.Inferred {
					t.Errorf("by %s: %v, want %v", name, got.Proto(), sent.Proto())
				}
			}
			sentence := strings.TrimSuffix(row.Sentence, ".")
			if !strings.HasPrefix(sent.Message, sentence) || !strings.HasSuffix(sent.Message, ": the particulars 7") {
				t.Errorf("message %q does not hold the table's sentence and the particulars", sent.Message)
			}
			asks := row.Recovery == workerpb.Recovery_RECOVERY_RETRY_SAME || row.Recovery == workerpb.Recovery_RECOVERY_RETRY_OTHER
			if has := sent.Proto().GetRetryAfter() != nil; has != asks {
				t.Errorf("retry_after present: %v, recovery %v", has, row.Recovery)
			}
		})
	}
}

func TestEngineCodesAreCodesOfTheContract(t *testing.T) {
	t.Parallel()
	for _, code := range []engine.Code{
		engine.Malformed, engine.LifecycleViolation, engine.SessionUnknown, engine.ShardMismatch, engine.CacheMismatch,
		engine.ContextOverflow, engine.NoCapacity, engine.DeadlineExceeded, engine.Cancelled, engine.EngineFault,
		engine.EngineOutOfMemory, engine.NumericFault, engine.UnsupportedArchitecture, engine.UnsupportedFeature,
		engine.BadModelFile, engine.InvalidGrammar, engine.NoTemplate, engine.TokenOutOfRange,
	} {
		f := fault.FromEngine(engine.Errorf(code, "x"))
		if fault.Name(f.Code) != string(code) || !errors.Is(f, code) {
			t.Errorf("engine code %s became %s", code, fault.Name(f.Code))
		}
	}
	if f := fault.FromEngine(errors.New("bare")); !errors.Is(f, engine.EngineFault) {
		t.Errorf("an error without code became %v", f)
	}
	if fault.FromEngine(nil) != nil || fault.Of(nil) != nil || fault.FromProto(nil) != nil || fault.FromStatus(nil) != nil {
		t.Error("nil became an error")
	}
}

// What a peer said and what was concluded differ: recovery depends on it.
func TestBareStatusIsInferred(t *testing.T) {
	t.Parallel()
	for grpcCode, want := range map[codes.Code]workerpb.ErrorCode{
		codes.Unavailable:       workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE,
		codes.DeadlineExceeded:  workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED,
		codes.Canceled:          workerpb.ErrorCode_ERROR_CODE_CANCELLED,
		codes.Unimplemented:     workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION,
		codes.ResourceExhausted: workerpb.ErrorCode_ERROR_CODE_MALFORMED,
		codes.DataLoss:          workerpb.ErrorCode_ERROR_CODE_INTERNAL,
	} {
		f := fault.FromStatus(status.Error(grpcCode, ""))
		if f.Code != want || !f.Inferred || !strings.Contains(f.Message, grpcCode.String()) {
			t.Errorf("%v became %v, inferred %v", grpcCode, f, f.Inferred)
		}
	}
}

// A caller of an older revision acts by the recovery that the error carries; a recovery it does not know means NEVER.
func TestUnknownValuesOfAPeer(t *testing.T) {
	t.Parallel()
	f := fault.FromProto(&workerpb.ShardError{Code: 9999, Message: "new", Recovery: workerpb.Recovery_RECOVERY_REPLAY})
	if f.Recovery != workerpb.Recovery_RECOVERY_REPLAY || fault.Name(f.Code) != "9999" {
		t.Errorf("unknown code: %v, %v", f, f.Recovery)
	}
	if s := f.GRPCStatus(); s.Code() != codes.Aborted || len(s.Details()) != 1 {
		t.Errorf("unknown code travels on as %v", s)
	}
	for _, r := range []workerpb.Recovery{workerpb.Recovery_RECOVERY_UNSPECIFIED, 99} {
		if f := fault.FromProto(&workerpb.ShardError{Recovery: r}); f.Recovery != workerpb.Recovery_RECOVERY_NEVER {
			t.Errorf("recovery %d acts as %v", r, f.Recovery)
		}
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	late, stop := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer stop()
	if f := fault.FromContext(late, "the answer"); !errors.Is(f, engine.DeadlineExceeded) || !errors.Is(f, context.DeadlineExceeded) {
		t.Errorf("a deadline became %v", f)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if f := fault.FromContext(ended, "the answer"); !errors.Is(f, engine.Cancelled) || !strings.Contains(f.Message, "the answer") {
		t.Errorf("a cancel became %v", f)
	}
}

func TestMessageIsClippedAtARune(t *testing.T) {
	t.Parallel()
	for pad := range 4 {
		f := fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "%s", strings.Repeat("x", pad)+strings.Repeat("ü", 2000))
		if m := f.Proto().GetMessage(); len(m) > 1024 || len(m) < 1020 || !utf8.ValidString(m) {
			t.Errorf("clipped to %d bytes, valid %v", len(m), utf8.ValidString(m))
		}
	}
}

func TestAtKeepsTheFirstHops(t *testing.T) {
	t.Parallel()
	f := fault.New(workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT, "").At(nil, hop(2, "tail"))
	g := f.At(hop(0, "head"), hop(1, "middle"))
	if g.Origin.GetWorkerId() != "head" || g.Subject.GetWorkerId() != "tail" || f.Origin != nil {
		t.Errorf("origin %v, subject %v, original %v", g.Origin, g.Subject, f.Origin)
	}
	if h := f.After(time.Minute); h.RetryAfter != time.Minute || f.RetryAfter != 0 {
		t.Errorf("After: %v, %v", h.RetryAfter, f.RetryAfter)
	}
}
