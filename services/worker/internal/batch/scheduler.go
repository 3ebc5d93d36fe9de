// Package batch owns the engine of a loaded shard: one goroutine makes every call that changes it, and packs what is ready
// from all sessions into native calls.
//
// A session has at most one step here at a time, so a queue in order of arrival is a round-robin. Calls are of one kind,
// decodes or prefill chunks, in turn as long as both wait: mixing them gains little and makes decodes wait for prefill.
// How many decodes go into one call is decided by how long calls of each size took here, and by the hops of the route: each
// shall have a group of sessions to work on. Opening, truncating and releasing go between native calls, before any step.
//
// The deterministic scheduler makes calls of one session each and measures nothing: what a call holds then depends on its
// session alone.
//
// What must stay out: what a step means to its session (package session), and what an engine is (package engine).
package batch

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// ErrClosed is what a Job ends with when the scheduler is gone. It is an ENGINE_FAULT to whoever reads it as an engine's
// error.
var ErrClosed = engine.Errorf(engine.EngineFault, "the engine was given up")

// Kind says which call a Job is.
type Kind uint8

// The kinds.
const (
	Open Kind = iota + 1
	Step
	Truncate
	Release
	Copy
)

// Job is one call for one session.
type Job struct {
	Kind    Kind
	Session engine.SessionID
	Context uint32      // Open: tokens to reserve
	Step    engine.Step // Step
	Hops    int         // Step: hops of the route, where this is the first of them; else 0
	Length  engine.Pos  // Truncate, Copy
	// Step: marks to drop, and whether to take one, before it. Where that fails the step does not run.
	Unmark []engine.Pos
	Mark   bool
	From   engine.SessionID // Copy
	// Done gets the outcome, once; nil: nobody cares. It runs on the scheduler's goroutine and must not wait.
	Done func(Outcome)
	// Alone says that no other session may be in the same native call.
	Alone bool
	// Lost is told, before anybody else, that the engine was lost in the call that held this job; nil: nobody cares.
	Lost func()
	// Retry is asked by Open after NO_CAPACITY: it may free a cache (by Release) and says whether it did.
	Retry func() bool

	stopped bool      // guarded by Scheduler.mu
	since   time.Time // when it was submitted; of decodes
}

// Outcome is how a Job ended.
type Outcome struct {
	Err    error             // nil, or why nothing was changed
	Cache  engine.CacheState // Truncate, Copy
	Result engine.StepResult // Step
	Marked bool              // Step: its marks were dropped and taken
}

// Observer hears what happens, for metrics. Its methods return at once.
type Observer interface {
	Batch(sessions, rows int, took time.Duration)
	Queued(steps int)
}

// Options are how batches are made.
type Options struct {
	Tokens        int           // most rows of one native call, ≥ 1
	Time          time.Duration // that a native call should take at most, so that the next is not far; 0: DefaultTime
	Deterministic bool          // one session per native call
	Limit         int           // most jobs that wait, ≥ 1; above it they end with NO_CAPACITY
	Observer      Observer
	// Lost is told, once, that the engine answered ENGINE_FAULT.
	Lost func(error)
}

// DefaultTime is what Options.Time is where nothing is said: a cancel or a new session waits for it at most.
const DefaultTime = 250 * time.Millisecond

// Totals counts native calls since the scheduler began.
type Totals struct{ Batches, Rows, SharedRows uint64 }

// Scheduler runs jobs on one engine. All methods may be called from any goroutine.
type Scheduler struct {
	engine  engine.ShardEngine
	options Options
	done    chan struct{}

	mu       sync.Mutex
	wake     chan struct{} // there may be work
	control  []*Job
	decodes  []*Job
	prefills []*Job
	prefill  bool // the last call was one of prefill chunks
	running  []*Job
	cancel   context.CancelFunc // ends the running native call
	closed   bool
	lost     bool
	totals   Totals
	table    *table
	turns    map[engine.SessionID]turn // sessions that send decodes
}

// New starts a scheduler that owns e until Close.
func New(e engine.ShardEngine, options Options) *Scheduler {
	options.Time = cmp.Or(options.Time, DefaultTime)
	s := &Scheduler{
		engine: e, options: options, done: make(chan struct{}), wake: make(chan struct{}, 1),
		table: newTable(), turns: map[engine.SessionID]turn{},
	}
	go s.run()
	return s
}

// Submit puts a job in the queue. It does not wait. After an error Done is not called: ErrClosed, or NO_CAPACITY when too
// many wait.
func (s *Scheduler) Submit(j *Job) error {
	s.mu.Lock()
	err := s.queue(j)
	s.mu.Unlock()
	if err == nil {
		s.ring()
	}
	return err
}

func (s *Scheduler) ring() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// queue is Submit under the lock.
func (s *Scheduler) queue(j *Job) error {
	switch {
	case s.closed || s.lost:
		return ErrClosed
	case j.Kind != Release && len(s.control)+len(s.decodes)+len(s.prefills) >= s.options.Limit:
		return engine.Errorf(engine.NoCapacity, "%d calls wait for the engine already", s.options.Limit)
	case j.Kind != Step:
		s.control = append(s.control, j)
	case len(j.Step.Tokens) <= decodeRows:
		s.decodes = append(s.decodes, j)
		s.took(j, time.Now())
	default:
		s.prefills = append(s.prefills, j)
	}
	if j.Kind == Step && s.options.Observer != nil {
		s.options.Observer.Queued(len(s.decodes) + len(s.prefills))
	}
	return nil
}

// Cancel ends the step of a session early: one that waits ends before the next native call, one that runs as soon as the
// engine lets go of it. Its outcome is CANCELLED, or what it was if that comes too late. Without a step nothing happens.
func (s *Scheduler) Cancel(session engine.SessionID) {
	s.mu.Lock()
	all := len(s.running) > 0
	found := false
	for _, j := range s.running {
		if j.Session == session {
			j.stopped, found = true, true
		}
		all = all && j.stopped
	}
	for _, q := range [][]*Job{s.decodes, s.prefills} {
		for _, j := range q {
			j.stopped = j.stopped || j.Session == session
		}
	}
	cancel := s.cancel
	s.mu.Unlock()
	switch {
	case found && all:
		cancel() // also when native code has not begun yet
	case found:
		s.engine.Cancel(session)
	default:
		s.ring()
	}
}

// Totals returns what was counted.
func (s *Scheduler) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals
}

// Close ends the running call, ends every waiting job with ErrClosed but lets caches be released, and returns once the
// engine is at rest, or with the error of ctx. The engine itself is the caller's to close.
func (s *Scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	s.ring()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run is the engine's goroutine.
func (s *Scheduler) run() {
	runtime.LockOSThread() // an engine's compute threads belong to the thread that calls it; never unlocked, so that they end with it
	defer close(s.done)
	for {
		control, steps, until, over := s.next()
		switch {
		case len(control) > 0:
			for _, j := range control {
				s.call(j)
			}
		case len(steps) > 0:
			s.step(steps)
		case over:
			s.abandon()
			return
		default:
			s.rest(until)
		}
	}
}

// rest waits until there may be work: something came, or it is until, if that is not zero.
func (s *Scheduler) rest(until time.Time) {
	if until.IsZero() {
		<-s.wake
		return
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	}
}

// next takes what is to be done now: all control jobs, or else one batch. Where decodes are held back and nothing else waits,
// it says until when.
func (s *Scheduler) next() (control, steps []*Job, until time.Time, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	control, s.control = s.control, nil
	if len(control) > 0 || s.closed {
		return control, nil, time.Time{}, s.closed
	}
	if until = s.hold(time.Now()); !until.IsZero() && len(s.prefills) == 0 {
		return nil, nil, until, false
	}
	queue, other := &s.decodes, &s.prefills
	if !s.prefill && len(*other) > 0 || len(*queue) == 0 || !until.IsZero() {
		queue = other
	}
	s.prefill = queue == &s.prefills
	return nil, s.pack(queue, s.prefill), time.Time{}, false
}

// call makes one call that is no step.
func (s *Scheduler) call(j *Job) {
	ctx := context.Background() // bounded by the engine: these calls compute nothing
	var o Outcome
	switch j.Kind {
	case Open:
		o.Err = s.open(ctx, j)
	case Truncate:
		o.Cache, o.Err = s.engine.Truncate(ctx, j.Session, j.Length)
	case Release:
		o.Err = s.engine.Release(ctx, j.Session)
		s.forget(j.Session)
	case Copy:
		o.Cache, o.Err = s.engine.Copy(ctx, j.From, j.Session, j.Length)
	}
	s.watch(o.Err, j)
	if j.Done != nil {
		j.Done(o)
	}
}

// open reserves room; where there is none, idle caches are given up one after another.
func (s *Scheduler) open(ctx context.Context, j *Job) error {
	for {
		err := s.engine.Open(ctx, j.Session, j.Context)
		if !errors.Is(err, engine.NoCapacity) || j.Retry == nil || !j.Retry() {
			return err
		}
		for _, freed := range s.releases() {
			s.call(freed)
		}
	}
}

// releases takes the waiting releases out of the queue.
func (s *Scheduler) releases() []*Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out, kept []*Job
	for _, j := range s.control {
		if j.Kind == Release {
			out = append(out, j)
		} else {
			kept = append(kept, j)
		}
	}
	s.control = kept
	return out
}

// step makes one native call and hands out its results.
func (s *Scheduler) step(jobs []*Job) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	jobs = s.marked(s.begin(jobs, cancel))
	if len(jobs) == 0 {
		s.idle()
		return
	}
	s.count(jobs)
	batch := make([]engine.Step, len(jobs))
	rows := 0
	for i, j := range jobs {
		batch[i] = j.Step
		rows += len(j.Step.Tokens)
	}
	began := time.Now()
	results, err := s.engine.Step(ctx, batch)
	took := time.Since(began)
	s.end(rows, took)
	if s.options.Observer != nil {
		s.options.Observer.Batch(len(jobs), rows, took)
	}
	for _, r := range results {
		err = cmp.Or(err, lossIn(r.Err))
	}
	s.watch(err, jobs...)
	for i, j := range jobs {
		o := Outcome{Err: err, Marked: true}
		if err == nil {
			o.Result = results[i]
		}
		j.Done(o)
	}
}

// begin marks jobs as running and ends those that were stopped while they waited.
func (s *Scheduler) begin(jobs []*Job, cancel context.CancelFunc) []*Job {
	s.mu.Lock()
	var stopped []*Job
	live := jobs[:0]
	for _, j := range jobs {
		if j.stopped {
			stopped = append(stopped, j)
		} else {
			live = append(live, j)
		}
	}
	s.running, s.cancel = live, cancel
	if s.options.Observer != nil {
		s.options.Observer.Queued(len(s.decodes) + len(s.prefills))
	}
	s.mu.Unlock()
	for _, j := range stopped {
		j.Done(Outcome{Err: engine.Errorf(engine.Cancelled, "it was cancelled before it ran")})
	}
	return live
}

// marked drops and takes the marks of steps, and ends those for which that fails.
func (s *Scheduler) marked(jobs []*Job) []*Job {
	live := jobs[:0:0]
	for _, j := range jobs {
		state, err := s.mark(j)
		if err == nil {
			live = append(live, j)
			continue
		}
		s.watch(err)
		j.Done(Outcome{Err: err, Result: engine.StepResult{Cache: state}})
	}
	return live
}

func (s *Scheduler) mark(j *Job) (state engine.CacheState, err error) {
	ctx := context.Background() // bounded by the engine: these calls compute nothing
	for _, at := range j.Unmark {
		if state, err = s.engine.Unmark(ctx, j.Session, at); err != nil {
			return state, err
		}
	}
	if j.Mark {
		state, err = s.engine.Mark(ctx, j.Session)
	}
	return state, err
}

// idle says that no call came of what was begun.
func (s *Scheduler) idle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.cancel = nil, nil
}

// count adds a call to the totals as it begins, so that who looks at them sees that it runs.
func (s *Scheduler) count(jobs []*Job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := uint64(0)
	for _, j := range jobs {
		rows += uint64(len(j.Step.Tokens))
	}
	s.totals.Batches++
	s.totals.Rows += rows
	if len(jobs) > 1 {
		s.totals.SharedRows += rows
	}
}

// end learns from the call that ran unless somebody cut it short.
func (s *Scheduler) end(rows int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.running, func(j *Job) bool { return j.stopped }) {
		s.table.learn(s.prefill, rows, took)
	}
	s.running, s.cancel = nil, nil
}

// lossIn is err if it says that the engine is lost, else nil.
func lossIn(err error) error {
	if err == nil || engine.CodeOf(err) != engine.EngineFault {
		return nil
	}
	return err
}

// watch looks for the loss of the engine in a call for jobs.
func (s *Scheduler) watch(err error, jobs ...*Job) {
	if lossIn(err) == nil {
		return
	}
	for _, j := range jobs {
		if j.Lost != nil {
			j.Lost()
		}
	}
	s.mu.Lock()
	first := !s.lost
	s.lost = true
	s.mu.Unlock()
	if first && s.options.Lost != nil {
		s.options.Lost(err)
	}
}

// abandon ends what still waits when the scheduler is closed.
func (s *Scheduler) abandon() {
	s.mu.Lock()
	left := append(append([]*Job(nil), s.decodes...), s.prefills...)
	s.decodes, s.prefills = nil, nil
	s.mu.Unlock()
	for _, j := range left {
		j.Done(Outcome{Err: ErrClosed})
	}
}
