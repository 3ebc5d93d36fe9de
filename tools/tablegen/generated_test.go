package tablegen

import (
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

// The table that runs says what the file says, pair by pair.
func TestGeneratedSessionTableIsTheFile(t *testing.T) {
	dir := filepath.Join("..", "..", "contracts", "tables")
	data, err := os.ReadFile(filepath.Join(dir, taxonomyFile))
	require.NoError(t, err)
	taxonomy, err := ParseTaxonomy(taxonomyFile, data)
	require.NoError(t, err)
	data, err = os.ReadFile(filepath.Join(dir, "session.v1.yaml"))
	require.NoError(t, err)
	file, err := ParseLifecycle("session.v1.yaml", data, taxonomy)
	require.NoError(t, err)
	require.Len(t, tables.SessionStates(), len(file.States))
	require.Len(t, tables.SessionEvents(), len(file.Events))
	require.Equal(t, file.Initial, tables.SessionInitial.String())
	for _, state := range tables.SessionStates() {
		for _, event := range tables.SessionEvents() {
			want, got := file.Row(state.String(), event.String()), tables.SessionTransition(state, event)
			require.Equal(t, state, got.State)
			require.Equal(t, event, got.Event)
			switch {
			case want.Next != "":
				require.Equal(t, tables.OutcomeNext, got.Outcome)
				require.Equal(t, want.Next, got.Next.String())
				require.Zero(t, got.Error)
			case want.Error != "":
				require.Equal(t, tables.OutcomeRefused, got.Outcome)
				require.Equal(t, state, got.Next)
				require.Equal(t, want.Error, tables.ErrorByCode(got.Error).Name)
			default:
				require.Equal(t, tables.OutcomeImpossible, got.Outcome)
				require.Equal(t, state, got.Next)
				require.Equal(t, workerpb.ErrorCode_ERROR_CODE_INTERNAL, got.Error)
			}
			var effects []string
			for _, e := range got.Effects {
				effects = append(effects, e.String())
			}
			require.Equal(t, strings.Join(want.Effects, " "), strings.Join(effects, " "))
		}
	}
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
