// Package fault is the one error of the contract as a Go error: the only place that turns a workerpb.ShardError or a gRPC
// status into an error and back, so that errors.Is works on the far side of any number of hops.
//
// Sentences, scopes, recoveries and gRPC codes come from contracts/tables/errors.v1.yaml by way of gen/tables; none is
// written here. What a caller does about an error does not belong here either.
package fault

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// retryAfter is the advice where the raiser of an error with RETRY_SAME or RETRY_OTHER has none of its own.
const retryAfter = time.Second

// Code is an ErrorCode as an error: errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_NO_CAPACITY)).
type Code workerpb.ErrorCode

// Error is the name of the code in the table, as NO_CAPACITY.
func (c Code) Error() string { return Name(workerpb.ErrorCode(c)) }

// Name is the code's name in the table, without the enum's prefix.
func Name(code workerpb.ErrorCode) string {
	return strings.TrimPrefix(code.String(), "ERROR_CODE_")
}

// Error is a ShardError as a Go error.
type Error struct {
	Code    workerpb.ErrorCode
	Message string // one sentence for a person; never parsed
	Scope   workerpb.ErrorScope
	// Recovery is the advice of the hop that raised the error; it rules over the table's default.
	Recovery   workerpb.Recovery
	RetryAfter time.Duration // with RETRY_SAME and RETRY_OTHER, else 0
	Origin     *workerpb.HopRef
	Subject    *workerpb.HopRef
	Detail     *workerpb.ErrorDetail
	// Inferred says that the peer did not say this: it was concluded from a broken link or a bare gRPC status.
	Inferred bool

	cause error
}

// New makes an error with the table's scope and recovery. Without a format the message is the table's sentence; with one it is
// the sentence followed by the particulars.
func New(code workerpb.ErrorCode, format string, args ...any) *Error {
	row := tables.ErrorByCode(code)
	e := &Error{Code: code, Message: row.Sentence, Scope: row.Scope, Recovery: row.Recovery}
	if format != "" {
		particulars := fmt.Errorf(format, args...)
		e.Message = join(row.Sentence, particulars.Error())
		e.cause = errors.Unwrap(particulars)
	}
	if retries(e.Recovery) && code != workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED {
		e.RetryAfter = retryAfter
	}
	return e
}

// join puts the particulars behind the table's sentence.
func join(sentence, particulars string) string {
	if particulars == "" {
		return sentence
	}
	return strings.TrimSuffix(sentence, ".") + ": " + particulars
}

func retries(r workerpb.Recovery) bool {
	return r == workerpb.Recovery_RECOVERY_RETRY_SAME || r == workerpb.Recovery_RECOVERY_RETRY_OTHER
}

// FromEngine turns an engine's error into one of the contract. An error without a Code is ENGINE_FAULT. nil stays nil.
func FromEngine(err error) *Error {
	if err == nil {
		return nil
	}
	name := "ERROR_CODE_" + string(engine.CodeOf(err))
	code, known := workerpb.ErrorCode_value[name]
	if !known {
		return New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "the engine returned an error of the unknown kind %s", name)
	}
	particulars := err.Error()
	var e *engine.Error
	if errors.As(err, &e) {
		particulars = e.Message
	}
	f := New(workerpb.ErrorCode(code), "%s", particulars)
	f.cause = err
	return f
}

// Of returns err as an *Error: itself if it is or wraps one, else by its engine code, context error or gRPC status.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	var f *Error
	if errors.As(err, &f) {
		return f
	}
	var e *engine.Error
	if errors.As(err, &e) {
		return FromEngine(err)
	}
	return FromStatus(err)
}

// Error is the code's name and the message.
func (e *Error) Error() string { return Name(e.Code) + ": " + e.Message }

// Unwrap returns the cause on this side of the wire.
func (e *Error) Unwrap() error { return e.cause }

// Is says whether target is the error's Code, as a fault.Code or as an engine.Code.
func (e *Error) Is(target error) bool {
	switch code := target.(type) {
	case Code:
		return workerpb.ErrorCode(code) == e.Code
	case engine.Code:
		return string(code) == Name(e.Code)
	}
	return false
}

// With returns a copy that fill has changed.
func (e *Error) With(fill func(*Error)) *Error {
	c := *e
	fill(&c)
	return &c
}

// At returns a copy raised by the hop origin about the hop subject; what is already set stays.
func (e *Error) At(origin, subject *workerpb.HopRef) *Error {
	return e.With(func(c *Error) {
		if c.Origin == nil {
			c.Origin = origin
		}
		if c.Subject == nil {
			c.Subject = subject
		}
	})
}
