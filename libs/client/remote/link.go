package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// link is one session: a stream to the worker, on which one step at a time is unanswered.
type link struct {
	e       *Engine
	id      engine.SessionID
	context uint32
	stream  workerpb.WorkerService_SessionClient
	cancel  context.CancelFunc
	opened  *workerpb.Opened // set before anybody else knows the link
	ended   chan struct{}    // closed once nothing more comes

	send sync.Mutex // one message at a time

	mu      sync.Mutex
	wake    chan struct{} // closed and replaced when credit comes or the stream ends
	steps   uint64        // credit
	bytes   uint64
	last    uint64 // greatest step id given out
	applied uint64 // last step that the worker holds
	cache   engine.CacheState
	running *exchange
	err     *fault.Error // why the stream ended
}

// exchange is one step and what comes back for it.
type exchange struct {
	id     uint64
	result *workerpb.StepResult
	failed *workerpb.StepFailed
	sample *workerpb.Token
	frames []byte
	most   uint64 // bytes that may come
	asked  bool   // to stop
	done   chan struct{}
}

// dial opens a session on the worker and waits for its answer.
func (e *Engine) dial(ctx context.Context, id engine.SessionID, contextTokens uint32, info engine.ShardInfo) (*link, *fault.Error) {
	live, cancel := context.WithCancel(e.life)
	stream, err := e.client.Session(live)
	if err != nil {
		cancel()
		return nil, e.client.Fault(err)
	}
	l := &link{
		e: e, id: id, context: contextTokens, stream: stream, cancel: cancel, ended: make(chan struct{}), wake: make(chan struct{}),
		cache: engine.CacheState{Reach: []engine.Span{{}}},
	}
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		cancel()
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "no random numbers: %w", err)
	}
	open := &workerpb.Open{
		SessionId: id[:], SessionKey: key, Attempt: e.nextAttempt(),
		Revisions:     &workerpb.RevisionRange{Min: tables.MinRevision, Max: tables.MaxRevision},
		Expect:        &workerpb.Expectation{Fingerprint: e.fingerprint[:], Layers: &workerpb.LayerRange{First: proto.Uint32(info.Layers.First), End: info.Layers.End}},
		ContextTokens: contextTokens, Egress: workerpb.Egress_EGRESS_RETURN,
		Receive: &workerpb.ReceiveWindow{Tokens: proto.Uint32(1), Bytes: proto.Uint64(e.greatestAnswer(info))},
		Linger:  durationpb.New(0), Budget: durationpb.New(e.options.OpenBudget),
	}
	first := make(chan *workerpb.Opened, 1)
	e.group.Go(func() { l.receive(first) })
	l.put(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: open}})
	bounded, stop := context.WithTimeout(ctx, e.options.OpenBudget+time.Second)
	defer stop()
	select {
	case l.opened = <-first:
		return l, nil
	case <-l.ended:
		return nil, l.reason()
	case <-bounded.Done():
		l.hangUp()
		return nil, fault.FromContext(bounded, "opened")
	}
}

func (e *Engine) nextAttempt() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempt++
	return e.attempt
}

// greatestAnswer is the bytes that one step may bring back.
func (e *Engine) greatestAnswer(info engine.ShardInfo) uint64 {
	width := info.Vocab
	if info.BoundaryOut != nil {
		width = info.BoundaryOut.Width
	}
	return 4 * uint64(e.limits.GetStepTokens()) * uint64(width)
}

// put sends a message; when the stream is over the receiver learns why.
func (l *link) put(m *workerpb.SessionRequest) {
	l.send.Lock()
	defer l.send.Unlock()
	_ = l.stream.Send(m)
}

// receive takes every message until the stream ends.
func (l *link) receive(first chan<- *workerpb.Opened) {
	defer close(l.ended)
	defer l.cancel()
	for {
		m, err := l.stream.Recv()
		if err != nil {
			l.over(err)
			return
		}
		if o := m.GetOpened(); o != nil {
			l.mu.Lock()
			l.credit(o.GetWindow())
			l.mu.Unlock()
			first <- o
			continue
		}
		if f := l.take(m); f != nil {
			l.over(f)
			return
		}
	}
}

// over notes why the stream ended and answers the step that waits.
func (l *link) over(err error) {
	l.mu.Lock()
	if l.err == nil {
		if errors.Is(err, io.EOF) {
			l.err = fault.New(workerpb.ErrorCode_ERROR_CODE_CANCELLED, "the session is closed")
		} else {
			l.err = l.e.client.Fault(err)
		}
	}
	why := l.err
	if l.running != nil {
		close(l.running.done)
		l.running = nil
	}
	l.changed()
	l.mu.Unlock()
	l.e.sessionEnded(l, why)
}

// changed wakes whoever waits. The caller holds mu.
func (l *link) changed() {
	close(l.wake)
	l.wake = make(chan struct{})
}

// credit adds to what may be sent. The caller holds mu.
func (l *link) credit(c *workerpb.Credit) {
	l.steps, l.bytes = l.steps+uint64(c.GetSteps()), l.bytes+c.GetBytes()
	l.changed()
}

// take takes one message. An error is a breach of the contract by the worker.
func (l *link) take(m *workerpb.SessionResponse) *fault.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.running
	mine := func(id uint64) bool { return x != nil && x.id == id }
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Credit:
		l.credit(kind.Credit)
	case *workerpb.SessionResponse_Token:
		if !mine(kind.Token.GetStepId()) || x.sample != nil {
			return breach("it sent a token that nobody waits for")
		}
		x.sample = kind.Token
	case *workerpb.SessionResponse_Frame:
		if !mine(kind.Frame.GetStepId()) || uint64(len(x.frames)+len(kind.Frame.GetData())) > x.most {
			return breach("it sent output that nobody waits for")
		}
		x.frames = append(x.frames, kind.Frame.GetData()...)
	case *workerpb.SessionResponse_StepResult:
		if !mine(kind.StepResult.GetStepId()) {
			return breach("it answered a step that waits for no answer")
		}
		x.result, l.applied, l.cache = kind.StepResult, x.id, stateOf(kind.StepResult.GetCache())
		l.answered(x)
	case *workerpb.SessionResponse_StepFailed:
		if !mine(kind.StepFailed.GetStepId()) || kind.StepFailed.GetError() == nil {
			return breach("it failed a step that waits for no answer")
		}
		x.failed, l.cache = kind.StepFailed, stateOf(kind.StepFailed.GetCache())
		l.answered(x)
	case *workerpb.SessionResponse_Closed:
		if f := fault.FromProto(kind.Closed.GetError()); f != nil {
			l.err = f
		}
	}
	return nil // draining, and kinds of later revisions
}

func breach(what string) *fault.Error {
	return fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "%s", what)
}

// answered ends an exchange. The caller holds mu.
func (l *link) answered(x *exchange) {
	l.running = nil
	close(x.done)
}

// reason is why the stream ended.
func (l *link) reason() *fault.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// state is the cache as the worker said last.
func (l *link) state() engine.CacheState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return stateCopy(l.cache)
}

// begin sends a step once there is credit for it. fill sets its kind; payload is its boundary's bytes.
func (l *link) begin(ctx context.Context, m *workerpb.Step, payload []byte, most uint64) (*exchange, *fault.Error) {
	timer := time.NewTimer(l.e.options.RestBudget)
	defer timer.Stop()
	for {
		l.mu.Lock()
		switch {
		case l.err != nil:
			defer l.mu.Unlock()
			return nil, l.err
		case l.steps > 0 && l.bytes >= uint64(len(payload)):
			l.steps, l.bytes = l.steps-1, l.bytes-uint64(len(payload))
			l.last++
			x := &exchange{id: l.last, most: most, done: make(chan struct{})}
			m.StepId, m.After, m.Budget = x.id, proto.Uint64(l.applied), durationpb.New(l.e.options.StepBudget)
			l.running = x
			l.mu.Unlock()
			l.transmit(m, payload)
			return x, nil
		}
		wake := l.wake
		l.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, fault.FromContext(ctx, "credit for a step")
		case <-timer.C:
			return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED, "no credit for a step came")
		}
	}
}

// transmit sends a step and, where its boundary is larger than a frame, the frames behind it.
func (l *link) transmit(m *workerpb.Step, payload []byte) {
	frame := int(l.opened.GetFrameBytes())
	framed := len(payload) > frame
	if m.Boundary != nil && !framed {
		m.Boundary.Data = payload
	}
	l.put(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: m}})
	for index := uint32(0); framed && len(payload) > 0; index++ {
		n := min(frame, len(payload))
		l.put(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: m.GetStepId(), Index: proto.Uint32(index), Data: payload[:n]}}})
		payload = payload[n:]
	}
}

// stop asks once for the end of the step that runs, if one does.
func (l *link) stop() {
	l.mu.Lock()
	x := l.running
	ask := x != nil && !x.asked
	if ask {
		x.asked = true
	}
	l.mu.Unlock()
	if ask {
		l.put(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{CancelStep: &workerpb.CancelStep{StepId: x.id, Through: x.id, Undo: true}}})
	}
}

// wait waits for the answer to a step, which stop hastens when ctx ends, and gives the room for the answer back.
func (l *link) wait(ctx context.Context, x *exchange) *fault.Error {
	limit := time.NewTimer(l.e.options.StepBudget + l.e.options.RestBudget)
	defer limit.Stop()
	over := ctx.Done()
	for {
		select {
		case <-x.done:
			switch {
			case x.result != nil:
				l.giveBack(x)
				return nil
			case x.failed != nil:
				l.giveBack(x)
				return fault.FromProto(x.failed.GetError())
			}
			return l.reason()
		case <-over:
			over = nil
			l.stop()
			limit.Reset(l.e.options.RestBudget)
		case <-limit.C:
			l.hangUp()
			return fault.New(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST, "the worker at %s does not answer", l.e.client.Address())
		}
	}
}

// giveBack gives back the room that an answer took.
func (l *link) giveBack(x *exchange) {
	credit := &workerpb.ReceiveCredit{Tokens: proto.Uint32(0), Bytes: proto.Uint64(uint64(len(x.frames)))}
	if x.sample != nil {
		credit.Tokens = proto.Uint32(1)
	}
	for _, b := range []*workerpb.Boundary{x.result.GetOutput().GetLogits(), x.result.GetOutput().GetBoundary()} {
		credit.Bytes = proto.Uint64(credit.GetBytes() + uint64(len(b.GetData())))
	}
	if credit.GetTokens() > 0 || credit.GetBytes() > 0 {
		l.put(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: credit}})
	}
}

// close ends the session on the worker and waits until it has, or ctx ends.
func (l *link) close(ctx context.Context) {
	l.put(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
	select {
	case <-l.ended:
	case <-ctx.Done():
	}
	l.hangUp()
}

// hangUp ends the stream and waits for the receiver.
func (l *link) hangUp() {
	l.cancel()
	<-l.ended
}
