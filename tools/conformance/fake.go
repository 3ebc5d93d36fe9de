package conformance

import "fmt"

// FakeModel is the model of our worker's fake engine with which every case runs, for one hop of a route: it has layers for a
// route that is too long, is wide enough for boundaries and logits that go in frames, takes its time to be loaded again,
// and fails as FakeFaults says.
func FakeModel(hop int) string {
	return fmt.Sprintf("fake:layers=40,width=1032,vocab=600,script=load 2+ slow 300ms; step with 2 fail ENGINE_OUT_OF_MEMORY; "+
		"step with 6 nan; step with 7 poison; step with %d lost", 3+hop)
}

// FakeFaults are those of up to three workers with FakeModel.
func FakeFaults(hops int) []Fault {
	faults := []Fault{{Kind: FaultMemory, Token: 2}, {Kind: FaultNaN, Token: 6}}
	if hops > 1 { // one that is the tail makes no boundary
		faults = append(faults, Fault{Kind: FaultPoison, Token: 7})
	}
	for hop := range hops {
		faults = append(faults, Fault{Kind: FaultLost, Hop: hop, Token: uint32(3 + hop)})
	}
	return faults
}
