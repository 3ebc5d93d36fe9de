// Package fail is how dgr tells a person or a script that something went wrong: one sentence, or one JSON object, and the
// exit code. It makes no errors of its own but those about the command line.
package fail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Exit codes of dgr.
const (
	Fine   = 0
	Failed = 1
	Usage  = 2
)

// usage is a fault of the command line.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// Usagef is a fault of the command line; the command exits with 2.
func Usagef(format string, args ...any) error { return usage{fmt.Errorf(format, args...)} }

// AsUsage marks err as a fault of the command line. nil stays nil.
func AsUsage(err error) error {
	if err == nil {
		return nil
	}
	return usage{err}
}

// located is an error about one hop of a route.
type located struct {
	error
	hop Hop
}

func (l located) Unwrap() error { return l.error }

// Hop says which worker an error is about.
type Hop struct {
	Index    uint32 `json:"index"`
	WorkerID string `json:"worker_id"`
	Address  string `json:"address"`
	Layers   string `json:"layers"` // FIRST:END
}

// String is as a sentence would say it.
func (h Hop) String() string {
	return fmt.Sprintf("hop %d, worker %s at %s, layers %s", h.Index, h.WorkerID, h.Address, h.Layers)
}

// HopOf describes a hop of a route.
func HopOf(r *route.Route, index uint32) Hop {
	hop := r.Hops[index]
	return Hop{
		Index: index, WorkerID: hop.Capability.GetWorkerId(), Address: hop.Worker.Address(),
		Layers: fmt.Sprintf("%d:%d", hop.First, hop.End),
	}
}

// Locate adds to err which worker of r it is about, if it says so.
func Locate(err error, r *route.Route) error {
	var f *fault.Error
	if err == nil || r == nil || !errors.As(err, &f) || f.Subject == nil || f.Subject.Index == nil || int(f.Subject.GetIndex()) >= len(r.Hops) {
		return err
	}
	return located{err, HopOf(r, f.Subject.GetIndex())}
}

// Code is the exit code.
func Code(err error) int {
	switch {
	case err == nil:
		return Fine
	case errors.As(err, new(usage)):
		return Usage
	}
	return Failed
}

// Text is one line: the sentence, then in brackets the code of the contract and the hop.
func Text(err error) string {
	o := describe(err)
	var marks []string
	if o.typed {
		marks = append(marks, o.Code)
	}
	if o.Hop != nil {
		marks = append(marks, o.Hop.String())
	}
	line := strings.Join(strings.Fields(o.Message), " ")
	if len(marks) > 0 {
		line += " [" + strings.Join(marks, "; ") + "]"
	}
	return line
}

// JSON is the object {"error": {…}}.
func JSON(err error) []byte {
	data, failed := json.Marshal(struct {
		Error object `json:"error"`
	}{describe(err)})
	if failed != nil { // strings and numbers always marshal
		return []byte(`{"error":{"code":"INTERNAL"}}`)
	}
	return data
}

// object is an error as JSON.
type object struct {
	Code       string `json:"code"` // of the contract; USAGE, INTERRUPTED or FAILED elsewhere
	Message    string `json:"message"`
	Scope      string `json:"scope,omitempty"`
	Recovery   string `json:"recovery,omitempty"`
	RetryAfter int64  `json:"retry_after_ms,omitempty"`
	Inferred   bool   `json:"inferred,omitempty"` // concluded here; the worker did not say it
	Hop        *Hop   `json:"hop,omitempty"`

	typed bool
}

// ErrInterrupted is the error of a command that a signal ended.
var ErrInterrupted = errors.New("interrupted; what was begun has been ended")

func describe(err error) object {
	o := object{Code: "FAILED", Message: err.Error()}
	var at located
	if errors.As(err, &at) {
		hop := at.hop
		o.Hop = &hop
	}
	var f *fault.Error
	var e *engine.Error
	switch {
	case errors.As(err, new(usage)):
		o.Code = "USAGE"
	case errors.Is(err, ErrInterrupted), errors.Is(err, context.Canceled) && !errors.As(err, &f):
		o.Code, o.Message = "INTERRUPTED", ErrInterrupted.Error()
	case errors.As(err, &f):
		o.Code, o.Message, o.Inferred, o.typed = fault.Name(f.Code), f.Message, f.Inferred, true
		o.Scope = name(f.Scope, workerpb.ErrorScope_ERROR_SCOPE_UNSPECIFIED, "ERROR_SCOPE_")
		o.Recovery = name(f.Recovery, workerpb.Recovery_RECOVERY_UNSPECIFIED, "RECOVERY_")
		o.RetryAfter = f.RetryAfter.Milliseconds()
	case errors.As(err, &e):
		o.Code, o.Message, o.typed = string(e.Code), e.Message, true
	}
	return o
}

// name is an enum value without its prefix; empty when it is none.
func name[E interface {
	comparable
	fmt.Stringer
}](value, none E, prefix string) string {
	if value == none {
		return ""
	}
	return strings.TrimPrefix(value.String(), prefix)
}
