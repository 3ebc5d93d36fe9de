// Package soak opens, drives, cancels and drops sessions at random against real dgr-worker processes with the fake engine, and
// shows that the workers are afterwards what they were before: goroutines, buffered bytes, slots, file handles, memory.
//
// What a worker must answer is the business of tools/conformance; here only defects count: INTERNAL, impossible transitions,
// and things that do not come back.
package soak
