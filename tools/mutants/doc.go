// Package mutants proves dgr-conformance itself: a proof that passes a worker which breaks the contract proves nothing.
//
// A Mutant is one fault, as data: a text of one file of the repository and what stands there instead. Each is built into a
// dgr-worker of its own by an overlay, so that the tree stays as it is, and is then tried as one worker and as a route of
// three. It is caught by the first case that fails.
//
// What must stay out: faults that nobody can see from a worker's endpoint (they are for the worker's own tests), and faults
// of anything but the worker and what it is made of.
package mutants
