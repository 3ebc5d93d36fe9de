// Package fence proves the rules of steps and of opening on a model: it walks every order in which a driver and three hops
// can send, receive, run, fail and break, and looks at the caches in each state.
//
// The caches of a route go back to any length, within a window or not at all, each hop with its own number of marks, taken and
// given up as the worker's session does. A driver may then truncate to each length that reach named. While steps run, links
// break and engines are lost: one or two of them, with and without another fault. The opening that follows is one move there;
// its own orders are searched in the model of opening. fence-proof says of each search whether it was complete or bounded.
//
// A model of the steps runs on contracts/tables/step.v1.yaml, one of opening on session.v1.yaml: what a table calls
// impossible must not happen. A set of cases says that the rules hold; another removes one rule after the other, and each
// removal must give a counterexample, else the check could not fail. Real workers, bytes, frames, times and tokens stay
// out: a step is one token, a time limit is an event that may come whenever it can.
package fence
