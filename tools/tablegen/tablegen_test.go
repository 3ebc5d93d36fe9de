package tablegen

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const goodTaxonomy = `version: 1
errors:
  - {code: INTERNAL, number: 2, grpc: INTERNAL, scope: SESSION, recovery: REPLAY, since: 1, sentence: "It broke."}
  - {code: MALFORMED, number: 1, grpc: INVALID_ARGUMENT, scope: STEP, recovery: FIX_REQUEST, since: 1, sentence: "It is wrong."}
`

const goodLifecycle = `version: 1
table: door
initial: OPEN
final: [GONE]
states: [OPEN, SHUT, GONE]
events: [Push, Burn]
proposed_events: [Burn]
rows:
  - {state: OPEN, event: Push, next: SHUT, effects: [make_noise, closed_THAT_way]}
  - {state: OPEN, event: Burn, next: GONE, effects: []}
  - {state: SHUT, event: Push, error: MALFORMED, effects: []}
  - {state: SHUT, event: Burn, next: GONE, effects: [make_noise]}
  - {state: GONE, event: Push, impossible: INTERNAL, effects: []}
  - {state: GONE, event: Burn, next: GONE, effects: []}
`

func parseDoor(t *testing.T, text string) (*Lifecycle, error) {
	t.Helper()
	taxonomy, err := ParseTaxonomy("errors.v1.yaml", []byte(goodTaxonomy))
	require.NoError(t, err)
	return ParseLifecycle("door.v1.yaml", []byte(text), taxonomy)
}

func TestTaxonomyIsInOrderOfNumbers(t *testing.T) {
	taxonomy, err := ParseTaxonomy("errors.v1.yaml", []byte(goodTaxonomy))
	require.NoError(t, err)
	require.Equal(t, "MALFORMED", taxonomy.Errors[0].Code)
	require.Equal(t, "INTERNAL", taxonomy.Errors[1].Code)
}

func TestTaxonomyFaultsNameTheirLine(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"unknown key":       {"since: 1, sentence: \"It broke.\"", "since: 1, sentence: \"It broke.\", colour: red", `line 3: unknown key "colour"`},
		"double code":       {"MALFORMED, number: 1", "INTERNAL, number: 1", "errors.v1.yaml:4: code INTERNAL is already at line 3"},
		"double number":     {"number: 1", "number: 2", "errors.v1.yaml:4: number 2 of MALFORMED belongs to INTERNAL already"},
		"number zero":       {"number: 1", "number: 0", "errors.v1.yaml:4: MALFORMED: number is 0"},
		"unknown status":    {"INVALID_ARGUMENT", "INVALID", `errors.v1.yaml:4: MALFORMED: grpc "INVALID" is no gRPC status`},
		"status OK":         {"INVALID_ARGUMENT", "OK", `grpc "OK" is no gRPC status of an error`},
		"unknown scope":     {"scope: STEP", "scope: STAIR", `errors.v1.yaml:4: MALFORMED: scope "STAIR"`},
		"unknown recovery":  {"FIX_REQUEST", "PRAY", `errors.v1.yaml:4: MALFORMED: recovery "PRAY"`},
		"young without one": {"since: 1, sentence: \"It is", "since: 2, sentence: \"It is", `errors.v1.yaml:4: MALFORMED: instead is ""`},
		"young for young":   {"since: 1, sentence: \"It is", "since: 2, instead: MALFORMED, sentence: \"It is", `MALFORMED: instead is "MALFORMED"`},
		"old with another":  {"since: 1, sentence: \"It is", "since: 1, instead: INTERNAL, sentence: \"It is", "MALFORMED: instead is INTERNAL, but every caller knows"},
		"since zero":        {"since: 1, sentence: \"It is", "since: 0, sentence: \"It is", "errors.v1.yaml:4: MALFORMED: since is 0"},
		"no full stop":      {"It is wrong.", "It is wrong", "errors.v1.yaml:4: MALFORMED: sentence"},
		"another version":   {"version: 1", "version: 2", "version is 2"},
		"unknown top level": {"version: 1", "version: 1\nlater: true", "later"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(goodTaxonomy, c.from, c.to, 1)
			require.NotEqual(t, goodTaxonomy, text, "the case changes nothing")
			_, err := ParseTaxonomy("errors.v1.yaml", []byte(text))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestLifecycleFaultsNameTheirRow(t *testing.T) {
	_, err := parseDoor(t, goodLifecycle)
	require.NoError(t, err)
	for name, c := range map[string]struct{ from, to, want string }{
		"missing pair":        {"  - {state: SHUT, event: Burn, next: GONE, effects: [make_noise]}\n", "", "door.v1.yaml: no row for SHUT × Burn"},
		"double pair":         {"{state: SHUT, event: Burn", "{state: SHUT, event: Push", "door.v1.yaml:12: row SHUT × Push is already at line 11"},
		"unknown state":       {"{state: SHUT, event: Push", "{state: AJAR, event: Push", `door.v1.yaml:11: row AJAR × Push: "AJAR" is no state`},
		"unknown event":       {"{state: SHUT, event: Push", "{state: SHUT, event: Pull", `door.v1.yaml:11: row SHUT × Pull: "Pull" is no event`},
		"unknown next":        {"next: SHUT", "next: AJAR", `door.v1.yaml:9: row OPEN × Push: next "AJAR" is no state`},
		"unknown code":        {"error: MALFORMED", "error: ODD", `door.v1.yaml:11: row SHUT × Push: error "ODD" is no code`},
		"impossible is other": {"impossible: INTERNAL", "impossible: MALFORMED", `row GONE × Push: impossible is "MALFORMED"`},
		"two outcomes":        {"error: MALFORMED", "error: MALFORMED, next: OPEN", "row SHUT × Push: has 2 of next, error and impossible"},
		"no outcome":          {"error: MALFORMED, ", "", "row SHUT × Push: has 0 of next, error and impossible"},
		"final is left":       {"{state: GONE, event: Burn, next: GONE", "{state: GONE, event: Burn, next: OPEN", "GONE is final, yet it goes to OPEN"},
		"unknown final":       {"final: [GONE]", "final: [LOST]", `final "LOST" is no state`},
		"unknown initial":     {"initial: OPEN", "initial: AJAR", `initial "AJAR" is no state`},
		"state twice":         {"states: [OPEN, SHUT, GONE]", "states: [OPEN, SHUT, GONE, SHUT]", "state SHUT is listed twice"},
		"event twice":         {"events: [Push, Burn]", "events: [Push, Burn, Push]", "event Push is listed twice"},
		"effect twice":        {"[make_noise, closed", "[make_noise, make_noise, closed", "effect make_noise is listed twice"},
		"bad effect":          {"closed_THAT_way", "Closed that", `effect "Closed that" is no name`},
		"unreachable":         {"next: SHUT", "next: OPEN", "state SHUT cannot be reached from OPEN"},
		"unknown row key":     {"error: MALFORMED", "error: MALFORMED, why: x", `line 11: unknown key "why"`},
		"name clash":          {"closed_THAT_way", "Make_noise", `effect "Make_noise" is no name`},
		"go name clash":       {"closed_THAT_way", "make_NOISE", "would both be called DoorEffectMakeNoise"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(goodLifecycle, c.from, c.to, 1)
			require.NotEqual(t, goodLifecycle, text, "the case changes nothing")
			_, err := parseDoor(t, text)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestGoNames(t *testing.T) {
	for in, want := range map[string]string{
		"NONE": "None", "CACHE_MISMATCH": "CacheMismatch", "free_slot": "FreeSlot", "closed_DOWNSTREAM_LOST": "ClosedDownstreamLost",
		"OpenNew": "OpenNew", "drop_held_from_k": "DropHeldFromK",
	} {
		require.Equal(t, want, goName(in))
	}
}

func TestGenerateRefusesAFileThatIsNotCalledAfterItsTable(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "errors.v1.yaml", goodTaxonomy)
	write(t, dir, RevisionsFile, goodRevisions)
	write(t, dir, "gate.v1.yaml", goodLifecycle)
	_, err := Generate(dir, "tables")
	require.ErrorContains(t, err, `tables/gate.v1.yaml: its table is "door"; the file must be called door.v1.yaml`)
}

func TestWriteKeepsTheOldFilesWhenATableHasAFault(t *testing.T) {
	in, out := t.TempDir(), t.TempDir()
	write(t, in, "errors.v1.yaml", goodTaxonomy)
	write(t, in, RevisionsFile, goodRevisions)
	write(t, in, "door.v1.yaml", strings.Replace(goodLifecycle, "next: SHUT", "next: AJAR", 1))
	write(t, out, "door.go", "package tables\n")
	require.Error(t, Write(in, out))
	require.FileExists(t, out+"/door.go")
}

func TestWriteIsDeterministicAndEmptiesTheFolder(t *testing.T) {
	in, out := t.TempDir(), t.TempDir()
	write(t, in, "errors.v1.yaml", goodTaxonomy)
	write(t, in, RevisionsFile, goodRevisions)
	write(t, in, "door.v1.yaml", goodLifecycle)
	write(t, out, "window.go", "package tables\n")
	first, err := Generate(in, "tables")
	require.NoError(t, err)
	second, err := Generate(in, "tables")
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.NoError(t, Write(in, out))
	require.NoFileExists(t, out+"/window.go")
	require.FileExists(t, out+"/door.go")
	require.Contains(t, string(first["door.go"]), "{DoorOpen, DoorEventPush, OutcomeNext, DoorShut, 0, []DoorEffect{DoorEffectMakeNoise, DoorEffectClosedThatWay}},")
}
