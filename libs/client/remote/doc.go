// Package remote is a worker seen as an engine.ShardEngine: the simplest driver of the contract's hub mode, and the example to
// read for one in another language. Each session is one Session stream with egress RETURN to that worker alone; boundaries come
// back here, and the caller carries them to the next shard, which may be another worker or an engine in this process.
//
//	e, text, err := remote.New(remote.Options{Address: "10.0.0.7:7070", Dial: dial.Default()})
//	info, err := e.Attach(ctx) // the shard that the worker holds; Load makes it hold another one
//	err = e.Open(ctx, session, 4096)
//	results, err := e.Step(ctx, batch)
//
// # What becomes what
//
//	Load       ShardService.LoadShard with its progress; Close then unloads what Load loaded
//	Open       a Session stream, its open and opened
//	Step       a Decode on the stream of each session, or Prefill where nothing is asked for; all are in flight together
//	Truncate   a truncate step
//	Cancel     cancel_step with undo
//	Release    close, and closed
//	Health     GetHealth
//	Metrics    GetMetrics for calls and rows, the rest as this side counted it
//
// # What the wire does not carry
//
// A worker's own configuration says how it computes. So Load refuses as MALFORMED a request that asks for another context limit,
// number of sessions, batch, micro-batch, number of threads, cache type or flash attention than the worker has; MemoryMap is not
// looked at. LoadRequest.Paths is one name in the worker's store. ShardInfo.Memory and TrainContext are not told: they are zero.
//
// Health cannot ask for a probe: with deep it tells how long the worker's own last one took. Text must be UTF-8. CheckGrammar
// is UNSUPPORTED_FEATURE: a worker checks the grammar of each step before anything is evaluated for it.
//
// A worker takes marks and adopts prefixes by itself, at places that its driver does not choose: see Open.prefix of the
// contract. So CacheAbility.Marks is 0 whatever the worker holds for itself, Mark is NO_CAPACITY, and Copy UNSUPPORTED_FEATURE.
//
// A step may also fail with DEADLINE_EXCEEDED, after Options.StepBudget. When the worker ends a single session (it may run out
// of memory for it, or an operator may cancel it), the step that ran says why, and the session is then unknown. When the
// worker's engine fails, or the link to it breaks, this engine is lost; a new one may be made at once.
//
// # What must stay out
//
// Routes over several workers (package session), retries and the choice of workers.
package remote
