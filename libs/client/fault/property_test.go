package fault_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// fill puts random values into every field of a message, at any depth, or leaves it out.
func fill(r *rand.Rand, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if r.IntN(4) == 0 {
			continue
		}
		switch {
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for range r.IntN(4) {
				m.Mutable(f).List().Append(protoreflect.ValueOfString(words(r, 64)))
			}
		case f.Message() != nil: // of a oneof the last one stays
			fill(r, m.Mutable(f).Message())
		default:
			m.Set(f, scalar(r, f.Kind()))
		}
	}
}

func scalar(r *rand.Rand, kind protoreflect.Kind) protoreflect.Value {
	switch kind {
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(r.Uint32() >> r.IntN(32))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(words(r, 256))
	case protoreflect.BytesKind:
		b := make([]byte, r.IntN(33))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return protoreflect.ValueOfBytes(b)
	}
	panic(fmt.Sprintf("a detail has a field of kind %v: say how it is drawn", kind))
}

// words are up to n runes, some of them awkward on a wire of headers.
func words(r *rand.Rand, n int) string {
	odd := []rune("abc :%\n\t\x00\x7fäß漢🙂\u2028")
	out := make([]rune, r.IntN(n))
	for i := range out {
		out[i] = odd[r.IntN(len(odd))]
	}
	return string(out)
}

// wellFormed is a random error of a code, as a peer may send it: scope and recovery need not be the table's.
func wellFormed(r *rand.Rand, code workerpb.ErrorCode) *workerpb.ShardError {
	e := &workerpb.ShardError{
		Code: code, Message: "m" + words(r, 200), Scope: workerpb.ErrorScope(1 + r.IntN(len(workerpb.ErrorScope_name)-1)),
		Recovery: workerpb.Recovery(1 + r.IntN(len(workerpb.Recovery_name)-1)),
	}
	if e.Recovery == workerpb.Recovery_RECOVERY_RETRY_SAME || e.Recovery == workerpb.Recovery_RECOVERY_RETRY_OTHER {
		e.RetryAfter = durationpb.New(time.Duration(r.Int64N(int64(time.Hour))))
	}
	for _, m := range []func() proto.Message{
		func() proto.Message { e.Origin = &workerpb.HopRef{}; return e.Origin },
		func() proto.Message { e.Subject = &workerpb.HopRef{}; return e.Subject },
		func() proto.Message { e.Detail = &workerpb.ErrorDetail{}; return e.Detail },
	} {
		if r.IntN(4) > 0 {
			fill(r, m().ProtoReflect())
		}
	}
	return e
}

// Whatever an error holds comes out on the far side of a status as it went in, over as many hops as there are.
func TestNothingIsLostOnTheWire(t *testing.T) {
	t.Parallel()
	for _, row := range tables.Errors() {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(60) {
				sent := wellFormed(rand.New(rand.NewPCG(seed, uint64(row.Code))), row.Code)
				err := error(fault.FromProto(sent))
				for range 3 { // hops
					err = overTheWire(t, fmt.Errorf("passed on: %w", err))
					got := fault.FromStatus(err)
					if !proto.Equal(got.Proto(), sent) {
						t.Fatalf("seed %d: %v went in, %v came out", seed, sent, got.Proto())
					}
					if !errors.Is(got, fault.Code(row.Code)) || !errors.Is(got, engine.Code(row.Name)) || got.Inferred || status.Code(err) != row.GRPC {
						t.Fatalf("seed %d: %v with status %v, inferred %v", seed, got, status.Code(err), got.Inferred)
					}
					for _, other := range tables.Errors() {
						if other.Code != row.Code && errors.Is(got, fault.Code(other.Code)) {
							t.Fatalf("seed %d: %v is also %s", seed, got, other.Name)
						}
					}
					err = got
				}
			}
		})
	}
}

// overTheWire is a status as bytes and back.
func overTheWire(t *testing.T, err error) error {
	t.Helper()
	s, _ := status.FromError(err)
	back := s.Proto()
	data, marshalErr := proto.Marshal(back)
	proto.Reset(back)
	if marshalErr != nil || proto.Unmarshal(data, back) != nil {
		t.Fatalf("%v does not cross: %v", s, marshalErr)
	}
	return status.ErrorProto(back)
}
