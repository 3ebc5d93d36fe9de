package tiny

import (
	"fmt"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Token types of SentencePiece.
const (
	tokenNormal  = 1
	tokenUnknown = 2
	tokenControl = 3
	tokenByte    = 6
)

// vocabulary is a SentencePiece tokenizer that takes any text: 0 <unk>, 1 <s>, 2 </s>, 3 to 258 the bytes, 259 the space,
// then (in phi3 after <|endoftext|>) printable characters and runs of small letters, shorter ones first. It adds BOS and no space before the text.
func (s Spec) vocabulary() []gguf.KeyValue {
	tokens := []string{"<unk>", "<s>", "</s>"}
	types := []int32{tokenUnknown, tokenControl, tokenControl}
	scores := make([]float32, 3, s.Vocab)
	add := func(token string, typ int32, score float32) {
		tokens, types, scores = append(tokens, token), append(types, typ), append(scores, score)
	}
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b), tokenByte, 0)
	}
	add("▁", tokenNormal, -1e6)
	merged := len(tokens)
	if s.Arch == "phi3" { // llama.cpp counts on it where the name says phi3
		add("<|endoftext|>", tokenControl, 0)
	}
	for piece := range pieces(s.Vocab - len(tokens)) {
		add(piece, tokenNormal, -float32(len(tokens)-merged))
	}
	kv := []gguf.KeyValue{
		{Key: "tokenizer.ggml.model", Value: gguf.String("llama")},
		{Key: "tokenizer.ggml.pre", Value: gguf.String("default")},
		{Key: "tokenizer.ggml.tokens", Value: gguf.Strings(tokens)},
		{Key: "tokenizer.ggml.scores", Value: gguf.Float32s(scores)},
		{Key: "tokenizer.ggml.token_type", Value: gguf.Int32s(types)},
		{Key: "tokenizer.ggml.bos_token_id", Value: gguf.Uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: gguf.Uint32(2)},
		{Key: "tokenizer.ggml.unknown_token_id", Value: gguf.Uint32(0)},
		{Key: "tokenizer.ggml.add_bos_token", Value: gguf.Bool(true)},
		{Key: "tokenizer.ggml.add_eos_token", Value: gguf.Bool(false)},
		{Key: "tokenizer.ggml.add_space_prefix", Value: gguf.Bool(false)},
	}
	if s.ChatTemplate != "" {
		kv = append(kv, gguf.KeyValue{Key: "tokenizer.chat_template", Value: gguf.String(s.ChatTemplate)})
	}
	return kv
}

// pieces yields n different strings: the 94 printable ASCII characters, then aa, ab, … zz, aaa, …
func pieces(n int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := 0; i < n && i < 94; i++ {
			if !yield(string(rune('!' + i))) {
				return
			}
		}
		run := []byte("aa")
		for i := 94; i < n; i++ {
			if !yield(string(run)) {
				return
			}
			run = next(run)
		}
	}
}

// next is the run of small letters after b, in order of length and alphabet.
func next(b []byte) []byte {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] < 'z' {
			b[i]++
			return b
		}
		b[i] = 'a'
	}
	return append(b, 'a')
}
