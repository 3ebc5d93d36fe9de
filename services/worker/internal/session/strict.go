package session

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Strict refuses a request that holds, at any depth, a field or an enum value that a revision does not know, or that this
// worker does not know. The error names the path. A request of no revision is judged as one of the greatest.
func (r Revisions) Strict(m proto.Message, revision uint32) *fault.Error {
	if revision == 0 {
		revision = r.Max
	}
	path, expected := r.stranger(m.ProtoReflect(), "", revision)
	if path == "" {
		return nil
	}
	return malformed(path, "%s", expected)
}

// stranger returns the path of the first thing that is not known, and what would be legal; "" when all is known.
func (r Revisions) stranger(m protoreflect.Message, at string, revision uint32) (path, expected string) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		return join(at, fmt.Sprintf("#%d", fieldNumber(raw))), "no field of this number in " + string(m.Descriptor().Name())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		here := join(at, string(f.Name()))
		switch {
		case r.younger(f.FullName(), revision):
			path, expected = here, fmt.Sprintf("absent: revision %d does not know it", revision)
		case f.Message() != nil:
			path, expected = r.strangerIn(f, v, here, revision)
		case f.Enum() != nil && !f.IsList() && !r.speaks(f.Enum().Values().ByNumber(v.Enum()), revision):
			path, expected = here, "a value of "+string(f.Enum().Name())
		}
		return path == ""
	})
	return path, expected
}

func (r Revisions) strangerIn(f protoreflect.FieldDescriptor, v protoreflect.Value, at string, revision uint32) (path, expected string) {
	if !f.IsList() {
		return r.stranger(v.Message(), at, revision)
	}
	list := v.List()
	for i := range list.Len() {
		if path, expected = r.stranger(list.Get(i).Message(), fmt.Sprintf("%s[%d]", at, i), revision); path != "" {
			return path, expected
		}
	}
	return "", ""
}

// speaks says whether a revision has an enum value; nil is one that this worker does not know.
func (r Revisions) speaks(v protoreflect.EnumValueDescriptor, revision uint32) bool {
	return v != nil && !r.younger(v.FullName(), revision)
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// fieldNumber is the number of the first field in raw wire bytes.
func fieldNumber(raw protoreflect.RawFields) uint64 {
	var tag uint64
	for i := 0; i < len(raw) && i < 10; i++ {
		tag |= uint64(raw[i]&0x7f) << (7 * i)
		if raw[i] < 0x80 {
			break
		}
	}
	return tag >> 3
}

// Malformed is MALFORMED for a field of a request that is no message of a session.
func Malformed(path, expected string) *fault.Error { return malformed(path, "%s", expected) }

// malformed is MALFORMED with the path of the field and what would be legal there.
func malformed(path, expected string, args ...any) *fault.Error {
	return field(workerpb.ErrorCode_ERROR_CODE_MALFORMED, path, expected, args...)
}

// field is an error about one field of a request.
func field(code workerpb.ErrorCode, path, expected string, args ...any) *fault.Error {
	expected = fmt.Sprintf(expected, args...)
	return fault.New(code, "%s must be %s", path, expected).With(func(e *fault.Error) {
		e.Detail = &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Field{
			Field: &workerpb.FieldDetail{Path: path, Expected: expected},
		}}
	})
}
