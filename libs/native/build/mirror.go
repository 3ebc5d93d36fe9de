package build

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// mirror makes to hold the files of from and no others. Files that are the same already keep their times, so that what
// was compiled from them stays good.
func mirror(from, to string) error {
	kept := map[string]bool{}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		kept[name] = true
		return mirrorFile(path, filepath.Join(to, name))
	})
	if err != nil {
		return err
	}
	return filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(to, path)
		if err != nil || kept[name] {
			return err
		}
		return os.Remove(path)
	})
}

func mirrorFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	switch old, err := os.ReadFile(to); {
	case err == nil && bytes.Equal(old, data):
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}
