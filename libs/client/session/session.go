// Package session is the driver's half of the contract: one sequence of tokens over a route, its caches on every hop, and
// the fence that keeps them prefixes of what the driver sent.
//
// A Session is one attempt. Prefill, Generate, Decode and Truncate are called from one goroutine at a time, and a Run is
// taken to its end before the next of them; Run.Stop, Close, Abandon and the accessors may be called from any. Every wait is
// bounded: by the context, by the step's budget and by what the hops may take to answer after it.
//
// What must stay out: text, sampling defaults, retries and the choice of workers. A driver that wants to go on after a loss
// calls Resume.
package session

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/cachehash"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
)

// Options are what a session asks for.
type Options struct {
	ContextTokens uint32        // room to reserve on every hop; 0: the route's context limit
	ChunkTokens   uint32        // tokens of a prefill step: the same for every route, so that its bits do not depend on it; 0: what the route does best with
	Needs         []string      // features that must be ON at every hop
	OpenBudget    time.Duration // for the opening
	StepBudget    time.Duration // for a prefill chunk, a decode or a truncate
	RunBudget     time.Duration // for a whole Generate
	TokenBudget   time.Duration // for the gap between two tokens
	Linger        time.Duration // how long the caches survive the stream
	ReceiveTokens uint32        // tokens that may wait here unread, ≥ 1
	ReceiveBytes  uint64        // bytes of logits that may wait here unread
	// Prompt is what the session is going to begin with: where the hops kept it, or its first Offers tokens, for the same caller,
	// they begin with a copy. Tokens says with what; the caller prefills the rest.
	Prompt []uint32
	Offers []uint32 // lengths within Prompt, at most 15, beside the whole
}

// Default waits patiently and keeps nothing behind.
func Default() Options {
	return Options{
		ChunkTokens: 64, OpenBudget: 10 * time.Second, StepBudget: 2 * time.Minute, RunBudget: time.Hour,
		TokenBudget: 30 * time.Second, ReceiveTokens: 256, ReceiveBytes: 16 << 20,
	}
}

// slack is how much longer than a budget the answer may take for each hop: the hop that is late is named by the hop before
// it, which waits as long.
const slack = 200 * time.Millisecond

// closeWait bounds how long Close waits for Closed, cancelWait how long cancelled steps may take to be undone.
const (
	closeWait  = 2 * time.Second
	cancelWait = 5 * time.Second
)

// Session is one attempt at one sequence.
type Session struct {
	route   *route.Route
	options Options
	id      [16]byte
	key     [32]byte
	attempt uint64
	opened  *workerpb.Opened

	stream workerpb.WorkerService_SessionClient
	cancel context.CancelCauseFunc // ends the stream
	out    chan *workerpb.SessionRequest
	first  chan *workerpb.Opened // the first answer
	ended  chan struct{}         // closed once nothing more will come
	group  sync.WaitGroup        // sender and receiver

	mu       sync.Mutex
	wake     chan struct{}    // closed and replaced at each change of what is below
	tokens   []uint32         // that all hops hold
	chain    *cachehash.Chain // their hashes
	doubtful []uint32         // tokens of steps that had no answer when the session ended
	steps    map[uint64]*step // without an answer yet
	credit   uint64           // steps that may be sent
	last     uint64           // greatest id given out
	applied  uint64           // last step that all hops hold
	err      *fault.Error     // why the session is over, or nil
	closed   *workerpb.Closed
	draining *workerpb.Draining
	// room for responses that is to be given back and was not yet
	owedTokens uint32
	owedBytes  uint64
}

// Open opens a session on every hop of a route.
//
// Errors: all of a hop's refusals; DOWNSTREAM_UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED. Nothing is left behind.
func Open(ctx context.Context, r *route.Route, o Options) (*Session, error) {
	s := newSession(r, o)
	if _, err := rand.Read(s.id[:]); err != nil {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "no random numbers: %w", err)
	}
	if _, err := rand.Read(s.key[:]); err != nil {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "no random numbers: %w", err)
	}
	s.attempt = 1
	s.append(o.Prompt...)
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Resume opens the same sequence again, over this or another route of the same model. What the hops still hold of it is
// found: Tokens says what; the caller prefills the rest. The old attempt is over, and told so.
//
// Errors: as Open; CACHE_MISMATCH when the hops hold tokens that never arrived here: open anew.
func (s *Session) Resume(ctx context.Context, r *route.Route) (*Session, error) {
	s.Abandon()
	n := newSession(r, s.options)
	n.id, n.key, n.attempt = s.id, s.key, s.attempt+1
	n.append(s.tokens...)
	n.append(s.doubtful...) // sent, and nobody knows whether it was done
	if err := n.open(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

func newSession(r *route.Route, o Options) *Session {
	if o.ContextTokens == 0 {
		o.ContextTokens = r.ContextLimit
	}
	return &Session{
		route: r, options: o,
		out: make(chan *workerpb.SessionRequest, 64), first: make(chan *workerpb.Opened, 1), ended: make(chan struct{}),
		wake: make(chan struct{}), chain: cachehash.NewChain(r.Fingerprint), steps: make(map[uint64]*step),
	}
}

func (s *Session) open(ctx context.Context) error {
	live, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // the session outlives this call
	stream, err := s.route.Head().Session(live)
	if err != nil {
		cancel(err)
		return s.at(s.route.Head().Fault(err), 0)
	}
	s.stream, s.cancel = stream, cancel
	s.out <- &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: s.request(ctx)}}
	s.group.Go(s.send)
	s.group.Go(s.receive)

	bounded, stop := context.WithTimeout(ctx, s.patience(s.options.OpenBudget))
	defer stop()
	select {
	case s.opened = <-s.first:
	case <-s.ended:
		s.group.Wait()
		select {
		case s.opened = <-s.first: // opened and over at once: the first step will say why
		default:
			return s.Err()
		}
	case <-bounded.Done():
		f := s.at(fault.FromContext(bounded, "the answer to Open"), 0)
		s.fail(f)
		s.group.Wait()
		return f
	}
	if err := s.take(s.opened); err != nil {
		s.fail(err)
		s.group.Wait()
		return err
	}
	return nil
}

// request is the Open message.
func (s *Session) request(ctx context.Context) *workerpb.Open {
	o := s.options
	open := &workerpb.Open{
		SessionId: s.id[:], SessionKey: s.key[:], Attempt: s.attempt,
		Revisions:     &workerpb.RevisionRange{Min: route.MinRevision, Max: route.MaxRevision},
		Needs:         o.Needs,
		Expect:        &workerpb.Expectation{Fingerprint: s.route.Fingerprint[:], Layers: layers(s.route.Hops[0])},
		ContextTokens: o.ContextTokens, Egress: workerpb.Egress_EGRESS_FORWARD,
		Receive: &workerpb.ReceiveWindow{Tokens: proto.Uint32(o.ReceiveTokens), Bytes: proto.Uint64(o.ReceiveBytes)},
		Linger:  durationpb.New(o.Linger), Budget: durationpb.New(budget(ctx, o.OpenBudget)),
	}
	for _, length := range append([]uint32{uint32(len(o.Prompt))}, o.Offers...) {
		if hash, ok := s.chain.At(length); ok && length > 0 && s.attempt == 1 {
			open.Prefix = append(open.Prefix, &workerpb.PrefixOffer{Length: length, ChainHash: hash[:]})
		}
	}
	for _, hop := range s.route.Hops[1:] {
		open.Route = append(open.Route, &workerpb.RouteHop{Address: hop.Worker.Address(), Layers: layers(hop)})
	}
	return open
}

func layers(hop route.Hop) *workerpb.LayerRange {
	return &workerpb.LayerRange{First: proto.Uint32(hop.First), End: hop.End}
}

// take checks Opened and takes over what it grants.
func (s *Session) take(o *workerpb.Opened) *fault.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	length := o.GetCache().GetLength()
	hash, known := s.chain.At(length)
	switch {
	case o.GetRevision() < route.MinRevision || o.GetRevision() > route.MaxRevision:
		return s.broken("it chose revision %d", o.GetRevision())
	case o.GetMaxStepTokens() == 0 || o.GetWindow().GetSteps() == 0:
		return s.broken("it grants no step")
	case !known && s.attempt > 1:
		return s.at(fault.New(workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH, "the hops hold %d tokens and this driver knows of %d", length, s.chain.Len()).
			With(func(e *fault.Error) { e.Recovery = workerpb.Recovery_RECOVERY_REPLAY }), 0)
	case !known || string(o.GetCache().GetChainHash()) != string(hash[:]):
		return s.broken("it holds %d tokens that this driver never sent", length)
	}
	s.truncate(length)
	s.credit += uint64(o.GetWindow().GetSteps())
	return nil
}

// append adds tokens that all hops hold. The caller holds mu, or nobody else knows s yet.
func (s *Session) append(tokens ...uint32) {
	s.tokens = append(s.tokens, tokens...)
	s.chain.Append(tokens...)
}

// truncate forgets all after length. The caller holds mu.
func (s *Session) truncate(length uint32) {
	s.chain.Truncate(length)
	s.tokens = s.tokens[:s.chain.Len()]
}

// broken is INTERNAL: the head broke the contract.
func (s *Session) broken(format string, args ...any) *fault.Error {
	head := s.route.Hops[0]
	return s.at(fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "").With(func(e *fault.Error) {
		e.Message = fmt.Sprintf("The worker at %s breaks the contract (%s); report it.", head.Worker.Address(), fmt.Sprintf(format, args...))
		e.Inferred = true
	}), 0)
}

// at names the hop at fault where the error does not.
func (s *Session) at(f *fault.Error, index uint32) *fault.Error {
	c := s.route.Hops[index].Capability
	return f.At(nil, &workerpb.HopRef{Index: proto.Uint32(index), WorkerId: c.GetWorkerId(), Instance: c.GetInstance()})
}

// patience is how long an answer may take when the hops have budget.
func (s *Session) patience(budget time.Duration) time.Duration {
	return budget + time.Duration(len(s.route.Hops)+1)*slack
}

// budget is most, or what ctx leaves if that is less.
func budget(ctx context.Context, most time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(min(most, time.Until(deadline)), time.Millisecond)
	}
	return most
}

// Route is the session's route.
func (s *Session) Route() *route.Route { return s.route }

// Opened is what the hops agreed on. It is not to be changed.
func (s *Session) Opened() *workerpb.Opened { return s.opened }

// Attempt counts the openings of this sequence, from 1.
func (s *Session) Attempt() uint64 { return s.attempt }

// Length is the tokens that all hops hold. While steps run it is what the last finished one left.
func (s *Session) Length() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chain.Len()
}

// Tokens is what all hops hold, as Length counts it.
func (s *Session) Tokens() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tokens)
}

// Err is why the session is over; nil while it is not, and after a Close that the hops answered.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil
	}
	return s.err
}

// Done is closed once the session is over and nothing more will come; Err says why.
func (s *Session) Done() <-chan struct{} { return s.ended }

// Draining is the hop that drains and when it closes its sessions; ok is false when none does.
func (s *Session) Draining() (d *workerpb.Draining, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining, s.draining != nil
}
