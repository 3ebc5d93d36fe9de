//go:build llama && cgo

package llama

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const (
	storiesHash   = "270cba1bd5109f42d03350f60406024560464db173c0e387d91f0426d3bd256d"
	storiesPrompt = "Once upon a time"
	storiesText   = ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. She wanted to play with it, but it was too high."
)

// stories is the path of a small trained model beside the repository, or a skip.
func stories(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Skip("there is no go.work above this folder, so no place to look for models")
		}
	}
	path := filepath.Join(dir, "..", "shared", "models", "stories260K.gguf")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Skipf("no trained model: %v", err)
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != storiesHash {
		t.Fatalf("%s has the hash %x, want %s", path, sum, storiesHash)
	}
	return path
}

// TestStories: the known greedy text over 1, 2, 3 and 5 shards.
func TestStories(t *testing.T) {
	path := stories(t)
	for _, cuts := range [][]uint32{{0, 5}, {0, 3, 5}, {0, 1, 4, 5}, {0, 1, 2, 3, 4, 5}} {
		t.Run(fmt.Sprint(cuts), func(t *testing.T) {
			c := loadChain(t, request(path), cuts...)
			c.open(t, 1, 192)
			ids, err := c[0].text.Tokenize(t.Context(), storiesPrompt, true, false)
			if err != nil || !slices.Equal(ids, []engine.TokenID{1, 403, 407, 261, 378}) {
				t.Fatalf("the prompt is %v, %v", ids, err)
			}
			var got []byte
			for at := engine.Pos(0); len(got) < len(storiesText); {
				result := c.run(t, engine.Step{
					Session: id(1), Start: at, Tokens: ids, Want: engine.WantSample, Sampling: &engine.Sampling{TopP: 1, RepeatPenalty: 1},
				})[0]
				at += engine.Pos(len(ids))
				ids = []engine.TokenID{result.Sample.Token}
				got = append(got, result.Sample.Bytes...)
			}
			if string(got) != storiesText {
				t.Errorf("the story goes %q, want %q", got, storiesText)
			}
		})
	}
}
