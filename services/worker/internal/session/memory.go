package session

import (
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Memory is what a worker remembers of the faults of one session, over its attempts and over engines, so that recovery
// does not bring the same fault again and again.
type Memory interface {
	// Struck notes that the engine failed the session with NUMERIC_FAULT or ENGINE_OUT_OF_MEMORY, and says whether this was
	// once too often.
	Struck(code engine.Code) bool
	// Condemned says whether the engines that were lost with a step of this session in hand were too many. Whoever owns
	// the engine knows which sessions those were and notes it before anybody hears of the loss.
	Condemned() bool
}

// fromEngine is an error of the engine as the session tells it: with recovery NEVER where the memory says so.
func (c *Core) fromEngine(err error) *fault.Error {
	return c.remembered(fault.FromEngine(err))
}

func (c *Core) remembered(f *fault.Error) *fault.Error {
	again := false
	switch f.Code {
	case workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT:
		again = c.memory.Struck(engine.NumericFault)
	case workerpb.ErrorCode_ERROR_CODE_ENGINE_OUT_OF_MEMORY:
		again = c.memory.Struck(engine.EngineOutOfMemory)
	case workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT:
		again = c.memory.Condemned()
	}
	if !again {
		return f
	}
	return Final(f)
}

// Final is an error with recovery NEVER.
func Final(f *fault.Error) *fault.Error {
	return f.With(func(f *fault.Error) { f.Recovery, f.RetryAfter = workerpb.Recovery_RECOVERY_NEVER, 0 })
}
