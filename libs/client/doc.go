// Package client is the driver's half of the worker's contract, for gateways, Trackers and tools in Go.
//
//	dial       connections: message sizes, keepalive, TLS
//	worker     calls to one worker without a session: capability, health, text, metrics
//	route      what a list of workers holds, and whether together it is one model
//	session    one sequence over a route: prefill, generate, decode, truncate, stop, close, resume
//	remote     one worker as an engine.ShardEngine: the simplest driver of the hub mode
//	fault      the contract's error as a Go error, and back
//	cachehash  the chain hash by which both ends agree on what a cache holds
//
// This package itself holds nothing but the example. What must stay out of all of them: retries, the choice of workers, text
// for people and the OpenAI API.
package client
