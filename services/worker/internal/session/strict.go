package session

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Strict refuses a request that holds, at any depth, a field or an enum value that this revision does not know. The error
// names the path.
func Strict(m proto.Message) *fault.Error {
	path, expected := stranger(m.ProtoReflect(), "")
	if path == "" {
		return nil
	}
	return malformed(path, "%s", expected)
}

// stranger returns the path of the first thing that is not known, and what would be legal; "" when all is known.
func stranger(m protoreflect.Message, at string) (path, expected string) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		return join(at, fmt.Sprintf("#%d", fieldNumber(raw))), "no field of this number in " + string(m.Descriptor().Name())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch f.Kind() {
		case protoreflect.MessageKind:
			path, expected = strangerIn(f, v, join(at, string(f.Name())))
		case protoreflect.EnumKind:
			if !f.IsList() && f.Enum().Values().ByNumber(v.Enum()) == nil {
				path, expected = join(at, string(f.Name())), "a value of "+string(f.Enum().Name())
			}
		default: // scalars cannot be strange
		}
		return path == ""
	})
	return path, expected
}

func strangerIn(f protoreflect.FieldDescriptor, v protoreflect.Value, at string) (path, expected string) {
	if !f.IsList() {
		return stranger(v.Message(), at)
	}
	list := v.List()
	for i := range list.Len() {
		if path, expected = stranger(list.Get(i).Message(), fmt.Sprintf("%s[%d]", at, i)); path != "" {
			return path, expected
		}
	}
	return "", ""
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
