//go:build llama && cgo

package llama

/*
#include "dgr_sample.h"
*/
import "C"

import (
	"slices"
	"strings"
	"unsafe"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// maxBiases is the most biases of a choice.
const maxBiases = 1024

// sampler is the memory that choosing takes. One goroutine at a time.
type sampler struct {
	ptr     *C.dgr_sampler
	values  C.dgr_sampling
	biases  []C.dgr_bias
	choice  C.dgr_choice
	top     [maxLogprobs]C.dgr_alternative
	message [512]byte
}

func newSampler() (*sampler, error) {
	s := &sampler{}
	code := C.dgr_sampler_new(&s.ptr, chars(s.message[:]), C.size_t(len(s.message)))
	return s, failed(code, s.message[:])
}

func (s *sampler) free() { C.dgr_sampler_free(s.ptr) }

// put takes values that passed checkSampling.
func (s *sampler) put(from *engine.Sampling) {
	s.biases = s.biases[:0]
	for _, b := range from.LogitBias {
		s.biases = append(s.biases, C.dgr_bias{token: C.uint32_t(b.Token), bias: C.float(b.Bias)})
	}
	typical := from.Typical
	if typical == 0 {
		typical = 1
	}
	s.values = C.dgr_sampling{
		seed: C.uint64_t(from.Seed), temperature: C.float(from.Temperature), top_p: C.float(from.TopP), min_p: C.float(from.MinP),
		typical: C.float(typical), repeat_penalty: C.float(from.RepeatPenalty), frequency_penalty: C.float(from.FrequencyPenalty),
		presence_penalty: C.float(from.PresencePenalty), top_k: C.uint32_t(from.TopK), penalty_window: C.uint32_t(from.PenaltyWindow),
		biases: C.uint32_t(len(s.biases)), alternatives: C.uint32_t(from.Logprobs), want_logprob: flag(from.WantLogprob),
	}
	if from.Grammar != nil {
		s.values.answer_start = C.uint32_t(from.AnswerStart)
	}
}

// outcome is the last choice, without the bytes of its tokens.
func (s *sampler) outcome() *engine.Sample {
	out := &engine.Sample{Token: engine.TokenID(s.choice.token), Logprob: float32(s.choice.logprob)}
	for _, a := range s.top[:s.choice.alternatives] {
		out.Top = append(out.Top, engine.TokenLogprob{Token: engine.TokenID(a.token), Logprob: float32(a.logprob)})
	}
	return out
}

// choose picks the token after tokens from logits, of which there is one for each token of the vocabulary.
func (s *sampler) choose(logits []float32, tokens []engine.TokenID, from *engine.Sampling, g *grammar) (*engine.Sample, error) {
	s.put(from)
	code := C.dgr_choose(s.ptr, (*C.float)(unsafe.Pointer(unsafe.SliceData(logits))), C.uint32_t(len(logits)), ids(tokens), C.size_t(len(tokens)),
		&s.values, unsafe.SliceData(s.biases), g.handle(), &s.choice, &s.top[0], chars(s.message[:]), C.size_t(len(s.message)))
	if err := failed(code, s.message[:]); err != nil {
		return nil, err
	}
	return s.outcome(), nil
}

// sample picks the token after tokens, which row of the last batch is the last of.
func (n *native) sample(row int, tokens []engine.TokenID, from *engine.Sampling, g *grammar) (*engine.Sample, error) {
	s := n.sampler
	s.put(from)
	code := C.dgr_sample(n.ptr, C.uint32_t(row), s.ptr, ids(tokens), C.size_t(len(tokens)),
		&s.values, unsafe.SliceData(s.biases), g.handle(), &s.choice, &s.top[0], chars(s.message[:]), C.size_t(len(s.message)))
	if err := failed(code, s.message[:]); err != nil {
		return nil, err
	}
	return s.outcome(), nil
}

func ids(tokens []engine.TokenID) *C.uint32_t {
	return (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(tokens)))
}

// grammar is a compiled one, and how far an answer is in it. nil is none. One goroutine at a time.
type grammar struct {
	ptr    *C.dgr_grammar
	source engine.Grammar
}

// compile compiles a grammar of any caller. Any goroutine; message is room of the caller's.
func (n *native) compile(source *engine.Grammar, message []byte) (*grammar, error) {
	for _, token := range source.TriggerTokens {
		if err := checkToken(token, n.info.vocab); err != nil {
			return nil, err
		}
	}
	g := &grammar{source: engine.Grammar{
		Text: source.Text, Lazy: source.Lazy, Prefill: source.Prefill,
		TriggerPatterns: slices.Clone(source.TriggerPatterns), TriggerTokens: slices.Clone(source.TriggerTokens),
	}}
	sizes := make([]C.size_t, len(source.TriggerPatterns))
	for i, pattern := range source.TriggerPatterns {
		sizes[i] = C.size_t(len(pattern))
	}
	patterns := strings.Join(source.TriggerPatterns, "")
	code := C.dgr_grammar_compile(n.ptr, text(source.Text), C.size_t(len(source.Text)), flag(source.Lazy), text(source.Prefill), C.size_t(len(source.Prefill)),
		text(patterns), unsafe.SliceData(sizes), C.uint32_t(len(sizes)), ids(source.TriggerTokens), C.uint32_t(len(source.TriggerTokens)),
		&g.ptr, chars(message), C.size_t(len(message)))
	if err := failed(code, message); err != nil {
		return nil, err
	}
	return g, nil
}

// text is the bytes of a string, without a zero byte behind.
func text(s string) *C.char { return (*C.char)(unsafe.Pointer(unsafe.StringData(s))) }

func (g *grammar) handle() *C.dgr_grammar {
	if g == nil {
		return nil
	}
	return g.ptr
}

func (g *grammar) free() {
	if g != nil {
		C.dgr_grammar_free(g.ptr)
		g.ptr = nil
	}
}

// is says whether g was compiled from source.
func (g *grammar) is(source *engine.Grammar) bool {
	return g != nil && g.source.Text == source.Text && g.source.Lazy == source.Lazy && g.source.Prefill == source.Prefill &&
		slices.Equal(g.source.TriggerPatterns, source.TriggerPatterns) && slices.Equal(g.source.TriggerTokens, source.TriggerTokens)
}

// follow takes g to where an answer leaves it. message is room of the caller's.
func (g *grammar) follow(answer []engine.TokenID, message []byte) error {
	return failed(C.dgr_grammar_follow(g.ptr, ids(answer), C.size_t(len(answer)), chars(message), C.size_t(len(message))), message)
}
