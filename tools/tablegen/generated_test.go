package tablegen

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// The taxonomy and the enum of the proto file say the same codes with the same numbers.
func TestTaxonomyAndProtoAgree(t *testing.T) {
	require.Len(t, tables.Errors(), len(workerpb.ErrorCode_name)-1)
	for _, e := range tables.Errors() {
		require.Equal(t, "ERROR_CODE_"+e.Name, workerpb.ErrorCode_name[int32(e.Code)])
		require.Equal(t, e, tables.ErrorByCode(e.Code))
	}
	require.Zero(t, tables.ErrorByCode(workerpb.ErrorCode(9999)))
}

// The tables that run say what the files say, pair by pair.
func TestGeneratedTablesAreTheFiles(t *testing.T) {
	dir := filepath.Join("..", "..", "contracts", "tables")
	data, err := os.ReadFile(filepath.Join(dir, taxonomyFile))
	require.NoError(t, err)
	taxonomy, err := ParseTaxonomy(taxonomyFile, data)
	require.NoError(t, err)
	generated := map[string]map[string]string{
		"session.v1.yaml": lines(tables.SessionStates(), tables.SessionEvents(), func(s tables.SessionState, e tables.SessionEvent) string {
			r := tables.SessionTransition(s, e)
			return line(r.Outcome, r.State, r.Next, r.Error, r.Effects)
		}),
		"shard.v1.yaml": lines(tables.ShardStates(), tables.ShardEvents(), func(s tables.ShardState, e tables.ShardEvent) string {
			r := tables.ShardTransition(s, e)
			return line(r.Outcome, r.State, r.Next, r.Error, r.Effects)
		}),
		"step.v1.yaml": lines(tables.StepStates(), tables.StepEvents(), func(s tables.StepState, e tables.StepEvent) string {
			r := tables.StepTransition(s, e)
			return line(r.Outcome, r.State, r.Next, r.Error, r.Effects)
		}),
	}
	names, err := lifecycleFiles(dir)
	require.NoError(t, err)
	require.Len(t, generated, len(names), "a table is not compared")
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		file, err := ParseLifecycle(name, data, taxonomy)
		require.NoError(t, err)
		want := map[string]string{}
		for _, r := range file.Rows {
			want[r.String()] = inWords(r)
		}
		require.Equal(t, want, generated[name], name)
	}
}

// lines is every pair of a generated table with its outcome in words.
func lines[S, E fmt.Stringer](states []S, events []E, row func(S, E) string) map[string]string {
	all := map[string]string{}
	for _, s := range states {
		for _, e := range events {
			all[s.String()+" × "+e.String()] = row(s, e)
		}
	}
	return all
}

// line is a generated row in the words of inWords; a row that keeps no rule of its outcome says so.
func line[S comparable, F fmt.Stringer](o tables.Outcome, state S, next S, code workerpb.ErrorCode, effects []F) string {
	var names []string
	for _, f := range effects {
		names = append(names, f.String())
	}
	text := " " + strings.Join(names, " ")
	switch {
	case o == tables.OutcomeNext && code == 0:
		return fmt.Sprintf("next %v", next) + text
	case o == tables.OutcomeRefused && next == state:
		return "error " + tables.ErrorByCode(code).Name + text
	case o == tables.OutcomeImpossible && next == state && code == workerpb.ErrorCode_ERROR_CODE_INTERNAL:
		return "impossible" + text
	}
	return fmt.Sprintf("broken row: %v, next %v, %v", o, next, code)
}

// inWords is the outcome of a row of a file.
func inWords(r Row) string {
	text := " " + strings.Join(r.Effects, " ")
	switch {
	case r.Next != "":
		return "next " + r.Next + text
	case r.Error != "":
		return "error " + r.Error + text
	}
	return "impossible" + text
}

// What no table knows is impossible, never a row of something else.
func TestUnknownStateOrEventIsImpossible(t *testing.T) {
	for _, row := range []tables.SessionRow{
		tables.SessionTransition(0, tables.SessionEventStep),
		tables.SessionTransition(tables.SessionActive, 0),
		tables.SessionTransition(200, tables.SessionEventStep),
		tables.SessionTransition(tables.SessionActive, 200),
	} {
		require.Equal(t, tables.OutcomeImpossible, row.Outcome)
		require.Equal(t, workerpb.ErrorCode_ERROR_CODE_INTERNAL, row.Error)
		require.Equal(t, row.State, row.Next)
	}
}
