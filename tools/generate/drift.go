package generate

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// handmade are the only files of gen that nobody generates.
var handmade = []string{"go.mod", "go.sum"}

// Drift generates everything into a folder beside the tree and compares. Its error names each file that differs, is
// missing or is too many, and the command that mends it.
func Drift(ctx context.Context, w *workspace.Workspace) error {
	fresh, err := os.MkdirTemp("", "dgr-gen-")
	if err != nil {
		return fmt.Errorf("make a folder to generate into: %w", err)
	}
	defer os.RemoveAll(fresh)
	if err := All(ctx, w, fresh); err != nil {
		return err
	}
	found, err := Compare(w.Path("gen"), filepath.Join(fresh, "gen"))
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("gen is not what the contracts give:\n  %s\nmend it: %s", strings.Join(found, "\n  "), Mend)
	}
	return nil
}

// Compare lists what tells two generated trees apart, one line a file, in alphabetical order.
func Compare(committed, fresh string) ([]string, error) {
	have, err := read(committed)
	if err != nil {
		return nil, err
	}
	want, err := read(fresh)
	if err != nil {
		return nil, err
	}
	var found []string
	for name, text := range want {
		switch old, ok := have[name]; {
		case !ok:
			found = append(found, "gen/"+name+": missing")
		case !bytes.Equal(old, text):
			found = append(found, "gen/"+name+": differs")
		}
	}
	for name := range have {
		if _, ok := want[name]; !ok && !slices.Contains(handmade, name) {
			found = append(found, "gen/"+name+": nobody generates it")
		}
	}
	slices.Sort(found)
	return found, nil
}

// read returns every file below dir, by its name from dir with slashes.
func read(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read generated files: %w", err)
	}
	return files, nil
}
