//go:build unix

package child

import (
	"context"
	"net/rpc"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child/internal/wire"
)

// Bounds of what never waits for a batch.
const (
	glance    = 100 * time.Millisecond // Metrics while a batch runs
	probeTime = 60 * time.Second       // a deep probe whose context has no deadline
)

// Engine is an engine.ShardEngine whose work is done by a child process. Beside what the interface says it may be lost at
// any time: it is engine.Mortal.
type Engine struct {
	process  *process
	patience time.Duration
	chats    chan struct{} // one for each chat call that runs
	stepping sync.Mutex    // held while a batch runs
	hears    *wire.Hearing
	speaks   *wire.Speech

	mu       sync.Mutex
	batch    uint64                    // number of the last batch
	running  map[engine.SessionID]bool // sessions of the batch that runs, true once cancelled; nil: none runs
	loads    uint64                    // number of the last load
	able     engine.Capabilities
	template bool
	metrics  engine.Metrics
	read     uint64 // which reading of the child's they are
	closed   bool
	closing  sync.Once
	closeErr error
}

// New starts a process and asks it what its engine is.
func New(o Options) (*Engine, error) {
	if o.Output == nil {
		o.Output = os.Stderr
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	p, err := start(o.Command(), o.Output)
	if err != nil {
		return nil, engine.Errorf(engine.EngineFault, "%w", err)
	}
	e := &Engine{process: p, patience: o.Patience, chats: make(chan struct{}, chatsAtOnce), hears: wire.NewHearing(), speaks: wire.NewSpeech()}
	if _, err := e.quick("Describe", wire.Call{}); err != nil {
		p.close()
		return nil, err
	}
	return e, nil
}

// Lost is closed when the process has ended, which Close does too.
func (e *Engine) Lost() <-chan struct{} { return e.process.ended }

// Capabilities is what the child last told.
func (e *Engine) Capabilities() engine.Capabilities {
	e.mu.Lock()
	defer e.mu.Unlock()
	able := e.able
	able.Pin, able.Patches = slices.Clone(able.Pin), slices.Clone(able.Patches)
	able.Features, able.Devices = slices.Clone(able.Features), slices.Clone(able.Devices)
	if able.Shard == nil || e.closed || e.gone() {
		able.Shard = nil
		return able
	}
	able.Shard = cloneInfo(able.Shard)
	return able
}

func cloneInfo(s *engine.ShardInfo) *engine.ShardInfo {
	info := *s
	for _, layout := range []**engine.BoundaryLayout{&info.BoundaryIn, &info.BoundaryOut} {
		if *layout != nil {
			l := **layout
			*layout = &l
		}
	}
	return &info
}

// Load hands the request to the child and its progress to the caller.
func (e *Engine) Load(ctx context.Context, req engine.LoadRequest, progress func(engine.LoadProgress)) (engine.ShardInfo, error) {
	if err := e.refusal(); err != nil {
		return engine.ShardInfo{}, err
	}
	e.mu.Lock()
	e.loads++
	number := e.loads
	e.mu.Unlock()
	load := e.send("Load", wire.Call{Load: req, Ended: ctx.Err() != nil})
	stop := watch(ctx, e.patience, func() { e.send("CancelLoad", wire.Call{Number: number}) }, e.process.kill)
	defer stop()
	for seen := 0; ; seen++ {
		told := <-e.send("Progress", wire.Call{Number: number, Seen: seen, Ended: ctx.Err() != nil}).Done
		next := told.Reply.(*wire.Reply).Progress
		if told.Error != nil || next == nil {
			break
		}
		if progress != nil {
			progress(*next)
		}
	}
	reply, err := e.received(<-load.Done)
	if err != nil {
		return engine.ShardInfo{}, err
	}
	return reply.Info, nil
}

// watch does what the end of ctx asks for, and the last thing if that does not help within patience. The caller stops it
// when what it watches over has ended.
func watch(ctx context.Context, patience time.Duration, ask, force func()) (stop func()) {
	var mu sync.Mutex
	var hung *time.Timer
	over := false
	end := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		ask()
		hung = time.AfterFunc(patience, force)
	})
	return func() {
		end()
		mu.Lock()
		defer mu.Unlock()
		over = true
		if hung != nil {
			hung.Stop()
		}
	}
}

// Open reserves room.
func (e *Engine) Open(_ context.Context, session engine.SessionID, contextTokens uint32) error {
	_, err := e.quick("Open", wire.Call{Session: session, Context: contextTokens})
	return err
}

// Truncate makes a cache shorter.
func (e *Engine) Truncate(_ context.Context, session engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	reply, err := e.quick("Truncate", wire.Call{Session: session, Length: length})
	return reply.Cache, err
}

// Mark keeps a checkpoint.
func (e *Engine) Mark(_ context.Context, session engine.SessionID) (engine.CacheState, error) {
	reply, err := e.quick("Mark", wire.Call{Session: session})
	return reply.Cache, err
}

// Unmark drops a checkpoint.
func (e *Engine) Unmark(_ context.Context, session engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	reply, err := e.quick("Unmark", wire.Call{Session: session, Length: length})
	return reply.Cache, err
}

// Copy fills an empty cache.
func (e *Engine) Copy(_ context.Context, from, to engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	reply, err := e.quick("Copy", wire.Call{From: from, Session: to, Length: length})
	return reply.Cache, err
}

// Release frees a cache.
func (e *Engine) Release(_ context.Context, session engine.SessionID) error {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return nil
	}
	_, err := e.quick("Release", wire.Call{Session: session})
	return err
}

// Cancel tells the child, once for each step.
func (e *Engine) Cancel(session engine.SessionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cancelled, runs := e.running[session]; !runs || cancelled || e.closed {
		return
	}
	e.running[session] = true
	e.send("CancelStep", wire.Call{Session: session, Number: e.batch})
}

// Health asks the child. A shallow one is bounded, because it waits for nothing.
func (e *Engine) Health(ctx context.Context, deep bool) (engine.Health, error) {
	if err := e.refusal(); err != nil {
		return engine.Health{}, err
	}
	bound := probeTime
	if at, bounded := ctx.Deadline(); bounded {
		bound = time.Until(at)
	}
	if !deep {
		bound = min(bound, e.patience)
	}
	call := e.send("Health", wire.Call{Deep: deep, Bound: bound})
	timer := time.NewTimer(bound + glance)
	defer timer.Stop()
	select {
	case <-call.Done:
		reply, err := e.received(call)
		return reply.Health, err
	case <-ctx.Done():
	case <-timer.C:
	}
	return engine.Health{}, engine.Errorf(engine.DeadlineExceeded, "the probe of the engine did not end within %s", bound.Round(time.Millisecond))
}

// Metrics is what the child counts, or what it last counted where it does not say so at once.
func (e *Engine) Metrics() engine.Metrics {
	e.mu.Lock()
	ask := e.running != nil && !e.closed
	e.mu.Unlock()
	if ask {
		call := e.send("Metrics", wire.Call{})
		timer := time.NewTimer(glance)
		defer timer.Stop()
		select {
		case <-call.Done:
			_, _ = e.received(call) // what is lost has its last counts
		case <-timer.C:
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone() {
		e.forget()
	}
	return e.metrics
}

// Close closes the engine in the child, and ends the child.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		hung := time.AfterFunc(e.patience, e.process.kill)
		call := e.send("Close", wire.Call{})
		<-call.Done
		if _, err := e.received(call); err != nil && !e.gone() {
			e.closeErr = err
		}
		e.mu.Lock()
		e.closed = true
		e.forget()
		e.mu.Unlock()
		e.process.hangUp()
		e.stepping.Lock() // the batch that ran has its outcome, or the end of the socket
		defer e.stepping.Unlock()
		e.process.close()
		hung.Stop()
	})
	return e.closeErr
}

// forget is what an engine that is gone no longer has. The caller holds mu.
func (e *Engine) forget() { e.metrics.SessionsOpen, e.metrics.CacheReserved = 0, 0 }

// refusal is why nothing can be asked of the child, or nil.
func (e *Engine) refusal() error {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	switch {
	case closed:
		return engine.Errorf(engine.LifecycleViolation, "the engine is closed; make another")
	case e.gone():
		return e.process.why
	}
	return nil
}

func (e *Engine) gone() bool {
	select {
	case <-e.process.ended:
		return true
	default:
		return false
	}
}

// quick makes a call that computes nothing. Where it takes longer than patience, native code hangs.
func (e *Engine) quick(method string, c wire.Call) (wire.Reply, error) {
	return e.within(e.patience, method, c)
}

// within makes a call that, where it takes longer, is taken for one that hangs.
func (e *Engine) within(bound time.Duration, method string, c wire.Call) (wire.Reply, error) {
	if err := e.refusal(); err != nil {
		return wire.Reply{}, err
	}
	hung := time.AfterFunc(bound, e.process.kill)
	defer hung.Stop()
	return e.received(<-e.send(method, c).Done)
}

// send starts a call; its outcome is in Done.
func (e *Engine) send(method string, c wire.Call) *rpc.Call {
	return e.process.calls.Go(serviceName+"."+method, c, new(wire.Reply), make(chan *rpc.Call, 1))
}

// received takes what a call gave, and what it told of the engine beside.
func (e *Engine) received(call *rpc.Call) (wire.Reply, error) {
	if call.Error != nil {
		return wire.Reply{}, e.lost(call.Error)
	}
	reply := call.Reply.(*wire.Reply)
	e.learn(reply.Counts, reply.Failure)
	if reply.Capabilities != nil {
		e.mu.Lock()
		e.able, e.template = *reply.Capabilities, reply.Template
		e.mu.Unlock()
	}
	return *reply, reply.Failure.Err()
}

// learn notes what an outcome tells of the engine.
func (e *Engine) learn(c wire.Counts, f *wire.Failure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.Read > e.read { // replies may overtake each other
		e.read, e.metrics = c.Read, c.Metrics
	}
	if f != nil && f.Code == engine.EngineFault {
		e.able.Shard = nil
		e.forget()
	}
}

// lost is what a broken socket means.
func (e *Engine) lost(cause error) error {
	if err := e.refusal(); err != nil {
		return err
	}
	why := e.process.loss(cause)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forget()
	return why
}
