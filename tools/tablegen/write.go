package tablegen

import (
	"fmt"
	"os"
	"path/filepath"
)

// Write generates package tables from the tables in dir into out, which is emptied first. Nothing is touched when a
// table has a fault.
func Write(dir, out string) error {
	files, err := Generate(dir, filepath.ToSlash(dir))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return fmt.Errorf("empty the output folder: %w", err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("make the output folder: %w", err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return fmt.Errorf("write the generated file: %w", err)
		}
	}
	return nil
}
