package conformance

import "fmt"

// FakeModel is the model of our worker's fake engine with which every case runs, for one hop of a route: it has layers for a
// route that is too long, is wide enough for boundaries and logits that go in frames, takes its time to be loaded again,
// and fails as FakeFaults says.
func FakeModel(hop int) string {
	return fmt.Sprintf("fake:layers=40,width=1032,vocab=600,chat=true,script=load 2+ slow 300ms; step with 592,592 fail ENGINE_OUT_OF_MEMORY; "+
		"step with 593,593 nan; step with 594,594 poison; step with %[1]d,%[1]d lost", 595+hop)
}

// FakeFaults are those of up to three workers with FakeModel.
func FakeFaults(hops int) []Fault {
	faults := []Fault{{Kind: FaultMemory, Tokens: []uint32{592, 592}}, {Kind: FaultNaN, Tokens: []uint32{593, 593}}}
	if hops > 1 { // one that is the tail makes no boundary
		faults = append(faults, Fault{Kind: FaultPoison, Tokens: []uint32{594, 594}})
	}
	for hop := range hops {
		token := uint32(595 + hop)
		faults = append(faults, Fault{Kind: FaultLost, Hop: hop, Tokens: []uint32{token, token}})
	}
	return faults
}
