package houserules

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// duties are words for what a Tracker does and a worker must not.
var duties = regexp.MustCompile(`(?i)tracker|billing|invoice|price|payment|balanc|reward|stake|wallet|relay`)

// The worker's contract serves exactly the agreed services, and none of its names speaks of a Tracker's duties: routes are
// given to a worker and used as given, what it meters it only reports.
func TestTheContractLeavesTheTrackerAlone(t *testing.T) {
	var services, names []string
	protoregistry.GlobalFiles.RangeFilesByPackage(workerpb.File_dgr_worker_v1_error_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			services = append(services, string(s.Name()))
			for j := range s.Methods().Len() {
				names = append(names, string(s.Methods().Get(j).FullName()))
			}
		}
		for i := range f.Messages().Len() {
			m := f.Messages().Get(i)
			names = append(names, string(m.FullName()))
			for j := range m.Fields().Len() {
				names = append(names, string(m.Fields().Get(j).FullName()))
			}
		}
		return true
	})
	slices.Sort(services)
	require.Equal(t, []string{"RingService", "ShardService", "TextService", "WorkerService"}, services)
	require.Greater(t, len(names), 100, "the contract was not read")
	for _, name := range names {
		require.False(t, duties.MatchString(name), "%s takes over a duty of the Tracker", name)
	}
	require.True(t, duties.MatchString("dgr.worker.v1.Usage.price_cents"), "the pattern finds nothing")
}
