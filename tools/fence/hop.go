package fence

import "strings"

const (
	hops     = 3
	maxSteps = 6 // ids are 1 to maxSteps-1
)

// Kinds of messages.
const (
	msgStep      = 'S' // down
	msgIteration = 'I' // down
	msgCancel    = 'C' // down
	msgResult    = 'R' // up
	msgFailed    = 'F' // up
	msgToken     = 'T' // up, and over the ring
	msgCredit    = 'K' // up
)

// message travels on a link. arg is what a Step builds on, the last id that a CancelStep names, the index of an Iteration or
// Token, the length in a StepResult.
type message struct {
	kind      byte
	step, arg int8
	to        int8   // length that a Truncate of the driver names; 0: no such step
	reach     uint16 // lengths of a reply, a bit each
	undo      bool   // of a CancelStep
	last      bool   // of a Token: no more follows
}

// mark is a cache that a hop can return to.
type mark struct {
	cache string
	end   bool // of a prefill, which the next turn may want
}

// applied is a step that changed the cache of a hop. low is the least length since its start.
type applied struct{ step, start, low int8 }

// replies of a hop or of the one after it.
const (
	replyNone = iota
	replyResult
	replyFailed
)

// hop is what one hop knows.
type hop struct {
	queue     []message
	applied   []applied
	cache     string // a letter per token, so that unequal caches show
	marks     []mark // ascending
	lower     uint16 // reach that the next hop told last
	prefilled bool   // the last step was a prefill
	from      int8   // first token that a window cache still holds; else 0
	life      [maxSteps]byte
	received  [maxSteps]bool
	passed    [maxSteps]bool // forwarded
	dropped   [maxSteps]bool
	failing   [maxSteps]bool // failed or cancelled
	named     [maxSteps]bool // by a CancelStep that came
	reply     [maxSteps]byte // sent up
	below     [maxSteps]byte // came from below
	unwind    bool
	ended     bool // its part of the attempt
	gone      bool // its engine was lost in this attempt
	run       run
}

// run is the Generate of the scenario, as one hop sees it.
type run struct {
	tokens, begun          int8
	ended, stopped, passed bool
}

func (h *hop) clone() hop {
	n := *h
	n.queue = append([]message(nil), h.queue...)
	n.applied = append([]applied(nil), h.applied...)
	n.marks = append([]mark(nil), h.marks...)
	return n
}

// top is the last step that was applied.
func (h *hop) top() int8 {
	if len(h.applied) == 0 {
		return 0
	}
	return h.applied[len(h.applied)-1].step
}

func (h *hop) holds(step int8) bool {
	for _, a := range h.applied {
		if a.step == step {
			return true
		}
	}
	return false
}

// open says whether a step came and has no terminal reply.
func (h *hop) open(step int8) bool { return h.received[step] && h.reply[step] == replyNone }

// newest is the greatest id that came, at least step.
func (h *hop) newest(step int8) int8 {
	for id := int8(maxSteps - 1); id > step; id-- {
		if h.received[id] {
			return id
		}
	}
	return step
}

// grow adds a token to the cache.
func (h *hop) grow(kind cacheKind, token byte) {
	h.cache += string(rune(token))
	if kind == cacheWindow {
		h.from = max(h.from, int8(len(h.cache))-keptTokens)
	}
}

// reaches says whether the cache itself, without marks, goes back to a length exactly.
func (h *hop) reaches(kind cacheKind, length int8) bool {
	switch {
	case length == 0 || int(length) == len(h.cache) || kind == cacheAny:
		return true
	case kind == cacheWindow:
		return h.from <= max(0, length-windowTokens)
	}
	return false
}

// cut makes the cache shorter as the engine does: what it does not reach becomes wrong, and nobody is told.
func (h *hop) cut(kind cacheKind, length int8) {
	right := h.reaches(kind, length)
	h.cache = h.cache[:length]
	if !right {
		h.cache = strings.Repeat("?", int(length))
	}
	if length == 0 {
		h.from = 0
	}
}

// restore returns to a mark.
func (h *hop) restore(kind cacheKind, cache string) {
	h.cache, h.from = "", 0
	for i := range len(cache) {
		h.grow(kind, cache[i])
	}
}
