// Package fixturegen makes gen/fixtures: golden messages of the worker's contract, in binary and in JSON.
//
// Every message type of the contract, every field and every kind of every oneof appears in at least one of them; the test
// says so. They tell one story, a session over three workers that hold the twelve layers of a small model, so that their
// values agree with each other. Behaviour stays out of it: a fixture says how a message looks, not what follows.
package fixturegen
