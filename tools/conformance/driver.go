package conformance

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// driver is a session that was opened, with what its driver knows.
type driver struct {
	*link
	open   *workerpb.Open
	opened *workerpb.Opened
	id     uint64   // of the last step that was made
	top    uint64   // of the last step that this driver believes to be applied
	tokens []uint32 // that it believes to be cached

	replies map[uint64]*reply
	credit  workerpb.Credit // sum of what came
	steps   int64           // credit left
	closing *workerpb.Closed
}

// reply is what came for a step.
type reply struct {
	tokens []*workerpb.Token
	frames []*workerpb.Frame
	result *workerpb.StepResult
	failed *workerpb.StepFailed
}

// openDriver opens the whole route; change may alter the Open.
func (t *T) openDriver(change ...func(*workerpb.Open)) *driver { return t.openAt(0, change...) }

// openAt opens the route from a hop on.
func (t *T) openAt(hop int, change ...func(*workerpb.Open)) *driver {
	o := t.openFor(hop)
	for _, c := range change {
		c(o)
	}
	return t.openWith(t.Hops[hop], o)
}

// openWith sends an Open that must succeed.
func (t *T) openWith(h *Hop, o *workerpb.Open) *driver {
	d := &driver{link: t.link(h), open: o, replies: map[uint64]*reply{}}
	d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	m := d.next()
	if m == nil {
		t.Fatalf("Open failed: %v", d.end)
	}
	if d.opened = m.GetOpened(); d.opened == nil {
		t.Fatalf("%v came, Opened was due", brief(m))
	}
	d.steps = int64(d.opened.GetWindow().GetSteps())
	return d
}

// refuse sends an Open that must be refused with code.
func (t *T) refuse(code workerpb.ErrorCode, change func(*workerpb.Open)) *workerpb.ShardError {
	o := t.openFor(0)
	change(o)
	return t.refuseAt(t.head(), code, o)
}

func (t *T) refuseAt(h *Hop, code workerpb.ErrorCode, o *workerpb.Open) *workerpb.ShardError {
	l := t.link(h)
	l.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	return t.want(l.refusal(), code)
}

// step makes the next step: it builds on the last one and expects what the driver believes.
func (d *driver) step(change ...func(*workerpb.Step)) *workerpb.Step {
	d.id++
	s := &workerpb.Step{
		StepId: d.id, After: proto.Uint64(d.top), Budget: durationpb.New(5 * time.Second),
		ExpectCache: &workerpb.ExpectCache{Length: proto.Uint32(uint32(len(d.tokens)))},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// put sends a step and believes that it will succeed, so that the next one can follow at once. It returns the step's id.
func (d *driver) put(s *workerpb.Step) uint64 {
	d.give(s)
	d.top = s.GetStepId()
	switch kind := s.GetKind().(type) {
	case *workerpb.Step_Prefill:
		d.tokens = append(d.tokens, kind.Prefill.GetTokens()...)
	case *workerpb.Step_Decode:
		d.tokens = append(d.tokens, kind.Decode.GetTokens()...)
	case *workerpb.Step_Generate:
		d.tokens = append(d.tokens, kind.Generate.GetTokens()...)
	case *workerpb.Step_Truncate:
		d.tokens = d.tokens[:min(int(kind.Truncate.GetLength()), len(d.tokens))]
	}
	return s.GetStepId()
}

// give sends a step and believes nothing.
func (d *driver) give(s *workerpb.Step) uint64 {
	d.steps--
	d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: s}})
	return s.GetStepId()
}

// of is what came for a step so far.
func (d *driver) of(id uint64) *reply {
	if d.replies[id] == nil {
		d.replies[id] = &reply{}
	}
	return d.replies[id]
}

// take takes one message and files it; false when the stream is over.
func (d *driver) take() bool {
	m := d.next()
	if m == nil {
		return false
	}
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Credit:
		d.steps += int64(kind.Credit.GetSteps())
		d.credit.Steps = proto.Uint32(d.credit.GetSteps() + kind.Credit.GetSteps())
		d.credit.Bytes = proto.Uint64(d.credit.GetBytes() + kind.Credit.GetBytes())
	case *workerpb.SessionResponse_Token:
		r := d.of(kind.Token.GetStepId())
		d.unanswered(r, kind.Token.GetStepId())
		r.tokens = append(r.tokens, kind.Token)
	case *workerpb.SessionResponse_Frame:
		r := d.of(kind.Frame.GetStepId())
		d.unanswered(r, kind.Frame.GetStepId())
		r.frames = append(r.frames, kind.Frame)
	case *workerpb.SessionResponse_StepResult:
		r := d.of(kind.StepResult.GetStepId())
		d.unanswered(r, kind.StepResult.GetStepId())
		r.result = kind.StepResult
	case *workerpb.SessionResponse_StepFailed:
		r := d.of(kind.StepFailed.GetStepId())
		d.unanswered(r, kind.StepFailed.GetStepId())
		r.failed = kind.StepFailed
		d.t.sane(kind.StepFailed.GetError())
	case *workerpb.SessionResponse_Closed:
		d.closing = kind.Closed
	case *workerpb.SessionResponse_Draining:
	default:
		d.t.Errorf("a message of no known kind came: %v", brief(m))
	}
	return true
}

// unanswered notes a fault when a step already had its one terminal reply.
func (d *driver) unanswered(r *reply, id uint64) {
	if r.result != nil || r.failed != nil {
		d.t.Errorf("more came for step %d after its terminal reply", id)
	}
}

// done waits for a step's terminal reply.
func (d *driver) done(id uint64) *reply {
	r := d.of(id)
	for r.result == nil && r.failed == nil {
		if !d.take() {
			d.t.Fatalf("the stream ended before the reply to step %d: %v, Closed %v", id, d.end, d.closing)
		}
	}
	return r
}

// result waits for a step that must succeed, and compares the cache with what the driver believes unless later steps are on
// their way.
func (d *driver) result(id uint64) *workerpb.StepResult {
	r := d.done(id)
	if r.failed != nil {
		d.t.Fatalf("step %d failed: %v", id, r.failed.GetError())
	}
	if id == d.id {
		d.holds(r.result.GetCache(), d.tokens)
	}
	return r.result
}

// failed waits for a step that must fail with code; the cache must be what the driver believes.
func (d *driver) failed(id uint64, code workerpb.ErrorCode) *workerpb.ShardError {
	r := d.done(id)
	if r.failed == nil {
		d.t.Fatalf("step %d succeeded, %s was due", id, name(code))
	}
	e := d.t.want(r.failed.GetError(), code)
	if e.GetScope() != workerpb.ErrorScope_ERROR_SCOPE_STEP {
		d.t.Errorf("%s of a step has scope %v, STEP is due", name(code), e.GetScope())
	}
	return e
}

// holds checks a cache state against tokens.
func (d *driver) holds(state *workerpb.CacheState, tokens []uint32) {
	if state.GetLength() != uint32(len(tokens)) {
		d.t.Errorf("the cache has %d tokens, %d are due", state.GetLength(), len(tokens))
		return
	}
	if want := chainHash(d.open.GetExpect().GetFingerprint(), tokens); !bytes.Equal(state.GetChainHash(), want) {
		d.t.Errorf("the chain hash of %d tokens is %x, %x is due", len(tokens), state.GetChainHash(), want)
	}
	d.t.reach(state)
}

// reach checks the form of a cache's reach.
func (t *T) reach(state *workerpb.CacheState) {
	spans := state.GetReach()
	if len(spans) == 0 || spans[0].GetFrom() != 0 {
		t.Errorf("the reach %v does not hold 0", spans)
	}
	for i, s := range spans {
		if s.From == nil || s.To == nil || s.GetFrom() > s.GetTo() || i > 0 && s.GetFrom() <= spans[i-1].GetTo() {
			t.Errorf("the reach %v is not ascending and disjoint", spans)
		}
		if s.GetTo() > state.GetLength() {
			t.Errorf("the reach %v of a cache of %d tokens goes beyond them", spans, state.GetLength())
		}
	}
}

// usable proves that the session works and that nothing changed: a further step succeeds on what the driver believes.
func (d *driver) usable() {
	d.result(d.put(d.step(prefill(d.t.ids(1, 99)...))))
}

// finish closes the session and waits for its end.
func (d *driver) finish() *workerpb.Closed {
	d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
	return d.over()
}

// over takes everything up to the end of the stream and returns Closed, which must come last.
func (d *driver) over() *workerpb.Closed {
	for d.take() {
	}
	if d.closing == nil {
		d.t.Fatalf("the stream ended without Closed: %v", d.end)
	}
	if e := d.closing.GetError(); e != nil {
		if said := d.t.errorOf(d.end); !proto.Equal(said, e) {
			d.t.Errorf("the stream's status carries %v, Closed %v", said, e)
		}
	}
	return d.closing
}

// ends waits for the end of the attempt, which must be an error of code with scope SESSION.
func (d *driver) ends(code workerpb.ErrorCode) *workerpb.ShardError {
	c := d.over()
	e := d.t.want(c.GetError(), code)
	d.t.sane(e)
	if e.GetScope() == workerpb.ErrorScope_ERROR_SCOPE_STEP {
		d.t.Errorf("%s ended the attempt with scope STEP", name(code))
	}
	return e
}

// chainHash is CAC-1, written anew.
func chainHash(fingerprint []byte, tokens []uint32) []byte {
	first := sha256.Sum256(fingerprint)
	h := first[:16]
	for _, token := range tokens {
		next := sha256.Sum256(binary.LittleEndian.AppendUint32(bytes.Clone(h), token))
		h = next[:16]
	}
	return h
}

// prefill makes a step a Prefill.
func prefill(tokens ...uint32) func(*workerpb.Step) {
	return func(s *workerpb.Step) {
		s.Kind = &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: tokens}}
	}
}

// decode makes a step a Decode; SAMPLE is greedy.
func decode(want workerpb.Want, tokens ...uint32) func(*workerpb.Step) {
	return func(s *workerpb.Step) {
		d := &workerpb.Decode{Tokens: tokens, Want: want}
		if want == workerpb.Want_WANT_SAMPLE {
			d.Sampling = &workerpb.Sampling{Temperature: proto.Float32(0), Seed: proto.Uint64(1)}
		}
		s.Kind = &workerpb.Step_Decode{Decode: d}
	}
}

// generate makes a step a greedy Generate of n tokens that no end-of-generation token ends.
func generate(n uint32, tokens []uint32, change ...func(*workerpb.Generate)) func(*workerpb.Step) {
	return func(s *workerpb.Step) {
		g := &workerpb.Generate{
			Tokens: tokens, MaxTokens: n, IgnoreEog: true, TokenBudget: durationpb.New(5 * time.Second),
			Sampling: &workerpb.Sampling{Temperature: proto.Float32(0), Seed: proto.Uint64(1)},
		}
		for _, c := range change {
			c(g)
		}
		s.Kind = &workerpb.Step_Generate{Generate: g}
		s.Budget = durationpb.New(30 * time.Second)
	}
}

// truncate makes a step a Truncate.
func truncate(length uint32) func(*workerpb.Step) {
	return func(s *workerpb.Step) {
		s.Kind = &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: proto.Uint32(length)}}
	}
}

// run generates n tokens greedily and returns them; the driver then believes what is cached.
func (d *driver) run(n uint32, tokens []uint32, change ...func(*workerpb.Generate)) []uint32 {
	id := d.put(d.step(generate(n, tokens, change...)))
	r := d.done(id)
	if r.failed != nil {
		d.t.Fatalf("Generate failed: %v", r.failed.GetError())
	}
	ids := sampled(r)
	d.tokens = append(d.tokens, ids[:max(len(ids), 1)-1]...)
	d.holds(r.result.GetCache(), d.tokens)
	return ids
}

// sampled is the ids of a reply's tokens.
func sampled(r *reply) []uint32 {
	ids := make([]uint32, len(r.tokens))
	for i, token := range r.tokens {
		ids[i] = token.GetId()
	}
	return ids
}
