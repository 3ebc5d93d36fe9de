package fixturegen

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/distributed-gguf-runtime/dgr/gen/fixtures"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const pkg = "dgr.worker.v1"

// The committed fixtures decode to the same message from either form, and encode to the same bytes again.
func TestFixturesReadBackBothWays(t *testing.T) {
	made := All()
	kept := fixtures.All()
	var madeNames, keptNames []string
	for _, f := range made {
		madeNames = append(madeNames, f.Name())
	}
	for _, f := range kept {
		keptNames = append(keptNames, strings.TrimPrefix(f.Message, pkg+".")+"/"+f.Case)
	}
	require.Empty(t, cmp.Diff(madeNames, keptNames), "mend it: go tool mage gen")
	for i, f := range kept {
		t.Run(keptNames[i], func(t *testing.T) {
			require.Equal(t, strings.HasPrefix(f.Case, ReservedPrefix), f.Reserved)
			kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(f.Message))
			require.NoError(t, err)
			fromBinary, fromJSON := kind.New().Interface(), kind.New().Interface()
			require.NoError(t, proto.Unmarshal(f.Binary, fromBinary))
			require.NoError(t, protojson.Unmarshal(f.JSON, fromJSON))
			require.Empty(t, cmp.Diff(fromBinary, fromJSON, protocmp.Transform()))
			require.Empty(t, cmp.Diff(made[i].Message, fromBinary, protocmp.Transform()))
			binary, err := Binary(fromBinary)
			require.NoError(t, err)
			require.Equal(t, f.Binary, binary)
			text, err := JSON(fromJSON)
			require.NoError(t, err)
			require.Equal(t, string(f.JSON), string(text))
		})
	}
}

// contractFiles are the files of the contract's package.
func contractFiles() []protoreflect.FileDescriptor {
	var files []protoreflect.FileDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(f protoreflect.FileDescriptor) bool {
		files = append(files, f)
		return true
	})
	return files
}

// Every message type and every field of the contract, and so every kind of every oneof, is set in some fixture.
func TestEveryFieldOfTheContractHasAFixture(t *testing.T) {
	missing := map[string]bool{}
	for _, file := range contractFiles() {
		for i := range file.Messages().Len() {
			m := file.Messages().Get(i)
			missing[string(m.FullName())] = true
			for j := range m.Fields().Len() {
				missing[string(m.Fields().Get(j).FullName())] = true
			}
		}
	}
	require.NotEmpty(t, missing)
	for _, f := range All() {
		strike(missing, f.Message.ProtoReflect())
	}
	require.Empty(t, slices.Sorted(maps.Keys(missing)), "add these to a fixture")
}

// strike removes a message, its set fields and what is in them.
func strike(missing map[string]bool, m protoreflect.Message) {
	delete(missing, string(m.Descriptor().FullName()))
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		delete(missing, string(field.FullName()))
		switch {
		case field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				strike(missing, value.List().Get(i).Message())
			}
		default:
			strike(missing, value.Message())
		}
		return true
	})
}

// Every request and response of every method has fixtures of its own.
func TestEveryMethodHasFixtures(t *testing.T) {
	have := map[string]bool{}
	for _, f := range All() {
		have[f.Dir()] = true
	}
	methods := 0
	for _, file := range contractFiles() {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				methods++
				m := s.Methods().Get(j)
				require.True(t, have[string(m.Input().Name())], "no fixture of the request of %s", m.FullName())
				require.True(t, have[string(m.Output().Name())], "no fixture of the response of %s", m.FullName())
			}
		}
	}
	require.NotZero(t, methods)
}

// Every error code of the contract has a fixture that is called after it.
func TestEveryErrorCodeHasAFixture(t *testing.T) {
	seen := map[workerpb.ErrorCode]string{}
	for _, f := range All() {
		if e, ok := f.Message.(*workerpb.ShardError); ok {
			seen[e.Code] = f.Case
		}
	}
	for number, name := range workerpb.ErrorCode_name {
		if number == 0 {
			continue
		}
		want := strings.ToLower(strings.TrimPrefix(name, "ERROR_CODE_"))
		require.Equal(t, want, seen[workerpb.ErrorCode(number)], fmt.Sprintf("fixture of %s", name))
	}
}

// A payload says how long it is, and is, unless frames follow.
func TestPayloadsHaveTheSizeTheyAnnounce(t *testing.T) {
	require.Len(t, rows(3, 5).Data, int(rows(3, 5).Size))
	require.Equal(t, uint64(frameBytes+4*width), announced(framedRows, width).Size)
	require.Empty(t, announced(framedRows, width).Data)
}
