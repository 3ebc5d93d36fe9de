// Package child runs an engine in a process of its own, so that whatever native code does (an abort, a segmentation fault,
// a kill for want of memory, a hang) costs the sessions and not the worker.
//
// New starts the process and is a ShardEngine and a TextEngine to whoever calls it; Serve is what the process does. The two
// know no engine: any Factory can stand behind Serve, and enginetest runs its cases on both sides.
//
// Between them are four files that the process inherits:
//
//	steps     a socket on which a doorbell is rung for each batch, read blockingly by a thread that does nothing else: a
//	          wake-up through the runtime's poller costs more than the whole batch of a small model
//	calls     a socket with net/rpc for everything else: those calls are rare, and some must pass while a batch runs
//	requests  memory that the parent writes: what a batch is, then the rows of its boundaries
//	replies   memory that the child writes: what became of it, then the rows of its results
//
// The end of either socket is the end of the other side: a child without a parent exits at once, a parent without a child
// answers ENGINE_FAULT with what the process last said.
//
// What must stay out: what an engine computes, and when a lost one is started again (services/worker/internal/shard).
package child
