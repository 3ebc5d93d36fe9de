//go:build llama && cgo

package handbook_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
	"github.com/distributed-gguf-runtime/dgr/libs/native/llama"
)

const (
	contextTokens = 256
	batchTokens   = 64
	endOfText     = 2
)

// TestLlamaGivesThePromptsTheirContinuations runs every prompt on llama.cpp, whole and in pieces. The pieces must choose
// the same tokens, and the logits after each must be the same bits.
func TestLlamaGivesThePromptsTheirContinuations(t *testing.T) {
	path, err := handbook.WriteFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	prompts, err := handbook.Prompts()
	if err != nil {
		t.Fatal(err)
	}
	whole := map[string]answer{}
	for _, cuts := range [][]uint32{nil, {3}, {1, 3}} {
		t.Run(fmt.Sprintf("cut at %v", cuts), func(t *testing.T) {
			c := open(t, path, cuts)
			for i, p := range prompts {
				got := c.greedy(t, engine.SessionID{byte(i + 1)}, p.Prompt, p.Tokens)
				if got.text != p.Continuation {
					t.Errorf("%q is continued\n%q, want\n%q", p.Prompt, got.text, p.Continuation)
				}
				if cuts == nil {
					whole[p.Prompt] = got
				} else if !slices.Equal(got.logits, whole[p.Prompt].logits) {
					t.Errorf("%q: the logits differ from those of the whole model", p.Prompt)
				}
			}
		})
	}
}

// chain is the shards of one model, head first.
type chain struct {
	shards []engine.ShardEngine
	text   engine.TextEngine
}

// open loads the model cut before each of the given layers.
func open(t *testing.T, path string, cuts []uint32) *chain {
	t.Helper()
	c := &chain{}
	first := uint32(0)
	for _, end := range append(slices.Clone(cuts), 0) {
		shard, text, err := llama.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := shard.Close(); err != nil {
				t.Errorf("close a shard: %v", err)
			}
		})
		_, err = shard.Load(t.Context(), engine.LoadRequest{
			Paths: []string{path}, Layers: engine.LayerRange{First: first, End: end},
			ContextLimit: contextTokens, Sessions: 1, BatchTokens: batchTokens, MicroBatch: batchTokens,
			Threads: 1, CacheType: "f16", MemoryMap: true,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.shards, c.text = append(c.shards, shard), text
		first = end
	}
	return c
}

// answer is a continuation and the logits behind its tokens, one row after the other, as bytes.
type answer struct {
	text   string
	logits []byte
}

// greedy continues a prompt by n tokens and releases the session.
func (c *chain) greedy(t *testing.T, session engine.SessionID, prompt string, n int) answer {
	t.Helper()
	tokens, err := c.text.Tokenize(t.Context(), prompt, true, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, shard := range c.shards {
		if err := shard.Open(t.Context(), session, contextTokens); err != nil {
			t.Fatal(err)
		}
	}
	begin, at := len(tokens), 0
	var out answer
	for len(tokens)-begin < n {
		row := c.step(t, session, engine.Pos(at), tokens[at:])
		at = len(tokens)
		best := greatest(row)
		if best == endOfText {
			break
		}
		tokens = append(tokens, best)
		out.logits = append(out.logits, row...)
	}
	raw, err := c.text.Detokenize(t.Context(), tokens[begin:], false)
	if err != nil {
		t.Fatal(err)
	}
	out.text = string(raw)
	for _, shard := range c.shards {
		if err := shard.Release(t.Context(), session); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// step sends tokens through all shards and returns the logits after the last one.
func (c *chain) step(t *testing.T, session engine.SessionID, start engine.Pos, tokens []engine.TokenID) []byte {
	t.Helper()
	s := engine.Step{Session: session, Start: start, Tokens: tokens, Want: engine.WantLogitsLast}
	for i, shard := range c.shards {
		results, err := shard.Step(t.Context(), []engine.Step{s})
		if err != nil {
			t.Fatalf("hop %d: %v", i, err)
		}
		if results[0].Err != nil {
			t.Fatalf("hop %d: %v", i, results[0].Err)
		}
		if i+1 == len(c.shards) {
			return results[0].Logits.Data
		}
		s.Boundary = results[0].Boundary
	}
	panic("a chain has a shard")
}

// greatest is the most probable token, the lowest id among equals.
func greatest(row []byte) engine.TokenID {
	best, top := 0, float32(math.Inf(-1))
	for i := range len(row) / 4 {
		if x := math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:])); x > top {
			best, top = i, x
		}
	}
	return engine.TokenID(best)
}
