// Package nn computes a small Llama-shaped network and its gradient in plain Go: RMS norm, rotary positions, grouped
// query attention, SwiGLU, an output matrix of its own, and AdamW.
//
// It is generic over the float type. Training runs in float32; the same code in float64 is checked against numerical
// gradients. One Run belongs to one goroutine. Sums are written as F(a*b) so that no compiler fuses them, and they run
// in a fixed order: the same inputs give the same bits on the same kind of machine.
//
// What must stay out: files, text and vocabularies, and the choice of what to train on.
package nn

// Float is the type of weights and activations.
type Float interface{ float32 | float64 }
