package conformance

import (
	"fmt"
	"strconv"
	"strings"
)

// Kinds of faults that an engine can be made to have.
const (
	FaultLost   = "lost"   // the engine is lost with every cache
	FaultMemory = "memory" // the step fails with ENGINE_OUT_OF_MEMORY
	FaultNaN    = "nan"    // the step fails with NUMERIC_FAULT
	FaultPoison = "poison" // the boundary that the step makes holds NaN, and the engine does not notice
)

// Fault is one that a hop's engine meets with every step that holds a token, as a fake engine does by its script. No other
// case uses ids below 8.
type Fault struct {
	Kind  string
	Hop   int
	Token uint32
}

// ParseFault reads KIND=TOKEN or KIND@HOP=TOKEN, as lost@2=5; without a hop it is the first, 0.
func ParseFault(text string) (Fault, error) {
	what, token, ok := strings.Cut(text, "=")
	kind, hop, placed := strings.Cut(what, "@")
	f := Fault{Kind: kind}
	id, err := strconv.ParseUint(token, 10, 32)
	if ok = ok && err == nil; ok && placed {
		f.Hop, err = strconv.Atoi(hop)
		ok = err == nil && f.Hop >= 0
	}
	f.Token = uint32(id)
	switch {
	case !ok:
		return f, fmt.Errorf("%q is no fault; write KIND=TOKEN or KIND@HOP=TOKEN, as lost@2=5", text)
	case kind != FaultLost && kind != FaultMemory && kind != FaultNaN && kind != FaultPoison:
		return f, fmt.Errorf("there is no fault %q; write lost, memory, nan or poison", kind)
	}
	return f, nil
}

// fault finds the token with which a hop's engine meets a fault.
func (t *Target) fault(kind string, hop int) (token uint32, ok bool) {
	for _, f := range t.Faults {
		if f.Kind == kind && f.Hop == hop {
			return f.Token, true
		}
	}
	return 0, false
}

// faulty is a Case.Skip for targets that cannot be made to fail so.
func faulty(kind string, hop int) func(*Target) string {
	return func(t *Target) string {
		if _, ok := t.fault(kind, hop); !ok {
			return fmt.Sprintf("the target names no token that makes the engine of hop %d fail so (--fault %s@%d=TOKEN)", hop, kind, hop)
		}
		return ""
	}
}

// failing is such a token.
func (t *T) failing(kind string, hop int) uint32 {
	token, ok := t.fault(kind, hop)
	if !ok {
		t.Fatalf("the case needs the fault %s of hop %d", kind, hop)
	}
	return token
}
