package remote

import (
	"context"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// translate is a fault as an engine's error; errors.As finds the fault in it. Codes of the wire that no engine returns are
// what they mean to a caller of one: a worker that is busy with another load is in a state that refuses, and one that cannot
// be reached, drains or lost its shard has lost what the caller had there.
func translate(f *fault.Error) *engine.Error {
	code := engine.EngineFault
	switch f.Code {
	case workerpb.ErrorCode_ERROR_CODE_LOAD_IN_PROGRESS:
		code = engine.LifecycleViolation
	case workerpb.ErrorCode_ERROR_CODE_QUOTA_EXCEEDED:
		code = engine.NoCapacity
	case workerpb.ErrorCode_ERROR_CODE_MALFORMED, workerpb.ErrorCode_ERROR_CODE_LIFECYCLE_VIOLATION,
		workerpb.ErrorCode_ERROR_CODE_SESSION_UNKNOWN, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH,
		workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH, workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW,
		workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY, workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED,
		workerpb.ErrorCode_ERROR_CODE_CANCELLED, workerpb.ErrorCode_ERROR_CODE_ENGINE_OUT_OF_MEMORY,
		workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_ARCHITECTURE,
		workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, workerpb.ErrorCode_ERROR_CODE_BAD_MODEL_FILE,
		workerpb.ErrorCode_ERROR_CODE_INVALID_GRAMMAR, workerpb.ErrorCode_ERROR_CODE_NO_TEMPLATE,
		workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE:
		code = engine.Code(fault.Name(f.Code))
	}
	return &engine.Error{Code: code, Message: f.Message, Err: f}
}

// refused is err of a call to the worker as an engine's error; nil stays nil.
func refused(err error) error {
	if err == nil {
		return nil
	}
	return translate(fault.Of(err))
}

// ended is why a call does not go on whose ctx ended.
func ended(ctx context.Context, waited string) *engine.Error {
	return translate(fault.FromContext(ctx, waited))
}
