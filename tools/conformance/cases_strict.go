package conformance

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// strangerNumber is of a field that no revision has.
const strangerNumber = 19_876

// strangerValue is an enum value that no revision has.
const strangerValue = 7_654

// stranger gives a message a field that no revision knows yet.
func stranger(m proto.Message) { strangerIn(m.ProtoReflect()) }

func strangerIn(m protoreflect.Message) {
	raw := protowire.AppendTag(nil, strangerNumber, protowire.VarintType)
	m.SetUnknown(protowire.AppendVarint(raw, 1))
}

// spot is a place in a request, by the fields that lead to it: a message, or with an enum as its last field that enum.
type spot []protoreflect.FieldDescriptor

// spotsOf are all messages and enums at any depth below a message, itself the first, in order of their fields.
func spotsOf(d protoreflect.MessageDescriptor) []spot {
	all := []spot{nil}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		switch {
		case f.Enum() != nil:
			all = append(all, spot{f})
		case f.Message() != nil:
			for _, below := range spotsOf(f.Message()) {
				all = append(all, append(spot{f}, below...))
			}
		}
	}
	return all
}

// enum is the enum that the spot is, or nil.
func (s spot) enum() protoreflect.EnumDescriptor {
	if len(s) == 0 {
		return nil
	}
	return s[len(s)-1].Enum()
}

// path is how a worker names what estrange puts there.
func (s spot) path() string {
	var b strings.Builder
	for i, f := range s {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(string(f.Name()))
		if f.IsList() {
			b.WriteString("[0]")
		}
	}
	if s.enum() == nil {
		if len(s) > 0 {
			b.WriteByte('.')
		}
		fmt.Fprintf(&b, "#%d", strangerNumber)
	}
	return b.String()
}

// what is in words what estrange puts there, and the end of a case's id.
func (s spot) what() (words, id string) {
	if s.enum() != nil {
		return "an unknown value of " + s.path(), "unknown-enum." + s.path()
	}
	return "an unknown field " + s.path(), "unknown-field." + strings.TrimSuffix(s.path(), fmt.Sprintf(".#%d", strangerNumber))
}

// estrange puts something unknown into m at the spot; what leads there is made where it is absent.
func (s spot) estrange(m protoreflect.Message) {
	for _, f := range s {
		switch {
		case f.Enum() != nil:
			m.Set(f, protoreflect.ValueOfEnum(strangerValue))
			return
		case f.IsList():
			list := m.Mutable(f).List()
			if list.Len() == 0 {
				list.AppendMutable()
			}
			m = list.Get(0).Message()
		default:
			m = m.Mutable(f).Message()
		}
	}
	strangerIn(m)
}

// strictCases try an unknown field in every message and an unknown value in every enum that a request can hold, at every depth,
// as the descriptors have them: none is listed by hand.
func strictCases() []Case {
	var cases []Case
	for _, s := range spotsOf((&workerpb.SessionRequest{}).ProtoReflect().Descriptor()) {
		switch {
		case len(s) > 0 && s[0].Name() == "open":
			cases = append(cases, strictOpen(s))
		case len(s) > 0 && s[0].Name() == "step":
			cases = append(cases, strictStep(s))
		default:
			cases = append(cases, strictControl(s))
		}
	}
	return append(append(cases, illegalControl()...), strictCalls()...)
}

func strictOpen(s spot) Case {
	words, id := s.what()
	return openFault{
		id: id, clauses: []string{"VER-1"}, code: malformed, path: s.path(), says: "An Open with " + words + " is MALFORMED, with its path.",
		change: func(_ *Target, o *workerpb.Open) {
			s.estrange((&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}}).ProtoReflect())
		},
	}.asCase()
}

// strictStep is a step with something unknown inside: it fails alone.
func strictStep(s spot) Case {
	words, id := s.what()
	return stepFault{
		id: id, clauses: []string{"VER-1", "STP-7"}, code: malformed, path: s.path(), make: somePrefill,
		says: "A step with " + words + " fails alone as MALFORMED, with its path.",
		change: func(step *workerpb.Step) {
			s.estrange((&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: step}}).ProtoReflect())
		},
	}.asCase()
}

// strictControl is something unknown in a message that is no step: it ends the attempt.
func strictControl(s spot) Case {
	words, id := s.what()
	return Case{ID: "strict." + id, Clauses: []string{"VER-1", "STP-7"}, Says: "A message with " + words + " ends the attempt as MALFORMED, with its path.", Run: func(t *T) {
		d := t.openDriver()
		m := &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: &workerpb.ReceiveCredit{Tokens: proto.Uint32(1)}}}
		s.estrange(m.ProtoReflect())
		d.send(m)
		if path := d.ends(malformed).GetDetail().GetField().GetPath(); path != s.path() {
			t.Errorf("the detail names the field %q, %q is due", path, s.path())
		}
	}}
}

// illegalControl are messages that are no step and break a rule of their own.
func illegalControl() []Case {
	var cases []Case
	for _, f := range []struct {
		id, path string
		m        *workerpb.SessionRequest
	}{
		{"cancel_step.zero", "cancel_step", cancelStep(0, 1, true)},
		{"cancel_step.backwards", "cancel_step", cancelStep(2, 1, true)},
		{"frame.no-index", "frame", &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: 1, Data: []byte{1}}}}},
		{"frame.empty", "frame", &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: 1, Index: proto.Uint32(0)}}}},
	} {
		cases = append(cases, Case{ID: "strict.illegal." + f.id, Clauses: []string{"VER-2", "STP-7"}, Says: f.id + " ends the attempt as MALFORMED, with its path.", Run: func(t *T) {
			d := t.openDriver()
			d.send(f.m)
			if path := d.ends(malformed).GetDetail().GetField().GetPath(); !strings.HasPrefix(path, f.path) {
				t.Errorf("the detail names the field %q, %q is due", path, f.path)
			}
		}})
	}
	return append(cases, Case{ID: "strict.no-kind", Clauses: []string{"VER-2"}, Says: "A request without a kind ends the attempt as MALFORMED.", Run: func(t *T) {
		d := t.openDriver()
		d.send(&workerpb.SessionRequest{})
		d.ends(malformed)
	}})
}

// strictCalls are unknown things in the requests of all calls but Session.
func strictCalls() []Case {
	var cases []Case
	files := workerpb.File_dgr_worker_v1_worker_service_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(files, func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				if m := methods.Get(j); m.Name() != "Session" {
					for _, s := range spotsOf(m.Input()) {
						cases = append(cases, strictCall(m, s))
					}
				}
			}
		}
		return true
	})
	return sorted(cases)
}

func strictCall(method protoreflect.MethodDescriptor, s spot) Case {
	words, id := s.what()
	id = strings.TrimSuffix(id, fmt.Sprintf(".#%d", strangerNumber))
	return Case{ID: "strict." + string(method.Name()) + "." + id, Clauses: []string{"VER-1"},
		Says: string(method.Name()) + " with " + words + " is MALFORMED, with its path, and changes nothing.", Run: func(t *T) {
			request := made(method.Input())
			s.estrange(request.ProtoReflect())
			if path := t.want(t.errorOf(t.call(method, request)), malformed).GetDetail().GetField().GetPath(); path != s.path() {
				t.Errorf("the detail names the field %q, %q is due", path, s.path())
			}
			d := t.openDriver()
			d.usable()
			d.finish()
		}}
}

// call makes a call with one request and returns how it ends, or nil once it is answered.
func (t *T) call(method protoreflect.MethodDescriptor, request proto.Message) error {
	kind := grpc.StreamDesc{ServerStreams: method.IsStreamingServer(), ClientStreams: method.IsStreamingClient()}
	stream, err := t.head().Conn.NewStream(t.ctx, &kind, fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name()))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(made(method.Output()))
}

// made is an empty message of a kind of the contract.
func made(d protoreflect.MessageDescriptor) proto.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(fmt.Sprintf("conformance: %v", err)) // the generated code holds all
	}
	return kind.New().Interface()
}
