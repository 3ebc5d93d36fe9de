//go:build unix

package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child/internal/wire"
)

// Numbers of the files that a child inherits.
const (
	fdSteps = 3 + iota
	fdCalls
	fdRequests
	fdReplies
)

// Serve is the whole life of a child: it makes an engine and does what the parent says until the parent is gone or has
// closed the engine. A program calls it instead of anything else when New started it; it must run on the main goroutine's
// thread or another that nothing else uses, and nothing may have been opened before.
func Serve(ctx context.Context, factory engine.Factory) error {
	// A terminal tells the whole group; the parent decides what is done about it.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	for fd := fdSteps; fd <= fdReplies; fd++ {
		unix.CloseOnExec(fd)
	}
	calls := os.NewFile(fdCalls, "calls")
	conn, err := net.FileConn(calls)
	calls.Close()
	if err != nil {
		return fmt.Errorf("this is not the engine's process of a worker: %w", err)
	}
	e, text, err := factory()
	if err != nil {
		return err
	}
	s := newServed(ctx, e, text)
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, s); err != nil {
		return err
	}
	go func() {
		server.ServeConn(conn)
		os.Exit(0) // nobody is left to compute for, and native code may never come to rest
	}()
	return s.steps(doorbell{fdSteps}, &region{file: os.NewFile(fdRequests, "requests")}, &region{file: os.NewFile(fdReplies, "replies")})
}

const serviceName = "Engine"

// served is the engine in the child, and what calls need to know of the batch that runs.
type served struct {
	life   context.Context // of the process
	engine engine.ShardEngine
	text   engine.TextEngine

	mu     sync.Mutex
	begun  sync.Cond // a batch or a load has
	batch  uint64    // number of the last one that has begun
	cancel context.CancelFunc
	loads  uint64 // that have begun
	load   *loading
	reads  uint64 // readings of the counters
}

func newServed(ctx context.Context, e engine.ShardEngine, text engine.TextEngine) *served {
	s := &served{life: ctx, engine: e, text: text}
	s.begun.L = &s.mu
	return s
}

// steps runs batches until the parent hangs up. It keeps its thread: an engine's compute threads belong to the one that
// calls it.
func (s *served) steps(bell doorbell, requests, replies *region) error {
	runtime.LockOSThread()
	hears, speaks := wire.NewHearing(), wire.NewSpeech()
	for {
		told, err := bell.wait()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		batch, err := takeBatch(requests, hears, told)
		if err != nil {
			return err
		}
		outcome, rows := s.step(told.batch, batch)
		answer, err := giveOutcome(replies, speaks, outcome, rows)
		if err != nil {
			return err
		}
		answer.batch = told.batch
		if err := bell.ring(answer); err != nil {
			return err
		}
	}
}

// step computes one batch. The rows that it returns are the engine's results'.
func (s *served) step(number uint64, batch wire.Batch) (wire.Outcome, [][]byte) {
	ctx, cancel := context.WithCancel(s.life)
	defer cancel()
	if batch.Ended {
		cancel()
	}
	s.mu.Lock()
	s.batch, s.cancel = number, cancel
	s.begun.Broadcast()
	s.mu.Unlock()
	results, err := s.engine.Step(ctx, batch.Steps)
	s.mu.Lock()
	s.cancel = nil
	s.mu.Unlock()
	outcome := wire.Outcome{Failure: wire.FailureOf(err), Counts: s.count()}
	var rows [][]byte
	for _, r := range results {
		outcome.Results = append(outcome.Results, wire.Result{
			Failure: wire.FailureOf(r.Err), Cache: r.Cache, Boundary: wire.ShapeOf(r.Boundary), Logits: wire.ShapeOf(r.Logits),
			Sample: r.Sample, Compute: r.Compute,
		})
		rows = append(rows, r.Boundary.Data, r.Logits.Data)
	}
	return outcome, rows
}

// count reads the counters.
func (s *served) count() wire.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return wire.Counts{Metrics: s.engine.Metrics(), Read: s.reads}
}

func takeBatch(r *region, hears *wire.Hearing, told ring) (batch wire.Batch, err error) {
	header, rows, err := read(r, told)
	if err != nil {
		return batch, err
	}
	if err := hears.Decode(header, &batch); err != nil {
		return batch, err
	}
	for i, n := range batch.Rows {
		// The engine keeps no slice that it is given, so that it may read what the parent wrote in place.
		if batch.Steps[i].Boundary.Data, err = rows.next(n); err != nil {
			return batch, err
		}
	}
	return batch, nil
}

func giveOutcome(r *region, speaks *wire.Speech, outcome wire.Outcome, rows [][]byte) (ring, error) {
	header, err := speaks.Encode(outcome)
	if err != nil {
		return ring{}, err
	}
	return write(r, header, rows)
}
