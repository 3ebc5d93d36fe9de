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

// Vocab is a tokenizer. It is read-only and may be shared. Its first tokens are always the same: unknown, BOS, EOS, a
// token for each byte and the space; then come the merges, the first one learned first.
type Vocab struct {
	Tokens []string

	merges map[string]int // id of each merge, by its token
}

// New makes a Vocab from the tokens of a GGUF header. Error: the first tokens are not those of this package.
func New(tokens []string) (*Vocab, error) {
	v := &Vocab{merges: map[string]int{}}
	v.fixed()
	if len(tokens) < Smallest || !slices.Equal(tokens[:Smallest], v.Tokens) {
		return nil, fmt.Errorf("vocabulary does not begin with the %d fixed tokens; train the model with this tool", Smallest)
	}
	for _, token := range tokens[Smallest:] {
		v.add(token)
	}
	return v, nil
}

func (v *Vocab) fixed() {
	v.Tokens = append(v.Tokens, "<unk>", "<s>", "</s>")
	for b := range 256 {
		v.Tokens = append(v.Tokens, fmt.Sprintf("<0x%02X>", b))
	}
	v.Tokens = append(v.Tokens, space)
}

// add appends a merge, once.
func (v *Vocab) add(token string) {
	if _, known := v.merges[token]; !known {
		v.merges[token] = len(v.Tokens)
		v.Tokens = append(v.Tokens, token)
	}
}

// Type is the kind of a token.
func (v *Vocab) Type(id int) Type {
	switch {
	case id == UnknownID:
		return Unknown
	case id < firstByte:
		return Control
	case id < spaceID:
		return Byte
	}
	return Normal
}

// Score ranks merges: llama.cpp joins the neighbours with the greatest score first. Nothing merges into a lone space.
func (v *Vocab) Score(id int) float32 {
	switch {
	case id < spaceID:
		return 0
	case id == spaceID:
		return -1e6
	}
	return float32(spaceID - id)
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
	v := &Vocab{merges: map[string]int{}}
	v.fixed()
	counts := map[string]int{}
	for _, w := range split(text) {
		counts[w]++
	}
	var all []word
	for _, w := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, word{symbols: symbols(w), count: counts[w]})
	}
	for len(v.Tokens) < size {
		best, ok := commonest(all)
		if !ok {
			break
		}
		joined := best.left + best.right
		v.add(joined)
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
