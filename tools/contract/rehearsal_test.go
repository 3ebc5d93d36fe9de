package contract

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/pinned"
	"github.com/distributed-gguf-runtime/dgr/tools/tablegen"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// rehearsal is a copy of contracts that a test may release from. What is frozen there stays frozen; else the present revision
// is frozen first.
type rehearsal struct {
	Contract
	t   *testing.T
	old int // the newest frozen revision
}

func rehearse(t *testing.T) rehearsal {
	t.Helper()
	w, err := workspace.Open(".")
	require.NoError(t, err)
	require.NoError(t, pinned.Ensure(t.Context(), w, pinned.Generators))
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(w.Path("contracts"))))
	r := rehearsal{Contract: Contract{Dir: dir, Buf: pinned.Tool(w, "buf")}, t: t}
	if r.old, err = r.Revision(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.baseline(r.old)); err != nil {
		_, err := r.Freeze(t.Context())
		require.NoError(t, err)
	}
	return r
}

// replace changes the files of the contract that name, a pattern of paths, means; pattern must match in each.
func (r rehearsal) replace(name, pattern, with string) {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.Dir, filepath.FromSlash(name)))
	require.NoError(r.t, err)
	require.NotEmpty(r.t, files, name)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(r.t, err)
		changed := regexp.MustCompile(pattern).ReplaceAllString(string(text), with)
		require.NotEqual(r.t, string(text), changed, "%s matches nothing in %s", pattern, file)
		require.NoError(r.t, os.WriteFile(file, []byte(changed), 0o644))
	}
}

const (
	protoDir  = "proto/dgr/worker/v1/"
	revisions = "tables/" + tablegen.RevisionsFile
)

// next makes the next revision: a field of a request, one of a response, a message, a code, and an enum value.
func (r rehearsal) next() {
	r.t.Helper()
	r.replace(protoDir+"step.proto", `\nmessage Step \{`, "\nmessage Step {\n  // Before whom it goes.\n  uint32 priority = 9000;\n  // Why.\n  Reason reason = 9001;\n")
	r.replace(protoDir+"step.proto", `\z`, "\n// Reason of a priority.\nmessage Reason {\n  // One sentence.\n  string text = 1;\n}\n")
	r.replace(protoDir+"step.proto", `\nmessage StepResult \{`, "\nmessage StepResult {\n  // Times it stood behind others.\n  uint32 overtaken = 9000;\n")
	r.replace(protoDir+"session.proto", `EGRESS_RETURN = 2;`, "EGRESS_RETURN = 2;\n  // To nobody.\n  EGRESS_NOWHERE = 9000;")
	r.replace(protoDir+"error.proto", `\nenum ErrorCode \{`, "\nenum ErrorCode {\n  // It was overtaken too often.\n  ERROR_CODE_OVERTAKEN = 9000;")
	r.replace(protoDir+"error.proto", `(  // It was overtaken too often\.\n  ERROR_CODE_OVERTAKEN = 9000;)((?:.|\n)*?ERROR_CODE_AUTHORITY_DOWN = \d+;)`, "$2\n$1")
	r.replace("tables/errors.v1.yaml", `\z`, fmt.Sprintf("  - {code: OVERTAKEN, number: 9000, grpc: ABORTED, scope: STEP, recovery: RETRY_OTHER, since: %d, instead: NO_CAPACITY, sentence: \"Others went before; try elsewhere.\"}\n", r.old+1))
	r.replace(revisions, `(?m)^max: \d+$`, fmt.Sprintf("max: %d", r.old+1))
	lines := ""
	for _, line := range []string{"field: Step.priority", "field: Step.reason", "field: StepResult.overtaken", "value: EGRESS_NOWHERE, instead: EGRESS_RETURN"} {
		lines += fmt.Sprintf("\n  - {%s, since: %d}", line, r.old+1)
	}
	r.replace(revisions, `(?m)^added:( \[\])?$`, "added:"+lines)
}

// A release: freeze, add, check, generate, freeze again. Each later revision is held against all that are frozen.
func TestARevisionIsReleased(t *testing.T) {
	t.Parallel()
	r := rehearse(t)
	require.NoError(t, r.Check(t.Context()), "what is frozen is compatible with itself")
	_, err := r.Freeze(t.Context())
	require.ErrorContains(t, err, fmt.Sprintf("revision %d is frozen", r.old))

	r.next()
	require.NoError(t, r.Check(t.Context()))
	files, err := tablegen.Generate(filepath.Join(r.Dir, "tables"), "tables")
	require.NoError(t, err)
	require.Contains(t, string(files["revisions.go"]), fmt.Sprintf("MaxRevision uint32 = %d", r.old+1))
	require.Contains(t, string(files["revisions.go"]), fmt.Sprintf(`{Name: "dgr.worker.v1.ERROR_CODE_OVERTAKEN", Since: %d, Instead: "ERROR_CODE_NO_CAPACITY"}`, r.old+1))

	dir, err := r.Freeze(t.Context())
	require.NoError(t, err)
	frozen, err := r.Frozen()
	require.NoError(t, err)
	require.Len(t, frozen, r.old+1)
	for _, name := range []string{imageFile, tablesDir + "/errors.v1.yaml", tablesDir + "/session.v1.yaml"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	require.NoError(t, r.Check(t.Context()))
	r.replace(protoDir+"step.proto", `uint32 priority = 9000;`, "uint32 priority = 9002;")
	require.ErrorContains(t, r.Check(t.Context()), fmt.Sprintf("break revision %d", r.old+1))
}

// What takes back a promise is refused, with the name of what it takes back.
func TestBreakingChangesAreRefused(t *testing.T) {
	t.Parallel()
	whole := rehearse(t)
	whole.next()
	for name, c := range map[string]struct{ file, pattern, with, want string }{
		"field renumbered":        {protoDir + "step.proto", `uint64 step_id = 1;`, "uint64 step_id = 8001;", `with name "step_id" on message`},
		"field removed":           {protoDir + "session.proto", `  uint64 attempt = 3;\n`, "", `field "3" with name "attempt" on message "Open"`},
		"field retyped":           {protoDir + "session.proto", `uint64 attempt = 3;`, "string attempt = 3;", `"attempt" on message "Open" changed type`},
		"field renamed":           {protoDir + "session.proto", `uint64 attempt = 3;`, "uint64 try = 3;", `"attempt" to "try"`},
		"enum value removed":      {protoDir + "session.proto", `  EGRESS_RETURN = 2;\n  // To nobody.\n`, "", "EGRESS_RETURN of revision"},
		"enum value renumbered":   {protoDir + "error.proto", `ERROR_CODE_INTERNAL = 24;`, "ERROR_CODE_INTERNAL = 924;", `enum value "24" on enum "ErrorCode"`},
		"call removed":            {protoDir + "worker_service.proto", `(?m)^  rpc GetMetrics.*\n`, "", `"GetMetrics"`},
		"package renamed":         {protoDir + "*.proto", `package dgr\.worker\.v1;`, "package dgr.worker.v2;", `"dgr.worker.v2"`},
		"presence dropped":        {protoDir + "error.proto", `optional uint32 index = 1;`, "uint32 index = 1;", `"index" on message "HopRef"`},
		"code gone":               {"tables/errors.v1.yaml", `(?m)^.*code: SUPERSEDED.*\n`, "", "the code SUPERSEDED of revision"},
		"code with other status":  {"tables/errors.v1.yaml", `code: SUPERSEDED, number: 26, grpc: ABORTED`, "code: SUPERSEDED, number: 26, grpc: INTERNAL", "the code SUPERSEDED was number 26, ABORTED"},
		"row answered otherwise":  {"tables/session.v1.yaml", `\{state: ACTIVE, event: OpenStale, error: STALE_ATTEMPT`, "{state: ACTIVE, event: OpenStale, error: INTERNAL", "session: the row ACTIVE × OpenStale"},
		"row goes elsewhere":      {"tables/step.v1.yaml", `\{state: HELD, event: Finished, next: DONE`, "{state: HELD, event: Finished, next: FAILED", "step: the row HELD × Finished"},
		"addition of no revision": {revisions, `(?m)^.*Step\.priority.*\n`, "", "Step.priority came with revision"},
		"addition twice as old":   {revisions, `EGRESS_NOWHERE, instead: EGRESS_RETURN, since: \d+`, "EGRESS_NOWHERE, instead: EGRESS_RETURN, since: 99", "EGRESS_NOWHERE: since is 99"},
		"addition that is none":   {revisions, `Step\.priority`, "Step.urgency", "Step.urgency is named in the tables, but no proto file has it"},
		"code without its age":    {"tables/errors.v1.yaml", `since: \d+, instead: NO_CAPACITY`, "since: 1", "ERROR_CODE_OVERTAKEN came with revision"},
		"two revisions at once":   {revisions, `(?m)^max: \d+$`, "max: 99", "max is 99"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rehearsal{Contract: Contract{Dir: t.TempDir(), Buf: whole.Buf}, t: t, old: whole.old}
			require.NoError(t, os.CopyFS(r.Dir, os.DirFS(whole.Dir)))
			r.replace(c.file, c.pattern, c.with)
			_, err := r.Freeze(t.Context())
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestBaselinesHaveNoGap(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"2"}, {"1", "3"}, {"1", "notes"}, {"0"}} {
		c := Contract{Dir: t.TempDir()}
		for _, name := range names {
			require.NoError(t, os.MkdirAll(filepath.Join(c.Dir, baselineDir, name), 0o755))
		}
		_, err := c.Frozen()
		require.ErrorContains(t, err, "does not belong into", strings.Join(names, " "))
	}
	frozen, err := Contract{Dir: t.TempDir()}.Frozen()
	require.NoError(t, err)
	require.Empty(t, frozen)
}

// The repository's own contract keeps what is frozen of it.
func TestTheContractKeepsItsPromises(t *testing.T) {
	t.Parallel()
	w, err := workspace.Open(".")
	require.NoError(t, err)
	require.NoError(t, pinned.Ensure(t.Context(), w, pinned.Generators))
	require.NoError(t, Contract{Dir: w.Path("contracts"), Buf: pinned.Tool(w, "buf")}.Check(t.Context()))
	_, err = fs.Stat(os.DirFS(w.Path("contracts")), "RELEASING.md")
	require.NoError(t, err)
}
