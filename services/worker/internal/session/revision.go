package session

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Revisions is the inclusive range that a worker speaks, 1 ≤ Min ≤ Max, and what each revision after the first added.
type Revisions struct {
	Min, Max uint32
	Added    []tables.Addition
}

// Spoken are the revisions that this code speaks.
func Spoken() Revisions {
	return Revisions{Min: tables.MinRevision, Max: tables.MaxRevision, Added: tables.Additions()}
}

// Common is what a caller of a range and this worker both speak; ok is false when that is nothing.
func (r Revisions) Common(theirs *workerpb.RevisionRange) (both *workerpb.RevisionRange, ok bool) {
	both = &workerpb.RevisionRange{Min: max(theirs.GetMin(), r.Min), Max: min(theirs.GetMax(), r.Max)}
	return both, both.GetMin() <= both.GetMax()
}

// Of is the revision in whose words a caller of a range is answered before one was agreed on: the greatest of its own that
// this worker knows. A caller that names none is answered in the words of Min.
func (r Revisions) Of(theirs *workerpb.RevisionRange) uint32 {
	if theirs.GetMax() == 0 {
		return r.Min
	}
	return min(theirs.GetMax(), r.Max)
}

// Refuse is UNSUPPORTED_REVISION for an Open whose range has nothing in common with the worker's. Nothing else of such an
// Open can be judged: its caller may use fields that this worker does not know.
func (r Revisions) Refuse(o *workerpb.Open) *fault.Error {
	theirs := o.GetRevisions()
	if _, ok := r.Common(theirs); ok || theirs.GetMin() == 0 || theirs.GetMax() < theirs.GetMin() {
		return nil
	}
	return r.versions(o, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION, nil,
		"the caller speaks %d to %d, this hop %d to %d", theirs.GetMin(), theirs.GetMax(), r.Min, r.Max)
}

// added is what is said of an element; false for what revision 1 has.
func (r Revisions) added(name protoreflect.FullName) (tables.Addition, bool) {
	for _, a := range r.Added {
		if a.Name == name {
			return a, true
		}
	}
	return tables.Addition{}, false
}

// younger says whether a revision does not have an element yet.
func (r Revisions) younger(name protoreflect.FullName, revision uint32) bool {
	a, ok := r.added(name)
	return ok && a.Since > revision
}

// Words is a response as a caller of a revision may be told it: enum values that it does not know are replaced by the older
// ones that stand for them. Fields that it does not know stay: responses are read leniently. m is not changed.
func Words[M proto.Message](r Revisions, m M, revision uint32) M {
	if !r.translates(m.ProtoReflect(), revision, false) {
		return m
	}
	m = proto.CloneOf(m)
	r.translates(m.ProtoReflect(), revision, true)
	return m
}

// InWords is Words of an error; nil stays nil.
func InWords(r Revisions, err *fault.Error, revision uint32) *fault.Error {
	if err == nil || !r.translates(err.Proto().ProtoReflect(), revision, false) {
		return err
	}
	return fault.FromProto(Words(r, err.Proto(), revision))
}

// translates says whether m, at any depth, holds a value that a revision does not know; with replace it is replaced.
func (r Revisions) translates(m protoreflect.Message, revision uint32, replace bool) (found bool) {
	if len(r.Added) == 0 || revision >= r.Max {
		return false
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				found = r.translates(v.List().Get(i).Message(), revision, replace) || found
			}
		case f.Message() != nil:
			found = r.translates(v.Message(), revision, replace) || found
		case f.Enum() != nil && !f.IsList():
			if older := r.older(f.Enum().Values(), v.Enum(), revision); older != v.Enum() {
				found = true
				if replace {
					m.Set(f, protoreflect.ValueOfEnum(older))
				}
			}
		}
		return replace || !found
	})
	return found
}

// older is the value that stands for n in a revision; n itself where the revision has it.
func (r Revisions) older(values protoreflect.EnumValueDescriptors, n protoreflect.EnumNumber, revision uint32) protoreflect.EnumNumber {
	for v := values.ByNumber(n); v != nil; v = values.ByNumber(n) {
		a, ok := r.added(v.FullName())
		if !ok || a.Since <= revision {
			return n
		}
		instead := values.ByName(a.Instead)
		if instead == nil {
			return 0
		}
		n = instead.Number()
	}
	return n
}
