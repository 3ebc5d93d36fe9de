package bpe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Type is a token's kind, as GGUF counts them.
type Type int32

// The kinds in use.
const (
	Normal  Type = 1
	Unknown Type = 2
	Control Type = 3
	Byte    Type = 6
)

// The ids that every vocabulary has.
const (
	UnknownID = 0
	BOS       = 1 // begins a document
	EOS       = 2 // ends a document
	firstByte = 3
	spaceID   = 259
	// Smallest is the size of a vocabulary that has learned nothing.
	Smallest = 260
)

const space = "\u2581"

// Vocab is a tokenizer. It is read-only and may be shared.
type Vocab struct {
	Tokens []string
	Scores []float32 // of a merge, minus its rank: the greatest is merged first
	Types  []Type

	ids map[string]int // of normal tokens
}

// New makes a Vocab from the three lists of a GGUF header. Errors: lists of different lengths, or without the byte
// tokens where this package puts them.
func New(tokens []string, scores []float32, types []Type) (*Vocab, error) {
	if len(scores) != len(tokens) || len(types) != len(tokens) {
		return nil, fmt.Errorf("vocabulary has %d tokens, %d scores and %d types; they must be as many", len(tokens), len(scores), len(types))
	}
	v := &Vocab{ids: map[string]int{}}
	for i, token := range tokens {
		v.add(token, scores[i], types[i])
	}
	for i := range 256 {
		if id := firstByte + i; id >= len(tokens) || tokens[id] != byteToken(i) || types[id] != Byte {
			return nil, fmt.Errorf("vocabulary has no token for byte %#02x at %d; train it with this tool", i, id)
		}
	}
	return v, nil
}

func byteToken(b int) string { return fmt.Sprintf("<0x%02X>", b) }

func (v *Vocab) add(token string, score float32, kind Type) {
	if kind == Normal {
		v.ids[token] = len(v.Tokens)
	}
	v.Tokens = append(v.Tokens, token)
	v.Scores = append(v.Scores, score)
	v.Types = append(v.Types, kind)
}

// word is a distinct word of the text, in the symbols merged so far.
type word struct {
	symbols []string
	count   int
}

type pair struct{ left, right string }

// Train learns a vocabulary of size tokens, or fewer when nothing is left to merge. Equal texts give equal
// vocabularies. size is at least Smallest.
func Train(text string, size int) *Vocab {
	v := &Vocab{ids: map[string]int{}}
	v.add("<unk>", 0, Unknown)
	v.add("<s>", 0, Control)
	v.add("</s>", 0, Control)
	for i := range 256 {
		v.add(byteToken(i), 0, Byte)
	}
	v.add(space, -1e6, Normal)

	counts := map[string]int{}
	for _, w := range split(text) {
		counts[w]++
	}
	var all []word
	for _, w := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, word{symbols: symbols(w), count: counts[w]})
	}
	for rank := 1; len(v.Tokens) < size; rank++ {
		best, ok := commonest(all)
		if !ok {
			break
		}
		joined := best.left + best.right
		if _, known := v.ids[joined]; !known {
			v.add(joined, float32(-rank), Normal)
		}
		for i := range all {
			all[i].symbols = merge(all[i].symbols, joined)
		}
	}
	return v
}

// commonest returns the neighbours that stand side by side most often; the first in the alphabet among equals.
func commonest(all []word) (pair, bool) {
	counts := map[pair]int{}
	for _, w := range all {
		for i := 0; i+1 < len(w.symbols); i++ {
			counts[pair{w.symbols[i], w.symbols[i+1]}] += w.count
		}
	}
	if len(counts) == 0 {
		return pair{}, false
	}
	return slices.MinFunc(slices.Collect(maps.Keys(counts)), func(a, b pair) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.left, b.left), cmp.Compare(a.right, b.right))
	}), true
}

// merge joins, from the left, all neighbours that together are joined.
func merge(in []string, joined string) []string {
	var out []string
	for i := 0; i < len(in); i++ {
		if i+1 < len(in) && in[i]+in[i+1] == joined {
			out = append(out, joined)
			i++
		} else {
			out = append(out, in[i])
		}
	}
	return out
}

// split cuts text before each space and around each newline; the words' concatenation is the text with ▁ for spaces.
func split(text string) []string {
	text = strings.ReplaceAll(text, " ", space)
	var words []string
	for len(text) > 0 {
		n := 1
		if text[0] != '\n' {
			n = len(text)
			if i := strings.Index(text[1:], space); i >= 0 {
				n = i + 1
			}
			if i := strings.IndexByte(text[:n], '\n'); i > 0 {
				n = i
			}
		}
		words = append(words, text[:n])
		text = text[n:]
	}
	return words
}

// symbols cuts a word into its characters; bytes that are no UTF-8 stand alone.
func symbols(w string) []string {
	var out []string
	for len(w) > 0 {
		_, n := utf8.DecodeRuneInString(w)
		out = append(out, w[:n])
		w = w[n:]
	}
	return out
}
