package session

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// step is one step that was sent. Its fields are guarded by the session's mu.
type step struct {
	id     uint64
	start  uint32   // cache length before it
	tokens []uint32 // that it evaluates
	run    *Run     // of a Generate
	sample *Token   // of a Decode that samples
	frames []byte   // of its output, as far as they came
	most   uint64   // bytes of output that were asked for
	wait   time.Duration

	answered bool
	result   *workerpb.StepResult // nil when it failed
	fault    *fault.Error
}

// end answers a step once. The caller holds mu.
func (p *step) end(result *workerpb.StepResult, f *fault.Error) {
	if !p.answered {
		p.answered, p.result, p.fault = true, result, f
	}
}

// evaluated is the tokens that the caches hold once the step is done; of a run the last sample is not among them.
func (p *step) evaluated() []uint32 {
	if p.run == nil {
		return p.tokens
	}
	return slices.Concat(p.tokens, p.run.ids)
}

// operation is the steps of one call, in flight together: each builds on the one before.
type operation struct {
	s      *Session
	after  uint64
	length uint32 // cache length once all were done
	steps  []*step
}

// begin checks that room tokens more fit into what was reserved.
func (s *Session) begin(room uint64) (*operation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if length := s.chain.Len(); uint64(length)+room > uint64(s.options.ContextTokens) {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW, "%d tokens and %d more do not fit into the %d that were reserved",
			length, room, s.options.ContextTokens)
	}
	return &operation{s: s, after: s.applied, length: s.chain.Len()}, nil
}

// submit sends the next step of the operation once there is credit. fill sets the kind. The allowance is for the step alone;
// it waits for those before it too.
func (o *operation) submit(ctx context.Context, p *step, allowance time.Duration, fill func(*workerpb.Step)) error {
	s := o.s
	s.mu.Lock()
	allowance = budget(ctx, allowance*time.Duration(len(s.steps)+1))
	s.mu.Unlock()
	p.wait = s.patience(allowance)
	err := s.await(ctx, p.wait, "credit for a step", func() bool { return s.credit > 0 || s.err != nil || s.closed != nil || o.failure() != nil })
	if err != nil {
		return err
	}
	s.mu.Lock()
	if f := o.failure(); f != nil || s.err != nil || s.closed != nil || s.credit == 0 {
		s.mu.Unlock()
		if f != nil {
			return f
		}
		return s.overErr()
	}
	s.credit--
	s.last++
	p.id, p.start = s.last, o.length
	hash, _ := s.chain.At(o.length)
	s.steps[p.id] = p
	first := len(o.steps) == 0
	s.mu.Unlock()

	m := &workerpb.Step{
		StepId: p.id, After: proto.Uint64(o.after), Budget: durationpb.New(allowance),
		ExpectCache: &workerpb.ExpectCache{Length: proto.Uint32(o.length)},
	}
	if first { // later hashes follow from this one, and every result is checked
		m.ExpectCache.ChainHash = hash[:]
	}
	fill(m)
	o.steps = append(o.steps, p)
	o.after, o.length = p.id, o.length+uint32(len(p.tokens))
	return s.enqueue(ctx, &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: m}})
}

// failure is why the operation failed: the fault of its first failed step, or nil. The caller holds mu.
func (o *operation) failure() *fault.Error {
	for _, p := range o.steps {
		if p.fault != nil {
			return p.fault
		}
	}
	return nil
}

// chunks submits tokens as prefill steps.
func (o *operation) chunks(ctx context.Context, tokens []uint32) error {
	for chunk := range slices.Chunk(tokens, o.s.chunk()) {
		p := &step{tokens: chunk}
		err := o.submit(ctx, p, o.s.options.StepBudget, func(m *workerpb.Step) {
			m.Kind = &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: chunk}}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// chunk is the tokens of a prefill step.
func (s *Session) chunk() int {
	most := s.opened.GetMaxStepTokens()
	if asked := cmp.Or(s.options.ChunkTokens, s.opened.GetChunkTokens()); asked > 0 {
		most = min(most, asked)
	}
	return int(most)
}

// finish waits until every step of the operation has its answer. On the end of ctx, the steps that run are cancelled and
// undone, and their answers are waited for.
func (o *operation) finish(ctx context.Context, what string) error {
	s := o.s
	var limit time.Duration
	for _, p := range o.steps {
		limit = max(limit, p.wait)
	}
	all := func() bool { return !slices.ContainsFunc(o.steps, func(p *step) bool { return !p.answered }) }
	if err := s.await(ctx, limit, what, all); err != nil {
		if ctx.Err() == nil || len(o.steps) == 0 {
			return err
		}
		s.cancelSteps(o.steps[0].id, true)
		rest := context.WithoutCancel(ctx)
		if late := s.await(rest, s.patience(cancelWait), "the answer to CancelStep", all); late != nil {
			return late
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := o.failure(); f != nil {
		return f
	}
	return nil
}

// cancelSteps asks for an early end of all unanswered steps from id on.
func (s *Session) cancelSteps(id uint64, undo bool) {
	s.mu.Lock()
	through := s.last
	s.mu.Unlock()
	m := &workerpb.CancelStep{StepId: id, Through: through, Undo: undo}
	_ = s.enqueue(s.stream.Context(), &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{CancelStep: m}})
}

// Prefill evaluates tokens on every hop, in chunks that are in flight together as far as the window allows. It returns once
// all hops hold them. When it fails in the middle, the chunks before the failed one are held: see Length.
//
// Errors: CONTEXT_OVERFLOW and TOKEN_OUT_OF_RANGE of a step; all that ends a session.
func (s *Session) Prefill(ctx context.Context, tokens []uint32) error {
	o, err := s.begin(uint64(len(tokens)))
	if err != nil {
		return err
	}
	err = o.chunks(ctx, tokens)
	if late := o.finish(ctx, "the answer to prefill"); late != nil {
		return late
	}
	return err
}

// Truncate makes the caches shorter. A length at or above the present one does nothing; one that is out of reach is
// CACHE_MISMATCH.
func (s *Session) Truncate(ctx context.Context, length uint32) error {
	o, err := s.begin(0)
	if err != nil {
		return err
	}
	err = o.submit(ctx, &step{}, s.options.StepBudget, func(m *workerpb.Step) {
		m.Kind = &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: proto.Uint32(length)}}
	})
	if err != nil {
		return err
	}
	return o.finish(ctx, "the answer to truncate")
}

// Decoded is what a Decode returned.
type Decoded struct {
	Logits [][]float32 // a row after the last token, or after each; nil unless asked for
	Sample *Token      // with WANT_SAMPLE
	Timing []*workerpb.HopTiming
}

// Decode evaluates at most a chunk of given tokens and returns something of the tail's. sampling goes with WANT_SAMPLE.
func (s *Session) Decode(ctx context.Context, tokens []uint32, want workerpb.Want, sampling *workerpb.Sampling) (*Decoded, error) {
	p := &step{tokens: tokens}
	switch rows := uint64(len(tokens)); want {
	case workerpb.Want_WANT_LOGITS_LAST:
		p.most = 4 * uint64(s.route.Vocab)
	case workerpb.Want_WANT_LOGITS_ALL:
		p.most = 4 * uint64(s.route.Vocab) * rows
	}
	o, err := s.begin(uint64(len(tokens)))
	if err != nil {
		return nil, err
	}
	err = o.submit(ctx, p, s.options.StepBudget, func(m *workerpb.Step) {
		m.Kind = &workerpb.Step_Decode{Decode: &workerpb.Decode{Tokens: tokens, Want: want, Sampling: sampling}}
	})
	if err != nil {
		return nil, err
	}
	if err := o.finish(ctx, "the answer to decode"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Decoded{Logits: rowsOf(p.result.GetOutput().GetLogits(), p.frames), Sample: p.sample, Timing: p.result.GetTiming()}, nil
}

// rowsOf reads logits; framed is their bytes when they did not fit into the result.
func rowsOf(b *workerpb.Boundary, framed []byte) [][]float32 {
	data := b.GetData()
	if len(data) == 0 {
		data = framed
	}
	if b == nil || uint64(len(data)) != 4*uint64(b.GetRows())*uint64(b.GetWidth()) {
		return nil
	}
	rows := make([][]float32, b.GetRows())
	for i := range rows {
		rows[i] = make([]float32, b.GetWidth())
		for j := range rows[i] {
			bits := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
			rows[i][j] = math.Float32frombits(bits)
			data = data[4:]
		}
	}
	return rows
}
