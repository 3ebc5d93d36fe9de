// dgr_shim.h: the one C ABI between Go and llama.cpp.
//
// A dgr_engine is one shard of one model, with its weights, its caches and its compute threads. Nothing of llama.cpp
// shows through: no tensor, context, scheduler or pointer of it.
//
// Codes and messages. Every call that can fail returns a dgr_code. With any code but DGR_OK the caller's message buffer
// holds one sentence, cut to its size and ended by a zero byte; message may be NULL and message_size 0. No C++ exception
// and no longjmp leaves a call. What cannot be caught is an abort inside ggml (a broken assertion): it ends the process.
//
// Memory. Whoever allocates frees: dgr_load allocates an engine and dgr_free frees it, the chat calls allocate a dgr_text
// and dgr_text_free frees it; every other buffer belongs to the caller, before, during and after the call. The library
// keeps no pointer of the caller past the call's return, and hands out none of its own but these handles, the bytes of a
// dgr_text and string literals.
//
// Threads. Each function says who may call it: "owner" is one thread at a time; "any" is any thread at any time between
// the return of dgr_load and the call of dgr_free, also while the owner is inside a call.

#ifndef DGR_SHIM_H
#define DGR_SHIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define DGR_STATIC_ASSERT(condition, text) static_assert(condition, text)
extern "C" {
#else
#define DGR_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#define DGR_SHIM_VERSION 2

typedef enum dgr_code {
    DGR_OK                       = 0,
    DGR_MALFORMED                = 1, // an argument is out of range; nothing happened
    DGR_SHARD_MISMATCH           = 2, // no such layers, or the architecture cannot be cut there
    DGR_UNSUPPORTED_ARCHITECTURE = 3, // not adapted for shards
    DGR_BAD_MODEL_FILE           = 4, // missing, truncated or wrong
    DGR_OUT_OF_MEMORY            = 5, // the caches are what they were
    DGR_CANCELLED                = 6, // stopped by progress callback or dgr_abort; the caches are what they were
    DGR_NUMERIC_FAULT            = 7, // NaN or Inf; the slot is what it was
    DGR_BUFFER_SHORT             = 8, // the caller's buffer holds less than the answer; its size is reported
    DGR_FAULT                    = 9, // the engine is broken: only dgr_free is left
    DGR_NO_TEMPLATE              = 10, // the model has no chat template, or none that can be read
    DGR_INVALID_GRAMMAR          = 11  // a schema that no grammar can say, or one that is too large, cannot be compiled, is not followed, or allows nothing
} dgr_code;

typedef enum dgr_cache_type {
    DGR_CACHE_F32  = 0,
    DGR_CACHE_F16  = 1,
    DGR_CACHE_Q8_0 = 2, // needs flash attention
    DGR_CACHE_Q4_0 = 3  // the same
} dgr_cache_type;

typedef enum dgr_want {
    DGR_WANT_NONE        = 0,
    DGR_WANT_LOGITS_LAST = 1, // logits after the last row of the step
    DGR_WANT_LOGITS_ALL  = 2  // logits after each row of the step
} dgr_want;

typedef struct dgr_engine dgr_engine;
typedef struct dgr_text   dgr_text;

typedef enum dgr_load_stage {
    DGR_LOADING = 1, // llama.cpp reads or maps the own tensors; done and total in thousandths of the work
    DGR_PAGING  = 2  // the pages of the own tensors are read in; done and total in bytes
} dgr_load_stage;

// How far a load is. Returns 0 to stop it, anything else to go on. Called on the thread of dgr_load, inside it, stages in
// order, done never falling within one.
typedef int32_t (*dgr_progress)(uintptr_t user, uint32_t stage, uint64_t done, uint64_t total);

typedef struct dgr_load_params {
    uint32_t layer_first;     // 0 ≤ layer_first < layer_end
    uint32_t layer_end;       // one past the last; 0: the model's last
    uint32_t slot_tokens;     // tokens a slot must hold, ≥ 1; padded up to 256
    uint32_t slots;           // sequences, 1 to 256
    uint32_t batch_rows;      // rows of one dgr_step, ≥ 1
    uint32_t micro_rows;      // rows of one native micro-batch, 1 to batch_rows
    uint32_t threads;         // ≥ 1
    uint32_t cache_type;      // dgr_cache_type
    uint32_t flash_attention; // 0 or 1
    uint32_t memory_map;      // 1: map the file; 0: read the own tensors
    uint32_t short_window;    // 1: layers with a sliding window keep little more than it sees; 0: they keep all
} dgr_load_params;
DGR_STATIC_ASSERT(sizeof(dgr_load_params) == 44, "dgr_load_params");

typedef struct dgr_info {
    char     architecture[64]; // as in general.architecture
    uint32_t layer_first;
    uint32_t layer_end;
    uint32_t n_layer;
    uint32_t vocab;         // logits a row
    uint32_t boundary_in;   // float32 values a row; 0 at the head
    uint32_t boundary_out;  // float32 values a row; 0 at the tail
    uint32_t train_context; // tokens; 0: the header does not say
    uint32_t slot_tokens;   // tokens that a slot holds, after padding
    uint32_t has_chat_template; // 0 or 1
    uint32_t window;            // tokens that a sliding window sees, where layers keep little more; 0: slots go back to any length
    uint64_t weights; // bytes of the own tensors
    uint64_t cache;   // bytes of the caches of all slots
    uint64_t compute; // bytes of the scratch buffers
} dgr_info;
DGR_STATIC_ASSERT(sizeof(dgr_info) == 128, "dgr_info");

// Where the own tensors are, in bytes, of this engine alone.
typedef struct dgr_memory {
    uint64_t weights_mapped; // part of info.weights that stands in the mapped files; the rest is in memory of the process
    uint64_t file_mapped;    // address space that maps the model's files
    uint64_t file_resident;  // part of file_mapped whose pages this process holds
} dgr_memory;
DGR_STATIC_ASSERT(sizeof(dgr_memory) == 24, "dgr_memory");

typedef struct dgr_step_desc {
    uint32_t slot;
    uint32_t start; // the slot's length, at which the rows go
    uint32_t rows;  // ≥ 1; the rows of all steps stand one after the other, in the order of the steps
    uint32_t want;  // dgr_want; without meaning but at the tail
} dgr_step_desc;
DGR_STATIC_ASSERT(sizeof(dgr_step_desc) == 16, "dgr_step_desc");

typedef struct dgr_build {
    char pin_tree[41];        // git tree hash of llama.cpp, hexadecimal; empty: unknown
    char patches_hash[65];    // SHA-256 of the patch queue, hexadecimal; empty: unknown
    char build_key[65];       // SHA-256 over pin, patches, shim, compiler and flags, hexadecimal; empty: unknown
    char version[33];         // of llama.cpp
    char backend[20];         // as cpu
    char instruction_set[288]; // features of the backend, comma-separated, as AVX2,FMA
} dgr_build;
DGR_STATIC_ASSERT(sizeof(dgr_build) == 512, "dgr_build");

typedef struct dgr_device {
    char     name[112];
    uint64_t memory_total; // bytes
    uint64_t memory_free;  // bytes that this process may still take; UINT64_MAX: the system does not tell
} dgr_device;
DGR_STATIC_ASSERT(sizeof(dgr_device) == 128, "dgr_device");

// dgr_shim_version is DGR_SHIM_VERSION of the library. Any thread, also without an engine.
uint32_t dgr_shim_version(void);

// dgr_build_info fills *build. Any thread, also without an engine.
void dgr_build_info(dgr_build * build);

// dgr_device_get fills *device with the one place of computation, the processor. Any thread, also without an engine.
void dgr_device_get(dgr_device * device);

// dgr_finite is 1 when none of count float32 values is NaN or Inf, else 0. values need no alignment. Any thread, also
// without an engine.
uint32_t dgr_finite(const void * values, size_t count);

// dgr_load loads a shard from the model's file or all of its parts in order, reads the pages of its own tensors in, and
// stores a new engine in *engine, which the caller frees with dgr_free; with any other code *engine is NULL and nothing
// is held. Any thread; the caller becomes the owner.
//
// DGR_MALFORMED, DGR_BAD_MODEL_FILE, DGR_UNSUPPORTED_ARCHITECTURE, DGR_SHARD_MISMATCH, DGR_OUT_OF_MEMORY (caches larger
// than the memory at hand included), DGR_CANCELLED, DGR_FAULT.
dgr_code dgr_load(const char * const * paths, uint32_t n_paths, const dgr_load_params * params, dgr_progress progress,
                  uintptr_t user, dgr_engine ** engine, char * message, size_t message_size);

// dgr_free frees an engine and all that it holds; NULL is no error. The owner, and nobody else inside a call.
void dgr_free(dgr_engine * engine);

// dgr_info_get fills *info. Any thread.
void dgr_info_get(const dgr_engine * engine, dgr_info * info);

// dgr_memory_get measures, which takes a while: it reads /proc/self/smaps. All is 0 where the system has none. Any thread.
void dgr_memory_get(const dgr_engine * engine, dgr_memory * memory);

// dgr_step evaluates a batch in one native call and leaves its rows' outputs to dgr_boundary and dgr_logits until the
// next dgr_step or dgr_clear. tokens has an id per row of the steps. boundary_in has info.boundary_in finite
// values per row, aligned as float; NULL at the head. codes has one dgr_code per step, written only when DGR_OK is
// returned: DGR_OK, or DGR_NUMERIC_FAULT, where the step was undone. Slots must ascend from step to step. The owner.
//
// DGR_MALFORMED (nothing happened), DGR_CANCELLED and DGR_OUT_OF_MEMORY (every step was undone), DGR_FAULT.
dgr_code dgr_step(dgr_engine * engine, const dgr_step_desc * steps, uint32_t n_steps, const uint32_t * tokens,
                  const float * boundary_in, uint32_t * codes, char * message, size_t message_size);

// dgr_boundary copies the boundaries of rows [row, row + rows) of the last dgr_step to out, rows × boundary_out values,
// in the order of its rows. Not at the tail. The owner. DGR_MALFORMED.
dgr_code dgr_boundary(dgr_engine * engine, uint32_t row, uint32_t rows, void * out, char * message, size_t message_size);

// dgr_logits copies the logits after one row of the last dgr_step, for which they were wanted, to out, vocab values. At
// the tail only. The owner. DGR_MALFORMED.
dgr_code dgr_logits(dgr_engine * engine, uint32_t row, void * out, char * message, size_t message_size);

// dgr_truncate makes a slot length tokens long and checks that it is; at or above its present length it does nothing.
// Length 0 empties it. Where info.window is 0 every length can be gone back to, to the bit: dgr_load refuses architectures
// whose caches cannot. Else it goes back as far as dgr_reach says. The owner.
// DGR_MALFORMED (no such slot, or too far: nothing happened), DGR_FAULT (the cache did not go back).
dgr_code dgr_truncate(dgr_engine * engine, uint32_t slot, uint32_t length, char * message, size_t message_size);

// dgr_reach stores in *least the least length but 0 to which dgr_truncate takes the slot; its present length where it goes
// back to none; 0 when it is empty. The owner. DGR_MALFORMED (no such slot), DGR_FAULT.
dgr_code dgr_reach(dgr_engine * engine, uint32_t slot, uint32_t * least, char * message, size_t message_size);

// A mark is a copy of the state of a slot that cannot be cut, as the rows that a window holds; where info.window is 0 there
// are none. It belongs to the slot, to its present length and to this engine.
//
// dgr_mark_size stores the bytes of a mark of the slot as it is now in *size; dgr_mark_take writes it; dgr_mark_return makes
// the slot, which holds length tokens or more and has gone back behind none of them since, what it was when the mark was
// taken at length ≥ 1, to the bit. The owner.
// DGR_MALFORMED (no such slot, no marks here, another size or length: nothing happened), DGR_FAULT.
dgr_code dgr_mark_size(dgr_engine * engine, uint32_t slot, size_t * size, char * message, size_t message_size);
dgr_code dgr_mark_take(dgr_engine * engine, uint32_t slot, void * mark, size_t size, char * message, size_t message_size);
dgr_code dgr_mark_return(dgr_engine * engine, uint32_t slot, uint32_t length, const void * mark, size_t size, char * message,
                         size_t message_size);

// dgr_copy makes an empty slot what another one is; the marks of that are marks of this too. The owner.
// DGR_MALFORMED (no such slot, or to is not empty: nothing happened), DGR_FAULT.
dgr_code dgr_copy(dgr_engine * engine, uint32_t from, uint32_t to, char * message, size_t message_size);

// dgr_clear empties every slot and writes zeros over the caches' memory, so that nothing is left there that a later step
// could read: rows that were cut off keep their values, and NaN among them spreads through masked attention. The owner.
// DGR_FAULT.
dgr_code dgr_clear(dgr_engine * engine, char * message, size_t message_size);

// dgr_abort asks the running dgr_step to stop after the graph node that it is at (value 1), or takes that back (0). The
// flag stays until it is set anew. Any thread; returns at once.
void dgr_abort(dgr_engine * engine, uint32_t value);

// dgr_tokenize writes the ids of size bytes of text. add_special puts the model's BOS and EOS around, once;
// parse_special reads special tokens that are written in the text. Bytes that are no UTF-8 become byte tokens where the
// vocabulary has them. *count is the number of ids, also with DGR_BUFFER_SHORT, where nothing is written. Any thread.
// DGR_MALFORMED (the vocabulary cannot write this text), DGR_BUFFER_SHORT, DGR_OUT_OF_MEMORY.
dgr_code dgr_tokenize(const dgr_engine * engine, const char * text, size_t size, uint32_t add_special, uint32_t parse_special,
                      uint32_t * tokens, size_t capacity, size_t * count, char * message, size_t message_size);

// dgr_detokenize writes the bytes of the ids one after the other, each as it stands alone: what two calls give for two
// parts is what one gives for the whole. special writes special tokens as text, else they give no bytes. *size is the
// number of bytes, also with DGR_BUFFER_SHORT. No zero byte is added. Any thread.
// DGR_MALFORMED (an id is none of the vocabulary's), DGR_BUFFER_SHORT, DGR_OUT_OF_MEMORY.
dgr_code dgr_detokenize(const dgr_engine * engine, const uint32_t * tokens, size_t n_tokens, uint32_t special, char * out,
                        size_t capacity, size_t * size, char * message, size_t message_size);

// dgr_chat_render makes a prompt of messages by the template in the model's header. request is a JSON object: strings
// messages, tools, choice, schema and arguments, each as the field of RenderChatRequest in the contract and in UTF-8, and
// the boolean generate. *text is a JSON object: prompt, tokens, grammar {text, lazy, patterns, tokens, prefill} unless
// there is none, stops, and parser, which dgr_chat_parse takes. The prompt lacks the BOS and EOS that the tokens have. It
// is stopped when it takes 10 s of computing, 512 MiB or too deep a stack. The caller frees *text; NULL with any other
// code than DGR_OK. Any thread.
//
// DGR_NO_TEMPLATE, DGR_MALFORMED (the message names the field, or tells what the template says), DGR_INVALID_GRAMMAR,
// DGR_OUT_OF_MEMORY.
dgr_code dgr_chat_render(const dgr_engine * engine, const char * request, size_t size, dgr_text ** text, char * message, size_t message_size);

// dgr_chat_parse makes a message of an answer, of which partial says that more will come. parser is what dgr_chat_render
// gave for the request, here or in another engine of the model. *text is an OpenAI message, a JSON object. Bounds, *text
// and threads are as with dgr_chat_render.
//
// DGR_NO_TEMPLATE, DGR_MALFORMED (no such parser, or a whole answer that is not in the model's format), DGR_OUT_OF_MEMORY.
dgr_code dgr_chat_parse(const dgr_engine * engine, const char * parser, size_t parser_size, const char * generated, size_t generated_size,
                        uint32_t partial, dgr_text ** text, char * message, size_t message_size);

// dgr_text_bytes are the *size bytes of a text, as long as it lives. Any thread.
const char * dgr_text_bytes(const dgr_text * text, size_t * size);

// dgr_text_free frees a text; NULL is no error. Any thread.
void dgr_text_free(dgr_text * text);

// dgr_ends_generation is 1 when the model ends its answer with this token, else 0. Any thread.
uint32_t dgr_ends_generation(const dgr_engine * engine, uint32_t token);

// dgr_log_take moves log lines of this engine's calls out, oldest first, each ended by '\n' and begun by a letter for
// its level (D, I, W, E) and a space, as many as fit, and returns the bytes written. What does not fit in the engine's
// 64 KiB between two calls is dropped, oldest first. Any thread.
size_t dgr_log_take(dgr_engine * engine, char * out, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
