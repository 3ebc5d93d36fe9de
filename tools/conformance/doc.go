// Package conformance proves a worker of any make against contracts/SPEC.md from its endpoint alone.
//
// A Case tries one thing and cites the clauses that it proves. Cases speak the contract as bytes on a stream: nothing of
// libs/client or of the worker is between them and the wire, so that a fault on our side of it is not repeated here.
//
// What must stay out: knowledge of an engine or of an implementation, and whatever needs more than the addresses of a
// route.
package conformance
