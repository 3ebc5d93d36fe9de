package remote

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Step sends each step on its session's stream and waits for all of them. The worker makes native calls of them as it sees fit.
func (e *Engine) Step(ctx context.Context, batch []engine.Step) ([]engine.StepResult, error) {
	info, err := e.checkBatch(batch)
	if err != nil {
		return nil, err
	}
	results := make([]engine.StepResult, len(batch))
	sent := make([]*flight, len(batch))
	for i, step := range batch {
		sent[i], results[i] = e.launch(ctx, info, step)
	}
	for i, f := range sent {
		if f != nil {
			results[i] = f.land(ctx)
		}
	}
	if err := e.lossOf(); err != nil {
		return nil, err
	}
	e.count(results)
	return results, nil
}

// checkBatch refuses a batch as a whole.
func (e *Engine) checkBatch(batch []engine.Step) (engine.ShardInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.in(loaded); err != nil {
		return engine.ShardInfo{}, err
	}
	rows, seen := uint64(0), make(map[engine.SessionID]bool, len(batch))
	for _, step := range batch {
		rows += uint64(len(step.Tokens))
		if seen[step.Session] {
			return engine.ShardInfo{}, engine.Errorf(engine.Malformed, "session %s is in the batch twice; send its steps one after another", step.Session)
		}
		seen[step.Session] = true
	}
	if most := e.limits.GetBatchTokens(); len(batch) == 0 || rows > uint64(most) {
		return engine.ShardInfo{}, engine.Errorf(engine.Malformed, "the batch has %d steps and %d rows; send 1 step or more and at most %d rows", len(batch), rows, most)
	}
	return *e.able.Shard, nil
}

// flight is a step on its way.
type flight struct {
	link     *link
	exchange *exchange
}

// launch sends one step. Without a flight the result is final.
func (e *Engine) launch(ctx context.Context, info engine.ShardInfo, step engine.Step) (*flight, engine.StepResult) {
	l, err := e.session(step.Session)
	if err != nil {
		return nil, engine.StepResult{Err: err}
	}
	m, err := message(info, step)
	if err != nil {
		return nil, engine.StepResult{Err: err, Cache: l.state()}
	}
	if ctx.Err() != nil {
		return nil, engine.StepResult{Err: cancelled(ctx), Cache: l.state()}
	}
	x, f := l.begin(ctx, m, step.Boundary.Data, e.greatestAnswer(info))
	if f != nil {
		return nil, l.refusal(ctx, f)
	}
	return &flight{l, x}, engine.StepResult{}
}

// cancelled is the error of a step whose ctx ended.
func cancelled(ctx context.Context) error {
	return engine.Errorf(engine.Cancelled, "the step was cancelled: %w", context.Cause(ctx))
}

// land waits for the answer.
func (f *flight) land(ctx context.Context) engine.StepResult {
	if why := f.link.wait(ctx, f.exchange); why != nil {
		return f.link.refusal(ctx, why)
	}
	x := f.exchange
	r := engine.StepResult{
		Cache: f.link.state(), Boundary: rowsOf(x.result.GetOutput().GetBoundary(), x.frames),
		Logits: rowsOf(x.result.GetOutput().GetLogits(), x.frames), Sample: sampleOf(x.sample),
	}
	if r.Sample != nil {
		r.Sample.EndOfGeneration = x.result.GetFinish() == workerpb.Finish_FINISH_END_OF_GENERATION
	}
	for _, t := range x.result.GetTiming() {
		r.Compute += t.GetCompute().AsDuration()
	}
	return r
}

// refusal is the result of a step that changed nothing. Where the session ended with it, there is no cache any more.
func (l *link) refusal(ctx context.Context, f *fault.Error) engine.StepResult {
	r := engine.StepResult{Err: translate(f)}
	if l.reason() == nil {
		r.Cache = l.state()
	}
	if ctx.Err() != nil && r.Err.(*engine.Error).Code == engine.DeadlineExceeded {
		r.Err = cancelled(ctx)
	}
	return r
}

// count adds results to what Metrics tells.
func (e *Engine) count(results []engine.StepResult) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range results {
		e.metrics.Compute += r.Compute
		switch {
		case engine.CodeOf(r.Err) == engine.Cancelled:
			e.metrics.Cancelled++
		case r.Err != nil:
			e.metrics.Failed++
		case r.Sample != nil:
			e.metrics.Sampled++
		}
	}
}

// message is a step as it goes on the wire, but for its ids.
func message(info engine.ShardInfo, step engine.Step) (*workerpb.Step, error) {
	m := &workerpb.Step{ExpectCache: &workerpb.ExpectCache{Length: proto.Uint32(uint32(step.Start))}}
	for _, a := range step.Auxiliary {
		m.Auxiliary = append(m.Auxiliary, &workerpb.AuxiliaryState{Name: a.Name, Payload: boundaryOf(a.Payload)})
	}
	if b := step.Boundary; b.N != 0 || b.Width != 0 || len(b.Data) != 0 {
		if uint64(len(b.Data)) != 4*uint64(b.N)*uint64(b.Width) { // a stream that announced it could not go on
			return nil, engine.Errorf(engine.Malformed, "the boundary has %d bytes for %d rows of %d float32; send all of them", len(b.Data), b.N, b.Width)
		}
		m.Boundary = boundaryOf(b)
	}
	want := step.Want
	if want < engine.WantNone || want > engine.WantSample {
		return nil, engine.Errorf(engine.Malformed, "want %d is none", want)
	}
	if (want == engine.WantSample) != (step.Sampling != nil) {
		return nil, engine.Errorf(engine.Malformed, "sampling goes with WantSample and only there")
	}
	if !info.Tail() {
		want = engine.WantNone // it has nothing but its boundary to return
	}
	if want == engine.WantNone && step.MultiToken == nil {
		m.Kind = &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: ids(step.Tokens)}}
		return m, nil
	}
	d := &workerpb.Decode{Tokens: ids(step.Tokens), Want: workerpb.Want(want) + workerpb.Want_WANT_NONE}
	if want == engine.WantSample {
		d.Sampling = samplingOf(step.Sampling)
	}
	if p := step.MultiToken; p != nil {
		d.Mtp = &workerpb.MultiTokenPrediction{MaxDraft: p.MaxDraft, Draft: ids(p.Draft)}
	}
	m.Kind = &workerpb.Step_Decode{Decode: d}
	return m, nil
}

// boundaryOf announces rows; their bytes are put in or follow in frames.
func boundaryOf(r engine.Rows) *workerpb.Boundary {
	return &workerpb.Boundary{Rows: r.N, Width: r.Width, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: uint64(len(r.Data))}
}

// rowsOf is an output, whose bytes came in frames or with it.
func rowsOf(b *workerpb.Boundary, frames []byte) engine.Rows {
	if b == nil {
		return engine.Rows{}
	}
	data := b.GetData()
	if len(data) == 0 {
		data = frames
	}
	return engine.Rows{N: b.GetRows(), Width: b.GetWidth(), Data: data}
}

func sampleOf(t *workerpb.Token) *engine.Sample {
	if t == nil {
		return nil
	}
	s := &engine.Sample{Token: engine.TokenID(t.GetId()), Bytes: t.GetBytes(), Logprob: t.GetLogprob()}
	for _, top := range t.GetTop() {
		s.Top = append(s.Top, engine.TokenLogprob{Token: engine.TokenID(top.GetId()), Bytes: top.GetBytes(), Logprob: top.GetLogprob()})
	}
	return s
}

func samplingOf(s *engine.Sampling) *workerpb.Sampling {
	m := &workerpb.Sampling{
		Seed: &s.Seed, Temperature: &s.Temperature, TopK: &s.TopK, TopP: &s.TopP, MinP: &s.MinP, RepeatPenalty: &s.RepeatPenalty,
		PenaltyWindow: &s.PenaltyWindow, FrequencyPenalty: &s.FrequencyPenalty, PresencePenalty: &s.PresencePenalty,
		AnswerStart: proto.Uint32(uint32(s.AnswerStart)),
	}
	m = proto.Clone(m).(*workerpb.Sampling) // nothing of the caller's is kept
	for _, b := range s.LogitBias {
		m.LogitBias = append(m.LogitBias, &workerpb.LogitBias{Id: proto.Uint32(uint32(b.Token)), Bias: proto.Float32(b.Bias)})
	}
	if g := s.Grammar; g != nil {
		m.Grammar = &workerpb.Grammar{Text: g.Text, Lazy: g.Lazy, TriggerPatterns: g.TriggerPatterns, TriggerTokens: ids(g.TriggerTokens), Prefill: g.Prefill}
	}
	if s.Typical != 0 {
		m.Typical = proto.Float32(s.Typical)
	}
	if s.WantLogprob || s.Logprobs > 0 {
		m.Logprobs = proto.Uint32(s.Logprobs)
	}
	return m
}
