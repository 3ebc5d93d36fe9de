package record

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

func TestGatesOfAClassRun(t *testing.T) {
	w := &workspace.Workspace{Root: t.TempDir()}
	p := &PRD{Gates: []Gate{
		{ID: "G1", Class: Default, Command: "GOWORK=off go env GOWORK"},
		{ID: "G2", Class: Native, Command: "go no-such-command"},
	}}
	var out bytes.Buffer
	require.NoError(t, RunGates(t.Context(), w, p, Default, &out))
	require.Contains(t, out.String(), "NOT RUN  G2 go no-such-command")
	require.EqualError(t, RunGates(t.Context(), w, p, Native, &out), "failed: G2 go no-such-command")
	p.Gates[0].Command = "A=b"
	require.Error(t, RunGates(t.Context(), w, p, Default, &out))
}

func TestVariablesBeforeACommand(t *testing.T) {
	env, words := environment("A=1 B=x=y go test -run=X ./a")
	require.Equal(t, []string{"A=1", "B=x=y"}, env)
	require.Equal(t, []string{"go", "test", "-run=X", "./a"}, words)
}
