// Package handbook carries a plain-language text about DGR and a small model that was trained on it and on nothing else,
// so that a first run needs no download: the prompt `A shard is` is continued by what a shard is.
//
// The model is architecture llama, in F16, and tools/modeltrain makes it from the text (mage model:train). The committed
// file is the truth: it is pinned by its hash, because another kind of machine may train other bits.
//
// What must stay out: how the model is run, and how it is trained.
package handbook

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed handbook.txt
var text string

//go:embed handbook.gguf
var model []byte

//go:embed prompts.json
var prompts []byte

// Text is the handbook that the model was trained on, in English, ASCII.
func Text() string { return text }

// Model is a copy of the bytes of the GGUF file, less than 2 MiB.
func Model() []byte { return bytes.Clone(model) }

// Prompt is a beginning that the model continues well, with the continuation.
type Prompt struct {
	Prompt       string `json:"prompt"`
	Continuation string `json:"continuation"` // what greedy sampling adds, byte for byte
	Tokens       int    `json:"tokens"`       // of the continuation, 60 or more
	// Margin is how far, at the closest of these tokens, the chosen one's logit is above the next: rounding of another
	// machine moves logits by far less.
	Margin float64 `json:"margin"`
}

// Prompts are the ten prompts of the README. Error: the embedded list is damaged.
func Prompts() ([]Prompt, error) {
	var list []Prompt
	d := json.NewDecoder(bytes.NewReader(prompts))
	d.DisallowUnknownFields()
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("embedded prompts.json: %w; build the program again", err)
	}
	return list, nil
}

// WriteFile puts the model into a directory as a file that is named by its content, and returns the path. The directory
// is made if need be; "" means dgr/models in the user's cache directory. A file that is there already is used if its
// content is right, and replaced if not. The file appears when it is complete, so several processes may call at once.
func WriteFile(dir string) (string, error) {
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find a place for the embedded model: %w; name a directory", err)
		}
		dir = filepath.Join(cache, "dgr", "models")
	}
	path := filepath.Join(dir, "handbook-"+SHA256[:16]+".gguf")
	if intact(path) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("write the embedded model: %w", err)
	}
	if err := replace(path, model); err != nil && !intact(path) {
		return "", fmt.Errorf("write the embedded model: %w", err)
	}
	return path, nil
}

// intact says whether the file at path is a plain file that holds the model.
func intact(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(model)) {
		return false
	}
	content, err := os.ReadFile(path)
	return err == nil && sum(content) == SHA256
}

// replace writes content beside path and moves it there.
func replace(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if gone := os.Remove(f.Name()); err != nil && gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func sum(content []byte) string {
	h := sha256.Sum256(content)
	return hex.EncodeToString(h[:])
}
