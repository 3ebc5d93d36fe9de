// Package llama is the ShardEngine and the TextEngine on llama.cpp, through the C ABI of libs/native/shim.
//
// It is built with the tags `llama && cgo` and links the library that libs/native/build makes; without them New says how
// to get it. What must stay out: every type of llama.cpp (they stop at the shim), the wire, and scheduling: the engine
// runs the batch that it is given.
//
// # Caches
//
// One engine is one llama_context with a slot of ContextLimit tokens (padded to 256) for each session and one for the
// probe. Slots are separate caches, so that what one session has cached can neither crowd out nor change another. All
// architectures that Load accepts keep their whole past (a sliding window too: it is made as long as the context), so
// that every cache goes back to any length, to the bit.
//
// A step is undone by cutting its rows off. Cut rows keep their values in memory; were one of them NaN, masked attention
// would spread it. So a boundary that is not finite is refused before it gets there, and the slot of a session that met
// NUMERIC_FAULT is not given to another session before all slots are empty and zeroed.
//
// StepResult.Compute is a step's share of its batch's time, by rows; together they are what Metrics counts.
//
// # Choosing
//
// The tail chooses through llama.cpp's samplers, as shim/dgr_sample.h says, from the logits where they lie. A choice is a
// function of the logits, the session's tokens and engine.Sampling. A session keeps the last grammar that a step of it had,
// compiled, with the place that its answer has come to: that is a function of the tokens from AnswerStart on, and what is
// kept only saves the work of going there again. A step's grammar is compiled and taken to the end of the step before
// anything is evaluated. Grammars come from anybody: patch 0006 and the bounds in shim/grammar.cpp keep them from taking the
// engine's time, memory or stack.
//
// # Threads
//
// The engine may be called from any goroutine, one at a time. With more than one compute thread the owner does well to
// lock its OS thread (runtime.LockOSThread): OpenMP keeps a pool of threads for each thread that computes.
//
// Cancel, Metrics, Capabilities and a shallow Health never wait for native code.
//
// # Same bits
//
// The same shapes of steps give the same bits whatever the slot, with the same Numerics. Other sessions in the batch and
// another cut of the same prompt into steps may change them; a worker that promises bits puts one session into a batch.
package llama
