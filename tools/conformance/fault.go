package conformance

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// Kinds of faults that an engine can be made to have.
const (
	FaultLost   = "lost"   // the engine is lost with every cache
	FaultMemory = "memory" // the step fails with ENGINE_OUT_OF_MEMORY
	FaultNaN    = "nan"    // the step fails with NUMERIC_FAULT
	FaultPoison = "poison" // the boundary that the step makes holds NaN, and the engine does not notice
)

// Fault is one that a hop's engine meets with every step that holds some tokens in a row, as a fake engine does by its
// script. Two are better than one: a single one may be sampled.
type Fault struct {
	Kind   string
	Hop    int
	Tokens []uint32
}

// ParseFault reads KIND=TOKENS or KIND@HOP=TOKENS, as lost@2=5,5; without a hop it is the first, 0.
func ParseFault(text string) (Fault, error) {
	what, tokens, ok := strings.Cut(text, "=")
	kind, hop, placed := strings.Cut(what, "@")
	f := Fault{Kind: kind}
	if placed {
		n, err := strconv.Atoi(hop)
		f.Hop, ok = n, ok && err == nil && n >= 0
	}
	for token := range strings.SplitSeq(tokens, ",") {
		id, err := strconv.ParseUint(token, 10, 32)
		f.Tokens, ok = append(f.Tokens, uint32(id)), ok && err == nil
	}
	switch {
	case !ok:
		return f, fmt.Errorf("%q is no fault; write KIND=TOKENS or KIND@HOP=TOKENS, as lost@2=5,5", text)
	case kind != FaultLost && kind != FaultMemory && kind != FaultNaN && kind != FaultPoison:
		return f, fmt.Errorf("there is no fault %q; write lost, memory, nan or poison", kind)
	}
	return f, nil
}

// fault finds the tokens with which a hop's engine meets a fault; none: it is not known how.
func (t *Target) fault(kind string, hop int) []uint32 {
	for _, f := range t.Faults {
		if f.Kind == kind && f.Hop == hop {
			return f.Tokens
		}
	}
	return nil
}

// faulty is a Case.Skip for targets that cannot be made to fail so.
func faulty(kind string, hop int) func(*Target) string {
	return func(t *Target) string {
		if t.fault(kind, hop) == nil {
			return fmt.Sprintf("the target names no tokens that make the engine of hop %d fail so (--fault %s@%d=TOKENS)", hop, kind, hop)
		}
		return ""
	}
}

// failing makes a step one that meets a fault.
func (t *T) failing(kind string, hop int) func(*workerpb.Step) { return prefill(t.fault(kind, hop)...) }
