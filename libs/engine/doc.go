// Package engine is the stable line between a worker and whatever computes a shard: llama.cpp, the fake, a remote
// worker, or an engine that does not exist yet. It holds the ShardEngine interface, the types that cross it and the
// errors that it returns.
//
// What must stay out: the wire (this package never imports gen), gRPC, files of a configuration, and every type of a
// native library. A tensor, context, scheduler or pointer of llama.cpp never shows through here.
//
// # Words
//
// A shard is the layers [First, End) of a model. The head has First == 0 and takes token ids alone; every other shard
// also takes the boundary, the hidden state that the shard before it produced, one row per token. The tail has
// End == NLayer and produces logits or a sampled token; every other shard produces a boundary. A session is one
// sequence and its cache. A step evaluates tokens of one session; a batch is the steps of one native call.
//
// # States
//
//	New ──Load──▶ Loading ──ok──▶ Loaded ──fault──▶ Lost
//	 ▲               │                               │
//	 └────failed─────┘      Close from any state ──▶ Closed
//
// A Lost engine answers ENGINE_FAULT until it is closed; the worker then makes a new one. There is no unload: an engine
// serves one shard, and a worker that changes its shard closes the engine.
package engine
