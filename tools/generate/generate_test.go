package generate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompareNamesEachFile(t *testing.T) {
	committed, fresh := t.TempDir(), t.TempDir()
	write(t, committed, map[string]string{
		"go.mod": "module gen", "go.sum": "", "tables/same.go": "a", "tables/old.go": "a", "tables/gone.go": "a", "notes.txt": "",
	})
	write(t, fresh, map[string]string{"tables/same.go": "a", "tables/old.go": "b", "mocks/new.go": "c"})
	found, err := Compare(committed, fresh)
	require.NoError(t, err)
	require.Equal(t, []string{
		"gen/mocks/new.go: missing", "gen/notes.txt: nobody generates it", "gen/tables/gone.go: nobody generates it", "gen/tables/old.go: differs",
	}, found)
	found, err = Compare(fresh, fresh)
	require.NoError(t, err)
	require.Empty(t, found)
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}
