//go:build llama && cgo

package llama

import "github.com/distributed-gguf-runtime/dgr/libs/engine"

// running is the batch that is in native code, for those who want to stop it.
type running struct {
	generation uint64 // of batches; a late call for an earlier one has no effect
	active     bool
	stopped    bool // the abort flag is set
	sessions   []engine.SessionID
	cancelled  []bool
	left       int // steps not cancelled
}

// begin makes a batch of these sessions, or the probe without any, the running one. The caller holds the turn.
func (e *shardEngine) begin(sessions []engine.SessionID) (generation uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.running
	r.generation++
	r.active, r.stopped = true, false
	r.sessions = append(r.sessions[:0], sessions...)
	r.cancelled = append(r.cancelled[:0], make([]bool, len(sessions))...)
	r.left = len(sessions)
	e.native.abort(false)
	if e.state == stateClosed {
		r.cancelEverything(e)
	}
	return r.generation
}

// end closes the running batch and says which of its steps were cancelled; the answer holds until the next begin.
func (e *shardEngine) end() (cancelled []bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running.active = false
	return e.running.cancelled
}

// cancelAll stops a batch if it is still the running one.
func (e *shardEngine) cancelAll(generation uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running.generation == generation {
		e.running.cancelEverything(e)
	}
}

// cancelEverything cancels every step of the running batch. The caller holds mu.
func (r *running) cancelEverything(e *shardEngine) {
	if !r.active {
		return
	}
	for i := range r.cancelled {
		r.cancelled[i] = true
	}
	r.left = 0
	r.stop(e)
}

// stop sets the abort flag, which all steps of a batch share: only where none is left that should go on.
func (r *running) stop(e *shardEngine) {
	if r.left == 0 && !r.stopped {
		r.stopped = true
		e.native.abort(true)
	}
}

// Cancel stops the running step of a session.
func (e *shardEngine) Cancel(session engine.SessionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &e.running
	if !r.active {
		return
	}
	for i, s := range r.sessions {
		if s == session && !r.cancelled[i] {
			r.cancelled[i] = true
			r.left--
			r.stop(e)
		}
	}
}
