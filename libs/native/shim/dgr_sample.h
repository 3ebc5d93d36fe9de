// dgr_sample.h: choosing a token at the tail, and the grammars that constrain the choice. A part of the ABI of dgr_shim.h,
// with its rules on codes, memory and threads.
//
// The choice is a pure function of the logits, the session's tokens and the values below; a dgr_sampler and a dgr_grammar
// only keep memory. It is made by llama.cpp's samplers, in this order:
//
//   grammar → repeat, frequency and presence penalty → biases → top-k → typical → top-p → min-p → temperature
//
// and by one draw of our own: with u = mix(seed + (p+1)·0x9e3779b97f4a7c15) >> 11 as 53 bits of [0, 1), where mix is that of
// SplitMix64 and p the number of tokens of the session, it is the first token, in order of ids, with which the sum of the
// probabilities that are left passes u. At temperature 0 it is the most probable one, the lowest id among equals.

#ifndef DGR_SAMPLE_H
#define DGR_SAMPLE_H

#include "dgr_shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dgr_sampling {
    uint64_t seed;
    float    temperature;       // ≥ 0
    float    top_p;             // 0 < p ≤ 1; 1 is off
    float    min_p;             // 0 ≤ p ≤ 1; 0 is off
    float    typical;           // 0 < p ≤ 1; 1 is off
    float    repeat_penalty;    // > 0; 1 is off
    float    frequency_penalty; // −2 to 2
    float    presence_penalty;  // −2 to 2
    uint32_t top_k;             // 0 is off
    uint32_t penalty_window;    // tokens that the penalties look back on
    uint32_t answer_start;      // the grammar sees tokens from here; at most the number of tokens
    uint32_t biases;            // number of them, at most 1024
    uint32_t alternatives;      // likeliest tokens to report, at most 20
    uint32_t want_logprob;      // 0 or 1; without it and alternatives dgr_choice.logprob is 0
    uint32_t reserved;          // 0
} dgr_sampling;
DGR_STATIC_ASSERT(sizeof(dgr_sampling) == 64, "dgr_sampling");

typedef struct dgr_bias {
    uint32_t token;
    float    bias; // added to the logit; finite or −Inf
} dgr_bias;
DGR_STATIC_ASSERT(sizeof(dgr_bias) == 8, "dgr_bias");

typedef struct dgr_alternative {
    uint32_t token;
    float    logprob; // natural logarithm of its probability in the model's own distribution, before all of the above
} dgr_alternative;
DGR_STATIC_ASSERT(sizeof(dgr_alternative) == 8, "dgr_alternative");

typedef struct dgr_choice {
    uint32_t token;
    float    logprob;
    uint32_t alternatives; // how many were reported, likeliest first
    uint32_t reserved;     // 0
} dgr_choice;
DGR_STATIC_ASSERT(sizeof(dgr_choice) == 16, "dgr_choice");

// A compiled grammar and how far an answer is in it. It belongs to the engine, which must outlive it, and is used by one
// thread at a time.
typedef struct dgr_grammar dgr_grammar;

// The memory that choosing takes. One thread at a time.
typedef struct dgr_sampler dgr_sampler;

// dgr_grammar_compile compiles GBNF text with the start symbol root and stores a new grammar in *grammar, which the caller
// frees with dgr_grammar_free; with any other code *grammar is NULL. lazy: nothing is constrained before one of the trigger
// tokens comes, or one of the trigger patterns (ECMAScript, of which the first group that is not empty is where the grammar
// begins); without lazy both are without effect. prefill is text that comes before the answer and that the grammar has
// consumed; a lazy grammar begins with the answer and ignores it.
//
// Bounds, all INVALID_GRAMMAR: text 1 byte to 1 MiB without a zero byte, a million elements once repetitions are expanded,
// groups 256 deep, rules 8192 deep; prefill 16 KiB; 64 patterns of 1024 bytes, 128 where they repeat something, none with
// counted repetition; and the work of a step, which bounds ambiguity. A pattern is looked for in the last 512 bytes of the
// answer, one that begins with ^ in its first 16 KiB.
//
// patterns are one after the other, pattern_sizes has their bytes. Any thread. DGR_INVALID_GRAMMAR, DGR_OUT_OF_MEMORY.
dgr_code dgr_grammar_compile(const dgr_engine * engine, const char * text, size_t size, uint32_t lazy, const char * prefill,
                             size_t prefill_size, const char * patterns, const size_t * pattern_sizes, uint32_t n_patterns,
                             const uint32_t * tokens, uint32_t n_tokens, dgr_grammar ** grammar, char * message, size_t message_size);

// dgr_grammar_free frees a grammar; NULL is no error.
void dgr_grammar_free(dgr_grammar * grammar);

// dgr_grammar_follow takes the grammar to where an answer of these tokens leaves it, whatever it has seen before. What it
// has seen already is not computed again. DGR_INVALID_GRAMMAR (no answer may begin like this), DGR_MALFORMED (a token is
// none of the vocabulary's), DGR_OUT_OF_MEMORY.
dgr_code dgr_grammar_follow(dgr_grammar * grammar, const uint32_t * answer, size_t n_answer, char * message, size_t message_size);

// dgr_sampler_new stores a new sampler in *sampler, which the caller frees with dgr_sampler_free. Any thread.
// DGR_OUT_OF_MEMORY.
dgr_code dgr_sampler_new(dgr_sampler ** sampler, char * message, size_t message_size);

// dgr_sampler_free frees a sampler; NULL is no error.
void dgr_sampler_free(dgr_sampler * sampler);

// dgr_choose chooses the token that follows tokens, the whole session so far, from vocab finite logits. grammar may be NULL;
// else it is made to follow the tokens from answer_start on. alternatives has room for sampling->alternatives.
//
// DGR_MALFORMED (a value is out of range, or the biases forbid every token), DGR_INVALID_GRAMMAR (as dgr_grammar_follow, or
// the grammar allows no token that is left), DGR_OUT_OF_MEMORY.
dgr_code dgr_choose(dgr_sampler * sampler, const float * logits, uint32_t vocab, const uint32_t * tokens, size_t n_tokens,
                    const dgr_sampling * sampling, const dgr_bias * biases, dgr_grammar * grammar, dgr_choice * choice,
                    dgr_alternative * alternatives, char * message, size_t message_size);

// dgr_sample is dgr_choose with the logits after one row of the last dgr_step, for which they were wanted. At the tail only.
// The owner. DGR_MALFORMED also for such a row.
dgr_code dgr_sample(dgr_engine * engine, uint32_t row, dgr_sampler * sampler, const uint32_t * tokens, size_t n_tokens,
                    const dgr_sampling * sampling, const dgr_bias * biases, dgr_grammar * grammar, dgr_choice * choice,
                    dgr_alternative * alternatives, char * message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
