// Package session is the rules of one session at one hop: what is refused, what is held, what runs, what is undone, and what
// every neighbour is told about it.
//
// A Core is a pure machine. Its inputs are messages of the upstream and of the next hop, outcomes of the engine, and the
// clock; its outputs are Effects that somebody else carries out. It does no I/O, starts no goroutine, reads no clock and
// holds no lock, so that every interleaving can be tried in a test. The lifecycle tables (gen/tables) decide every
// transition: the code asks them and does the effects that the row names.
//
// What must stay out: gRPC, the scheduler, dialling, and knowledge of other sessions. See the packages live, batch, chain
// and rpc.
//
// # Hops count from here
//
// No message tells a hop its place in the route. A hop names itself with index 0, the next one with index 1, and adds one
// to every index that comes up from below; so the driver, who is above hop 0, reads places in the route.
package session
