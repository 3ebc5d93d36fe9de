//go:build unix

package child

import (
	"context"
	"runtime"
	"sync"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child/internal/wire"
)

// The methods below are the calls of net/rpc: each is the engine's method of its name, whatever happens to it stands in the
// reply, and the error of net/rpc is left to the transport.

// Describe says what the engine is.
func (s *served) Describe(_ wire.Call, r *wire.Reply) error {
	s.describe(r)
	return s.answer(r, nil)
}

func (s *served) describe(r *wire.Reply) {
	able := s.engine.Capabilities()
	r.Capabilities = &able
	r.Template = able.Shard != nil && s.text.HasChatTemplate()
}

// Load is bounded by CancelLoad; how far it is, Progress tells meanwhile.
func (s *served) Load(c wire.Call, r *wire.Reply) error {
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	if c.Ended {
		cancel()
	}
	l := newLoading(cancel)
	s.mu.Lock()
	s.load = l
	s.loads++
	s.begun.Broadcast()
	s.mu.Unlock()
	var err error
	apart(func() { r.Info, err = s.engine.Load(ctx, c.Load, l.report) })
	l.end()
	s.describe(r)
	return s.answer(r, err)
}

// CancelLoad ends a load.
func (s *served) CancelLoad(c wire.Call, _ *wire.Reply) error {
	if l := s.loading(c.Number); l != nil {
		l.cancel()
	}
	return nil
}

// Progress waits for the next report of a load. Asking for it says that the parent has dealt with those before.
func (s *served) Progress(c wire.Call, r *wire.Reply) error {
	l := s.loading(c.Number)
	if l == nil {
		return nil
	}
	if c.Ended {
		l.cancel()
	}
	r.Progress = l.after(c.Seen)
	return nil
}

// loading is a load that the parent has asked for, once it has begun; nil when a later one has. There is one at a time.
func (s *served) loading(number uint64) *loading {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.loads < number {
		s.begun.Wait()
	}
	if s.loads > number {
		return nil
	}
	return s.load
}

// Open reserves room for a session.
func (s *served) Open(c wire.Call, r *wire.Reply) error {
	return s.answer(r, s.engine.Open(s.life, c.Session, c.Context))
}

// Truncate makes a cache shorter.
func (s *served) Truncate(c wire.Call, r *wire.Reply) (err error) {
	r.Cache, err = s.engine.Truncate(s.life, c.Session, c.Length)
	return s.answer(r, err)
}

// Mark keeps a checkpoint.
func (s *served) Mark(c wire.Call, r *wire.Reply) (err error) {
	r.Cache, err = s.engine.Mark(s.life, c.Session)
	return s.answer(r, err)
}

// Unmark drops a checkpoint.
func (s *served) Unmark(c wire.Call, r *wire.Reply) (err error) {
	r.Cache, err = s.engine.Unmark(s.life, c.Session, c.Length)
	return s.answer(r, err)
}

// Copy fills an empty cache.
func (s *served) Copy(c wire.Call, r *wire.Reply) (err error) {
	r.Cache, err = s.engine.Copy(s.life, c.From, c.Session, c.Length)
	return s.answer(r, err)
}

// Release frees a session's cache.
func (s *served) Release(c wire.Call, r *wire.Reply) error {
	return s.answer(r, s.engine.Release(s.life, c.Session))
}

// CancelStep cancels a session's step of one batch. The batch has been rung for, so it has begun or soon will.
func (s *served) CancelStep(c wire.Call, _ *wire.Reply) error {
	s.during(c.Number, func() { s.engine.Cancel(c.Session) })
	return nil
}

// CancelBatch ends the context of one batch.
func (s *served) CancelBatch(c wire.Call, _ *wire.Reply) error {
	s.during(c.Number, func() { s.cancel() })
	return nil
}

// during waits until a batch has begun and calls f if it still runs; the next one begins behind f, which returns at once.
func (s *served) during(batch uint64, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.batch < batch {
		s.begun.Wait()
	}
	if s.batch == batch && s.cancel != nil {
		f()
	}
}

// Health probes.
func (s *served) Health(c wire.Call, r *wire.Reply) (err error) {
	ctx, cancel := context.WithTimeout(s.life, c.Bound)
	defer cancel()
	if c.Deep {
		apart(func() { r.Health, err = s.engine.Health(ctx, true) })
	} else {
		r.Health, err = s.engine.Health(ctx, false)
	}
	s.describe(r)
	return s.answer(r, err)
}

// Metrics counts.
func (s *served) Metrics(_ wire.Call, r *wire.Reply) error { return s.answer(r, nil) }

// Close frees everything.
func (s *served) Close(_ wire.Call, r *wire.Reply) error { return s.answer(r, s.engine.Close()) }

// Tokenize makes tokens of a text.
func (s *served) Tokenize(c wire.Call, r *wire.Reply) (err error) {
	r.Tokens, err = s.text.Tokenize(s.life, c.Text, c.Add, c.Special)
	return s.answer(r, err)
}

// Detokenize makes bytes of tokens.
func (s *served) Detokenize(c wire.Call, r *wire.Reply) (err error) {
	r.Bytes, err = s.text.Detokenize(s.life, c.Tokens, c.Special)
	return s.answer(r, err)
}

// RenderChat makes a prompt of a conversation.
func (s *served) RenderChat(c wire.Call, r *wire.Reply) (err error) {
	r.Prompt, err = s.text.RenderChat(s.life, c.Chat)
	return s.answer(r, err)
}

// ParseChat makes a message of an answer.
func (s *served) ParseChat(c wire.Call, r *wire.Reply) (err error) {
	r.Message, err = s.text.ParseChat(s.life, c.Parser, c.Text, c.Partial)
	return s.answer(r, err)
}

// CheckGrammar compiles a grammar and forgets it.
func (s *served) CheckGrammar(c wire.Call, r *wire.Reply) error {
	return s.answer(r, s.text.CheckGrammar(s.life, c.Grammar))
}

func (s *served) answer(r *wire.Reply, err error) error {
	r.Failure, r.Counts = wire.FailureOf(err), s.count()
	return nil
}

// apart runs f on a thread that ends with it, and with the compute threads that f may have made there.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// loading hands the reports of a load to the parent, one at a time: the engine goes on once a report has been dealt with,
// as if the parent's function had been called here.
type loading struct {
	cancel context.CancelFunc

	mu      sync.Mutex
	changed sync.Cond
	made    int // reports
	dealt   int // of them, by the parent
	last    engine.LoadProgress
	over    bool
}

func newLoading(cancel context.CancelFunc) *loading {
	l := &loading{cancel: cancel}
	l.changed.L = &l.mu
	return l
}

// report is what the engine calls. A parent that is gone takes this process with it, so that the wait is bounded.
func (l *loading) report(p engine.LoadProgress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	l.last = p
	l.changed.Broadcast()
	for l.dealt < l.made {
		l.changed.Wait()
	}
}

func (l *loading) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.changed.Broadcast()
}

// after is the report that follows those seen, or nil when the load is over.
func (l *loading) after(seen int) *engine.LoadProgress {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dealt = seen
	l.changed.Broadcast()
	for l.made == seen && !l.over {
		l.changed.Wait()
	}
	if l.made == seen {
		return nil
	}
	next := l.last
	return &next
}
