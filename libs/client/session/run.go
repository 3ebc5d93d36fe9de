package session

import (
	"context"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Token is one sampled token.
type Token struct {
	Index   uint32 // in its run, from 0
	ID      uint32
	Bytes   []byte   // detokenised alone; may be a part of a UTF-8 sequence
	Logprob *float32 // natural logarithm, when asked for
	Top     []*workerpb.TokenLogprob
	At      time.Time // when it came
}

func tokenOf(m *workerpb.Token) Token {
	return Token{Index: m.GetIndex(), ID: m.GetId(), Bytes: m.GetBytes(), Logprob: m.Logprob, Top: m.GetTop(), At: time.Now()}
}

// Generation says what to generate.
type Generation struct {
	Tokens     []uint32           // 1 or more, not yet evaluated: the rest of the prompt
	Sampling   *workerpb.Sampling // answer_start is filled in where it is absent
	MaxTokens  uint32             // ≥ 1
	StopTokens []uint32           // end the run beside the model's own ends
	IgnoreEnd  bool               // the model's ends do not end the run
}

// Result is how a run ended.
type Result struct {
	Finish  workerpb.Finish
	Sampled uint32
	Prefill []*workerpb.HopTiming // of the chunks before the run, hop by hop, added up
	Timing  []*workerpb.HopTiming // of the run itself
}

// Run is a Generate in flight. Its tokens are taken with Next, by one goroutine.
type Run struct {
	s     *Session
	op    *operation
	step  *step
	begun time.Time

	// guarded by the session's mu
	ids     []uint32 // all that were sampled
	waiting []Token
	stopped bool
}

// Generate sends the prompt's chunks and the run behind them, without waiting for answers in between. Tokens come by
// Run.Next; the run must be taken to its end, or the session be abandoned. ctx bounds the sending alone.
func (s *Session) Generate(ctx context.Context, g Generation) (*Run, error) {
	if len(g.Tokens) == 0 {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "a run needs a token to begin with")
	}
	op, err := s.begin(uint64(len(g.Tokens)) + uint64(max(g.MaxTokens, 1)) - 1)
	if err != nil {
		return nil, err
	}
	r := &Run{s: s, op: op, begun: time.Now()}
	if err := r.send(ctx, g); err != nil {
		if late := r.op.finish(ctx, "the answer to prefill"); late != nil {
			return nil, late
		}
		return nil, err
	}
	return r, nil
}

// send sends the chunks and the run.
func (r *Run) send(ctx context.Context, g Generation) error {
	s := r.s
	last := (len(g.Tokens) - 1) / s.chunk() * s.chunk()
	if err := r.op.chunks(ctx, g.Tokens[:last]); err != nil {
		return err
	}
	if err := r.op.nearlyDone(ctx); err != nil {
		return err
	}
	sampling := &workerpb.Sampling{}
	if g.Sampling != nil {
		sampling = proto.CloneOf(g.Sampling)
	}
	if sampling.AnswerStart == nil {
		sampling.AnswerStart = proto.Uint32(r.op.length + uint32(len(g.Tokens)-last))
	}
	r.step = &step{tokens: g.Tokens[last:], run: r}
	return r.op.submit(ctx, r.step, s.options.RunBudget, func(m *workerpb.Step) {
		m.Kind = &workerpb.Step_Generate{Generate: &workerpb.Generate{
			Tokens: g.Tokens[last:], Sampling: sampling, MaxTokens: g.MaxTokens, StopTokens: g.StopTokens,
			TokenBudget: durationpb.New(budget(ctx, s.options.TokenBudget)), IgnoreEog: g.IgnoreEnd,
		}}
	})
}

// nearlyDone waits until a step a hop is in flight at most: enough to keep every hop busy, and so few that the time until the
// first token, which begins when the run is sent, is not spent behind a long prompt.
func (o *operation) nearlyDone(ctx context.Context) error {
	if len(o.steps) == 0 {
		return nil
	}
	s := o.s
	few := func() bool { return len(s.steps) <= len(s.route.Hops) || o.failure() != nil }
	return s.await(ctx, o.steps[len(o.steps)-1].wait, "the answer to prefill", few)
}

// Next is the next token; io.EOF after the last, once every hop has done the run. When ctx ends it returns at once and the
// run goes on: Stop it, or ask again.
func (r *Run) Next(ctx context.Context) (Token, error) {
	s := r.s
	limit := s.patience(s.options.TokenBudget)
	for _, p := range r.op.steps[:len(r.op.steps)-1] { // the first token waits for the chunks too
		limit = max(limit, p.wait+s.patience(s.options.TokenBudget))
	}
	err := s.await(ctx, limit, "the next token", func() bool {
		s.grant(0, 0) // what the sender's queue had no place for
		return len(r.waiting) > 0 || r.step.answered
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(r.waiting) > 0 {
		t := r.waiting[0]
		r.waiting = slices.Delete(r.waiting, 0, 1)
		s.grant(1, 0)
		return t, nil
	}
	if err != nil {
		return Token{}, err
	}
	if f := r.op.failure(); f != nil {
		return Token{}, f
	}
	return Token{}, io.EOF
}

// Stop ends the run between two tokens; those that come nevertheless are part of it. Next goes on to io.EOF. Idempotent.
func (r *Run) Stop() {
	r.s.mu.Lock()
	again := r.stopped || r.step.answered
	r.stopped = true
	r.s.mu.Unlock()
	if !again {
		r.s.cancelSteps(r.step.id, false)
	}
}

// Result is how the run ended; ok is false before io.EOF and after an error.
func (r *Run) Result() (result Result, ok bool) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	answer := r.step.result
	if answer == nil {
		return Result{}, false
	}
	result = Result{Finish: answer.GetFinish(), Sampled: uint32(len(r.ids)), Timing: answer.GetTiming()}
	for _, p := range r.op.steps[:len(r.op.steps)-1] {
		result.Prefill = addTimings(result.Prefill, p.result.GetTiming())
	}
	return result, true
}

// Begun is when the first step of the run was sent.
func (r *Run) Begun() time.Time { return r.begun }

// addTimings adds b to a, hop by hop.
func addTimings(a, b []*workerpb.HopTiming) []*workerpb.HopTiming {
	for _, t := range b {
		i := slices.IndexFunc(a, func(x *workerpb.HopTiming) bool { return x.GetHop() == t.GetHop() })
		if i < 0 {
			hop := t.GetHop()
			a = append(a, &workerpb.HopTiming{Hop: &hop, Queued: durationpb.New(0), Compute: durationpb.New(0)})
			i = len(a) - 1
		}
		a[i].Queued = durationpb.New(a[i].GetQueued().AsDuration() + t.GetQueued().AsDuration())
		a[i].Compute = durationpb.New(a[i].GetCompute().AsDuration() + t.GetCompute().AsDuration())
		a[i].Shapes = append(a[i].Shapes, t.GetShapes()...)
	}
	return a
}
