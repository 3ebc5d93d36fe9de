package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
)

// places are the files that a run writes; outside of the repository there is only the model.
type places struct {
	model   string
	hash    string // Go source with the pinned hash
	prompts string
}

// findHandbook finds the committed files from the working directory upwards.
func findHandbook() (places, error) {
	dir, err := os.Getwd()
	if err != nil {
		return places{}, fmt.Errorf("find the repository: %w", err)
	}
	for {
		room := filepath.Join(dir, "libs", "native", "handbook")
		_, err := os.Stat(filepath.Join(room, "handbook.txt"))
		if err == nil {
			return places{
				model:   filepath.Join(room, "handbook.gguf"),
				hash:    filepath.Join(room, "pin.go"),
				prompts: filepath.Join(room, "prompts.json"),
			}, nil
		}
		up := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || up == dir {
			return places{}, errors.New("libs/native/handbook/handbook.txt is not in this directory or above; run modeltrain inside the repository")
		}
		dir = up
	}
}

// pin writes the hash and the continuations beside the committed model.
func (p places) pin(hash string, list []handbook.Prompt) error {
	source := fmt.Sprintf("package handbook\n\n// SHA256 is the hash of handbook.gguf, in lower-case hexadecimal. Written by tools/modeltrain.\nconst SHA256 = %q\n", hash)
	if err := os.WriteFile(p.hash, []byte(source), 0o644); err != nil {
		return fmt.Errorf("pin the hash: %w", err)
	}
	content, err := encodePrompts(list)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.prompts, content, 0o644); err != nil {
		return fmt.Errorf("write the prompts: %w", err)
	}
	return nil
}

// encodePrompts writes the list for people: a field a line, and no escapes for signs that HTML minds.
func encodePrompts(list []handbook.Prompt) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(list); err != nil {
		return nil, fmt.Errorf("encode the prompts: %w", err)
	}
	return b.Bytes(), nil
}
