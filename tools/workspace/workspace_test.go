package workspace

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAWorkspaceIsFoundFromBelow(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("go.work", "go 1.26.0\n\nuse (\n\t./gen\n\t./libs/engine\n)\n")
	write("gen/go.mod", "module x/gen\n\ngo 1.26.0\n\nrequire x/libs/engine v0.0.0\n\nreplace x/libs/engine => ../libs/engine\n")
	write("libs/engine/go.mod", "module x/libs/engine\n\ngo 1.26.0\n")
	write("libs/engine/deep/file.txt", "")

	w, err := Open(filepath.Join(root, "libs", "engine", "deep"))
	require.NoError(t, err)
	require.Equal(t, root, w.Root)
	require.Equal(t, []Module{
		{Dir: "gen", Path: "x/gen", Replaced: map[string]string{"x/libs/engine": "../libs/engine"}, Required: []string{"x/libs/engine"}},
		{Dir: "libs/engine", Path: "x/libs/engine", Replaced: map[string]string{}},
	}, w.Modules)

	write("go.work", "go 1.26.0\n\nuse ./nothing\n")
	_, err = Open(root)
	require.ErrorContains(t, err, "read a module that go.work names")
	_, err = Open(t.TempDir())
	require.ErrorContains(t, err, "no go.work")
}

func TestCommandsRunInTheirFolder(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "gen"), 0o755))
	w := &Workspace{Root: root}
	out, err := w.Output(t.Context(), "gen", []string{"GOWORK=off", "DGR_X=7"}, "go", "env", "GOWORK")
	require.NoError(t, err)
	require.Contains(t, out, "off")
	require.ErrorContains(t, w.Run(t.Context(), "", nil, "go", "no-such-command"), "go no-such-command: exit status")
	ended, end := context.WithCancel(t.Context())
	end()
	require.Error(t, w.Run(ended, "", nil, "go", "version"))
}
