package engine

import (
	"errors"
	"fmt"
)

// Code is the reason of an Error. The names are those of the contract's taxonomy (contracts/tables/errors.v1.yaml), so
// that a worker passes them on as they are. A Code is itself an error, for errors.Is.
type Code string

// The codes that an engine returns.
const (
	Malformed               Code = "MALFORMED"
	LifecycleViolation      Code = "LIFECYCLE_VIOLATION"
	SessionUnknown          Code = "SESSION_UNKNOWN"
	ShardMismatch           Code = "SHARD_MISMATCH"
	CacheMismatch           Code = "CACHE_MISMATCH"
	ContextOverflow         Code = "CONTEXT_OVERFLOW"
	NoCapacity              Code = "NO_CAPACITY"
	DeadlineExceeded        Code = "DEADLINE_EXCEEDED"
	Cancelled               Code = "CANCELLED"
	EngineFault             Code = "ENGINE_FAULT"
	EngineOutOfMemory       Code = "ENGINE_OUT_OF_MEMORY"
	NumericFault            Code = "NUMERIC_FAULT"
	UnsupportedArchitecture Code = "UNSUPPORTED_ARCHITECTURE"
	UnsupportedFeature      Code = "UNSUPPORTED_FEATURE"
	BadModelFile            Code = "BAD_MODEL_FILE"
	InvalidGrammar          Code = "INVALID_GRAMMAR"
	NoTemplate              Code = "NO_TEMPLATE"
	TokenOutOfRange         Code = "TOKEN_OUT_OF_RANGE"
)

// Error makes a Code an error, so that errors.Is(err, engine.NoCapacity) works.
func (c Code) Error() string { return string(c) }

// Error is what every call of an engine fails with.
type Error struct {
	Code    Code
	Message string // one sentence: what happened, to what, what to do next
	Err     error  // cause, or nil
}

// Errorf makes an Error; %w in the format keeps a cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Error is the code and the sentence.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is says whether target is the error's Code.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// CodeOf returns the Code of err, ENGINE_FAULT if it has none, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var c Code
	if errors.As(err, &c) {
		return c
	}
	return EngineFault
}
