// Package sample chooses a token from logits: penalties, biases, truncation of the distribution, temperature, and one
// seeded draw. It is pure Go over float32 slices.
//
// The choice is a pure function of the logits, the session's tokens and engine.Sampling; nothing is carried from one
// token to the next, so that a run goes on anywhere after a replay. The order is that of llama.cpp's default chain:
//
//	repeat, frequency and presence penalty → biases → top-k → top-p → min-p → temperature → draw
//
// The draw at position p, the length of the session with the tokens evaluated so far, uses one number of the sequence
// that SplitMix64 gives for the seed: u = mix(seed + (p+1)·0x9e3779b97f4a7c15) >> 11, as 53 bits of [0, 1). The token is
// the first, in order of ids, with which the sum of the probabilities that are left passes u.
//
// What must stay out: models, caches, grammars and cgo.
package sample
