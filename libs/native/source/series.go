package source

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	pinFile    = "pin.json"
	patchesDir = "patches"
	seriesFile = "series.json"
)

// Series is the manifest of the patch queue: what the pin and each patch must be, byte for byte.
type Series struct {
	Tag     string  `json:"tag"`        // of the pin
	Tree    string  `json:"tree"`       // of the pin: the tree that the first patch applies to
	Pin     string  `json:"pin_sha256"` // of pin.json
	Patches []Patch `json:"patches"`    // in order
}

// Patch is one entry of the queue.
type Patch struct {
	File   string `json:"file"`   // name in patches/
	SHA256 string `json:"sha256"` // of the file, hexadecimal
	Tree   string `json:"tree"`   // git tree hash after this patch
}

// Result is the tree hash after the whole queue.
func (s Series) Result() string {
	if len(s.Patches) == 0 {
		return s.Tree
	}
	return s.Patches[len(s.Patches)-1].Tree
}

// Hash is the SHA-256 of what the queue is and applies to, hexadecimal.
func (s Series) Hash() string {
	var b strings.Builder
	fmt.Fprintln(&b, s.Tree)
	for _, p := range s.Patches {
		fmt.Fprintln(&b, p.File, p.SHA256, p.Tree)
	}
	return sumHex([]byte(b.String()))
}

func readSeries(file string) (Series, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Series{}, fmt.Errorf("read the patch series: %w", err)
	}
	var s Series
	if err := strictJSON(data, &s); err != nil {
		return Series{}, fmt.Errorf("the patch series %s is not valid: %w", file, err)
	}
	return s, nil
}

func (s Series) write(file string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// check compares the pin and the patch files with the manifest; dir is patches/.
func (s Series) check(pin Pin, dir string) error {
	switch {
	case pin.Tree != s.Tree:
		return fmt.Errorf("%s was changed: it has tree %s, the patch queue was made for %s; put it back or run `mage patch:refresh`",
			pinFile, pin.Tree, s.Tree)
	case pin.Tag != s.Tag:
		return fmt.Errorf("%s was changed: it has tag %s, the patch queue was made for %s; put it back or run `mage patch:refresh`",
			pinFile, pin.Tag, s.Tag)
	case pin.sum != s.Pin:
		return fmt.Errorf("%s was changed: its SHA-256 is %s, %s says %s; put it back or run `mage patch:refresh`",
			pinFile, pin.sum, seriesFile, s.Pin)
	}
	listed := map[string]bool{}
	for _, p := range s.Patches {
		listed[p.File] = true
		data, err := os.ReadFile(filepath.Join(dir, p.File))
		if err != nil {
			return fmt.Errorf("patch %s of %s cannot be read: %w", p.File, seriesFile, err)
		}
		if sum := sumHex(data); sum != p.SHA256 {
			return fmt.Errorf("patch %s was changed: its SHA-256 is %s, %s says %s; put it back or run `mage patch:refresh`",
				p.File, sum, seriesFile, p.SHA256)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return err
	}
	for _, f := range found {
		if name := filepath.Base(f); !listed[name] {
			return fmt.Errorf("patch %s is not in %s; remove it or run `mage patch:refresh`", name, seriesFile)
		}
	}
	return nil
}

func sumHex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
