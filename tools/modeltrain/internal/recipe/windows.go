package recipe

import (
	"errors"
	"math/rand/v2"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/bpe"
)

// start is a place where a window may begin: its first word without the space before it, and where the text goes on.
type start struct {
	word []int
	next int // index into corpus.tokens
}

// corpus is a text that windows are cut from.
type corpus struct {
	tokens    []int // of the whole text, with EOS
	words     []start
	sentences []start
}

func newCorpus(text string, vocab *bpe.Vocab) (*corpus, error) {
	c := &corpus{tokens: vocab.Encode(text)[1:]}
	index := make(map[int]int, len(c.tokens)) // by offset in text
	offset := 0
	for i, id := range c.tokens {
		index[offset] = i
		offset += len(vocab.Decode([]int{id}))
	}
	index[offset] = len(c.tokens)
	c.tokens = append(c.tokens, bpe.EOS)
	fresh := true // no sentence has begun since the last one ended
	for i := 0; i < len(text); i++ {
		if text[i] == '\n' || i > 0 && text[i] == ' ' && strings.IndexByte(".:?", text[i-1]) >= 0 {
			fresh = true
		}
		if isSpace(text[i]) || i > 0 && !isSpace(text[i-1]) {
			continue
		}
		end := len(text)
		if n := strings.IndexAny(text[i:], " \n"); n >= 0 {
			end = i + n
		}
		s := start{word: vocab.Encode(text[i:end])[1:], next: index[end]}
		c.words = append(c.words, s)
		if fresh {
			c.sentences = append(c.sentences, s)
		}
		fresh = false
	}
	if len(c.words) == 0 {
		return nil, errors.New("the text has no words")
	}
	return c, nil
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' }

// window is one input with the token that should follow each of its tokens.
type window struct{ in, want []int }

// batch draws windows of one length until they hold r.Batch tokens; the second value is how many they hold.
func (r Recipe) batch(c *corpus, rng *rand.Rand) ([]window, int) {
	length := r.Windows[rng.IntN(len(r.Windows))]
	var out []window
	total := 0
	for total < r.Batch {
		w := r.window(c, rng, length)
		out = append(out, w)
		total += len(w.in)
	}
	return out, total
}

func (r Recipe) window(c *corpus, rng *rand.Rand, length int) window {
	from := c.words
	if length <= r.ShortWindow && rng.Float64() < r.SentenceStarts {
		from = c.sentences
	}
	s := from[rng.IntN(len(from))]
	seq := append([]int{bpe.BOS}, s.word...)
	seq = append(seq, c.tokens[s.next:min(len(c.tokens), s.next+length)]...)
	seq = seq[:min(len(seq), length+1)]
	w := window{in: append([]int(nil), seq[:len(seq)-1]...), want: seq[1:]}
	for i := 1; i < len(w.in); i++ {
		if rng.Float64() < r.Noise {
			w.in[i] = c.tokens[rng.IntN(len(c.tokens)-1)]
		}
	}
	return w
}
