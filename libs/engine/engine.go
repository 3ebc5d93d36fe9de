package engine

import (
	"context"
)

// ShardEngine computes one shard. The suite in enginetest is the whole truth about its semantics.
//
// Unless a method says otherwise it may be called from one goroutine at a time, the engine's owner. Capabilities,
// Cancel, Health and Metrics may be called from any goroutine at any time and never wait for a running batch.
//
// An engine keeps no slice that a caller passed once the call has returned, and a caller owns every slice that a call
// returned: the engine does not touch it again.
//
// Every error is or wraps an *Error; errors.Is(err, engine.ContextOverflow) and the like tell them apart.
type ShardEngine interface {
	// Load reads a shard and makes it ready for sessions.
	//
	// Allowed in: New, also after an earlier Load failed. Elsewhere: LIFECYCLE_VIOLATION.
	// progress, if not nil, is called from the goroutine of Load, with phases in order and Done never falling.
	// The end of ctx stops the load within a bounded time; the engine is New again and holds nothing.
	//
	// Errors: BAD_MODEL_FILE, UNSUPPORTED_ARCHITECTURE, SHARD_MISMATCH (no such layers, or no legal cut),
	// ENGINE_OUT_OF_MEMORY, MALFORMED (options out of range), CANCELLED, ENGINE_FAULT.
	Load(ctx context.Context, req LoadRequest, progress func(LoadProgress)) (ShardInfo, error)

	// Capabilities says what the engine is and what it can do now. Shard is nil unless Loaded.
	//
	// Allowed in: every state, from any goroutine.
	Capabilities() Capabilities

	// Open reserves room for a session of contextTokens tokens, 1 ≤ contextTokens ≤ ContextLimit, at once or not at
	// all: a session that opened cannot fail for room. The cache starts empty.
	//
	// Allowed in: Loaded.
	// Errors: NO_CAPACITY, CONTEXT_OVERFLOW (more than ContextLimit), MALFORMED (0 tokens), LIFECYCLE_VIOLATION (already
	// open or not Loaded), ENGINE_FAULT.
	Open(ctx context.Context, session SessionID, contextTokens uint32) error

	// Step evaluates a batch: steps of different sessions, prefill and decode mixed, at most one step a session.
	// Results come in the order of the steps, one each; a step that fails has its own error and changes nothing:
	// its session's cache is as long as Step.Start said.
	//
	// The batch is checked as a whole before anything changes: each step that is wrong by itself (unknown session,
	// cache mismatch, overflow, bad boundary, token out of range) gets its error, and the rest run.
	//
	// The end of ctx cancels every step of the batch. Either way Step returns only when native code is at rest.
	//
	// Allowed in: Loaded.
	// Error for the batch as a whole (results nil): LIFECYCLE_VIOLATION, MALFORMED (empty, more than BatchTokens rows,
	// or a session twice), ENGINE_FAULT (the engine is Lost, every cache is gone).
	// Error for one step: SESSION_UNKNOWN, CACHE_MISMATCH, CONTEXT_OVERFLOW, TOKEN_OUT_OF_RANGE, MALFORMED,
	// UNSUPPORTED_FEATURE (a reserved field is used), CANCELLED, NUMERIC_FAULT, INVALID_GRAMMAR, ENGINE_OUT_OF_MEMORY.
	Step(ctx context.Context, batch []Step) ([]StepResult, error)

	// Truncate makes a session's cache shorter and returns what it then is. At or above the present length it does
	// nothing. It goes back exactly or not at all: a length that CacheState.Reach does not hold is CACHE_MISMATCH.
	//
	// Allowed in: Loaded. Errors: SESSION_UNKNOWN, CACHE_MISMATCH, LIFECYCLE_VIOLATION, ENGINE_FAULT.
	Truncate(ctx context.Context, session SessionID, length Pos) (CacheState, error)

	// Mark keeps a checkpoint of a session's cache at its present length, so that Truncate can return to this length
	// however the cache goes back otherwise, until it is unmarked or cut off by going back behind it. Length 0 needs none,
	// and a length has one at most: there it does nothing.
	//
	// Allowed in: Loaded. Errors: SESSION_UNKNOWN, NO_CAPACITY (CacheAbility.Marks are held: unmark one),
	// LIFECYCLE_VIOLATION, ENGINE_OUT_OF_MEMORY, ENGINE_FAULT.
	Mark(ctx context.Context, session SessionID) (CacheState, error)

	// Unmark drops the checkpoint at a length. Where there is none it does nothing.
	//
	// Allowed in: Loaded. Errors: SESSION_UNKNOWN, LIFECYCLE_VIOLATION, ENGINE_FAULT.
	Unmark(ctx context.Context, session SessionID, length Pos) (CacheState, error)

	// Copy fills the empty cache of session to with the first length tokens of from's, marks up to there included, and
	// returns what it then is. from stays as it is, and neither touches the other from then on. length is from's present
	// one, one within its reach, or with CopyPrefix any below.
	//
	// Allowed in: Loaded. Errors, all before anything changes: SESSION_UNKNOWN (either), CACHE_MISMATCH (to is not empty, or
	// from cannot be had at that length), CONTEXT_OVERFLOW (more than to has room for), LIFECYCLE_VIOLATION,
	// ENGINE_OUT_OF_MEMORY, ENGINE_FAULT.
	Copy(ctx context.Context, from, to SessionID, length Pos) (CacheState, error)

	// Cancel asks the running step of a session to stop; its result is CANCELLED and its cache is where the step
	// began. No effect on a session that has no step in the running batch, on other sessions' results, or on later
	// steps. It returns at once.
	//
	// Allowed in: every state, from any goroutine.
	Cancel(session SessionID)

	// Release frees a session's cache. Unknown and already released sessions are no error.
	//
	// Allowed in: Loaded; elsewhere it does nothing. Errors: ENGINE_FAULT.
	Release(ctx context.Context, session SessionID) error

	// Health says whether the engine works: with deep it runs a probe step through the own layers in a reserved slot
	// (a shard that is no head probes with a zero boundary), between batches, bounded by ctx.
	//
	// Allowed in: every state, from any goroutine; a deep probe may wait for the running batch until ctx ends.
	// Errors: LIFECYCLE_VIOLATION (not Loaded), ENGINE_FAULT, NUMERIC_FAULT, DEADLINE_EXCEEDED.
	Health(ctx context.Context, deep bool) (Health, error)

	// Metrics returns counters since the engine was made; none ever falls.
	//
	// Allowed in: every state, from any goroutine.
	Metrics() Metrics

	// Close stops what runs, waits until native code is at rest and frees everything. Idempotent.
	//
	// Allowed in: every state.
	Close() error
}

// Mortal is what a ShardEngine also is when it can be lost while nobody calls it, as one in a process of its own.
type Mortal interface {
	// Lost is closed when the engine is lost, or was closed; every call then says so. It is the same channel each time.
	Lost() <-chan struct{}
}

// TextEngine turns text into tokens and back with the vocabulary of the loaded model. Any shard of a model can: the
// vocabulary is in the header that every shard has.
//
// All methods may be called from any goroutine once the ShardEngine of the same Factory call is Loaded; before that they
// return LIFECYCLE_VIOLATION.
type TextEngine interface {
	// Tokenize returns the ids of text. addSpecial adds what the model puts around a prompt (BOS, EOS), exactly once;
	// parseSpecial reads special tokens that are written in the text. Invalid UTF-8 is taken byte by byte.
	Tokenize(ctx context.Context, text string, addSpecial, parseSpecial bool) ([]TokenID, error)

	// Detokenize returns the bytes of ids; they may begin or end inside a UTF-8 sequence. special writes special tokens
	// as text. Errors: TOKEN_OUT_OF_RANGE.
	Detokenize(ctx context.Context, tokens []TokenID, special bool) ([]byte, error)

	// CheckGrammar compiles a grammar and forgets it. Errors: INVALID_GRAMMAR, TOKEN_OUT_OF_RANGE (a trigger),
	// UNSUPPORTED_FEATURE (the engine compiles none).
	CheckGrammar(ctx context.Context, grammar Grammar) error

	// HasChatTemplate says whether the model's header carries a chat template.
	HasChatTemplate() bool

	// RenderChat makes a prompt of a conversation by the template in the model's header. The tokens are those of the prompt
	// with what the model puts around it, exactly once. It ends within a bounded time, whatever template and request are.
	//
	// Errors: NO_TEMPLATE (the header has none, or none that can be read), MALFORMED (the message names the field, or tells
	// why the template refuses it), INVALID_GRAMMAR (a schema that no grammar can say), CANCELLED, ENGINE_OUT_OF_MEMORY.
	RenderChat(ctx context.Context, request ChatRequest) (ChatPrompt, error)

	// ParseChat makes an OpenAI message, a JSON object, of an answer as Detokenize writes it with special, without the token
	// that ended it. parser is ChatPrompt.Parser of any engine of the same model; partial says that more will come.
	//
	// Errors: NO_TEMPLATE, MALFORMED (no such parser, or a whole answer that is not in the model's format), CANCELLED,
	// ENGINE_OUT_OF_MEMORY.
	ParseChat(ctx context.Context, parser []byte, text string, partial bool) (message string, err error)
}

// Factory makes a fresh engine in state New and the TextEngine that belongs to it. A worker calls it at start and again
// after an engine was lost.
type Factory func() (ShardEngine, TextEngine, error)
