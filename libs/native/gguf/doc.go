// Package gguf reads, checks, writes and identifies GGUF model files, in pure Go.
//
// It is the gate before native code: Open reads only the headers (never a weight), of one file or of all parts of a
// split model, and refuses whatever llama.cpp would refuse, and also what would make it abort instead of refusing.
// Everything else here builds on an opened Model: which tensor belongs to which layer and shard (Role, Own), the
// manifest and the fingerprint (BuildManifest), and the writer (Write, WriteParts).
//
// What must stay out: computing with weights, knowledge of the wire, and cgo.
//
// # Shards
//
// WriteShard writes the tensors that one shard needs into a file of its own. Such a file has all keys of the model, and
// these, by which it proves itself without the rest of the model:
//
//	dgr.shard.first, dgr.shard.end  u32, the layers that it holds
//	dgr.shard.fingerprint           the model's, 64 hexadecimal digits
//	dgr.shard.tensors               the names of all tensors of the model, in ascending byte order
//	dgr.shard.types                 their types
//	dgr.shard.dims                  their dimensions, four each, innermost first
//	dgr.shard.sums                  SHA-256 of their data, 64 hexadecimal digits
//
// # Errors
//
// Whatever is wrong with a file is an *engine.Error with the code BAD_MODEL_FILE and one sentence that names the file,
// what is wrong with it and what to do. A missing file also answers to errors.Is(err, fs.ErrNotExist).
//
// # Limits
//
// A header may be at most 256 MiB, with at most 16,384 keys, 32,768 tensors, 2 Mi elements in an array and 64 MiB in a
// string. Nothing is allocated on the word of a count: memory grows with the bytes that are really there.
//
// # Fingerprint
//
// The fingerprint of a model is the SHA-256 over this encoding, little-endian, where str is a u64 length and the bytes:
//
//	"dgr model 1\n"
//	u64 number of keys, without those that begin with "split." or "dgr.shard."
//	for each key, in ascending byte order:  str key, u32 value type, value as in GGUF version 3
//	u64 number of tensors
//	for each tensor, in ascending byte order of names:
//	    str name, u32 type, 4 × u64 dimensions (missing ones are 1), 32 bytes SHA-256 of the tensor's data
//
// The keys are those of the file or of the first part. So one file, the same model in parts or shards, and the same tensors
// in another order or alignment of the data have the same fingerprint; any changed key, type, shape or weight gives another.
// (The key general.alignment, where a file has it, is a key as any other.)
package gguf
