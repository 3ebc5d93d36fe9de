package session_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// player is a driver that sends at random, beside a world that moves at random, and knows what must be true.
type player struct {
	*world
	r       *rand.Rand
	trace   strings.Builder
	seen    int         // of world.got
	cache   []uint32    // what the replies say that every hop holds
	sent    []*sentStep // of this attempt
	byID    map[uint64]*sentStep
	next    uint64
	last    uint64 // last step with a result
	steps   int64  // credit
	window  int64
	faults  int // engine failures still to come
	attempt uint64
	reach   []*workerpb.LengthSpan  // as last said
	offers  []*workerpb.PrefixOffer // of the next Open
}

// sentStep is one step and its fate.
type sentStep struct {
	id      uint64
	message *workerpb.Step
	sampled []uint32
	replies int
	failed  bool
	stopped bool // a cancel with undo: false named it
}

func newPlayer(t *testing.T, seed uint64) *player {
	p := &player{r: rand.New(rand.NewPCG(seed, 7))}
	model := fake.Default()
	model.EndAt = engine.Pos(20 + p.r.IntN(60))
	cuts := [][]uint32{{}, {2}, {1, 3}}[p.r.IntN(3)]
	p.world = newMixedWorld(t, model, func(int) fake.Options { return p.able(model) }, cuts...)
	p.log, p.skew = &p.trace, p.r.IntN(2) == 0
	if p.r.IntN(2) == 0 {
		p.hops[0].hop.Ring = "w0:7000"
	}
	return p
}

// able is the model with caches that go back in one of the ways there are.
func (p *player) able(model fake.Options) fake.Options {
	switch p.r.IntN(3) {
	case 0:
		model.Truncate, model.Copy, model.Marks = engine.TruncateNone, engine.CopyWhole, uint32(1+p.r.IntN(4))
	case 1:
		model.Truncate, model.Copy, model.Marks, model.Window = engine.TruncateWindow, engine.CopyWhole, uint32(1+p.r.IntN(4)), uint32(2+p.r.IntN(8))
	}
	return model
}

func (p *player) fail(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), p.trace.String())
}

// begin opens the next attempt and takes over what it says.
func (p *player) begin() {
	before := p.cache
	var o *workerpb.Opened
	for tries := 0; o == nil; tries++ {
		p.attempt++
		p.got, p.seen, p.ended = nil, 0, nil
		open := p.openMessage(p.attempt)
		open.Prefix = p.offers
		p.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: open}})
		p.settle()
		for _, m := range p.got { // an attempt that is still open says Closed first
			o = cmp.Or(o, m.GetOpened())
		}
		p.seen = len(p.got)
		if o != nil {
			break
		}
		if len(p.ended) == 0 || tries > 1 || p.ended[0].Code != workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH {
			p.fail("not opened: %v", p.ended)
		}
	}
	length := int(o.GetCache().GetLength())
	if p.attempt > 1 { // steps that the broken link left unanswered may have run, a Truncate among them
		before = p.hops[0].held
	}
	if length > len(before) {
		p.fail("opened with %d tokens, there were %d", length, len(before))
	}
	if n := o.GetWindow().GetSteps(); o.GetAbility().GetTruncate() == workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE && n > o.GetAbility().GetMarks() {
		p.fail("a window of %d steps with %v", n, o.GetAbility())
	}
	p.reach = o.GetCache().GetReach()
	p.cache = slices.Clone(before[:length])
	p.everyHop("Opened")
	p.sent, p.byID, p.next, p.last = nil, map[uint64]*sentStep{}, 1, 0
	p.window = int64(o.GetWindow().GetSteps())
	p.steps = p.window
}

// everyHop demands that all hops hold exactly what the replies say.
func (p *player) everyHop(when string) {
	p.t.Helper()
	for i, n := range p.hops {
		if !slices.Equal(n.held, p.cache) {
			p.fail("at %s: hop %d holds %v, the driver %v", when, i, n.held, p.cache)
		}
	}
}

// everyReach demands that every hop's engine can go back to all that was said.
func (p *player) everyReach() {
	for i, n := range p.hops {
		state := n.state(engine.SessionID{n.seats})
		for _, s := range p.reach {
			for l := s.GetFrom(); l <= s.GetTo(); l++ {
				if !slices.ContainsFunc(state.Reach, func(s engine.Span) bool { return uint32(s.From) <= l && l <= uint32(s.To) }) {
					p.fail("the reach %v was said, hop %d has %v", p.reach, i, state.Reach)
				}
			}
		}
	}
}

// closeKeeping ends the session, keeps what it cached, and says which of some prefixes the next one must begin with.
func (p *player) closeKeeping() (expected uint32) {
	for _, n := range p.hops {
		n.kept = nil
	}
	p.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{KeepPrefix: true}}})
	p.settle()
	chain := newChain(p.model.Fingerprint())
	chain.Append(p.cache...)
	p.offers = nil
	for range 1 + p.r.IntN(4) {
		l := uint32(p.r.IntN(len(p.cache) + 1))
		if p.r.IntN(3) == 0 {
			l = chain.Len()
		}
		h, _ := chain.At(l)
		if l > 0 {
			p.offers = append(p.offers, &workerpb.PrefixOffer{Length: l, ChainHash: h[:]})
		}
	}
	for _, o := range p.offers {
		all := true
		for i, n := range p.hops {
			if len(n.kept) != min(len(p.cache), 1) {
				p.fail("hop %d keeps %d caches", i, len(n.kept))
			}
			all = all && n.kept[0].Offered(n.hop.Shard.Cache.Copy, []*workerpb.PrefixOffer{o}, 128) == o.GetLength()
		}
		if all {
			expected = max(expected, o.GetLength())
		}
	}
	return expected
}

func (p *player) tokens(n int) []uint32 {
	out := make([]uint32, 1+p.r.IntN(n))
	for i := range out {
		out[i] = uint32(3 + p.r.IntN(200))
	}
	return out
}

// sendStep sends a random step that builds on the last one sent.
func (p *player) sendStep(after uint64, length uint32, known bool) (uint32, bool) {
	id := p.next
	p.next += uint64(1 + p.r.IntN(2))
	var m *workerpb.SessionRequest
	switch k := p.r.IntN(10); {
	case k < 5:
		m = prefill(id, after, length, p.tokens(5)...)
		length += uint32(len(m.GetStep().GetPrefill().GetTokens()))
	case k < 7:
		m = decode(id, after, length, workerpb.Want_WANT_SAMPLE, p.tokens(2)...)
		length += uint32(len(m.GetStep().GetDecode().GetTokens()))
	case k < 9:
		m = generate(id, after, length, uint32(1+p.r.IntN(6)), p.tokens(2)...)
	default:
		length = uint32(p.r.IntN(int(length + 1)))
		if n := len(p.reach); n > 0 && p.r.IntN(2) == 0 {
			length = min(length, p.reach[p.r.IntN(n)].GetTo())
		}
		m = truncate(id, after, 0, length)
		m.GetStep().GetExpectCache().Length = nil
	}
	if !known || m.GetStep().GetTruncate() != nil {
		m.GetStep().GetExpectCache().Length = nil
	}
	if m.GetStep().GetTruncate() != nil && !p.ranBefore() {
		m.GetStep().ExpectCache = &workerpb.ExpectCache{Length: proto.Uint32(p.guess(after))}
	}
	s := &sentStep{id: id, message: m.GetStep()}
	p.sent, p.byID[id] = append(p.sent, s), s
	p.steps--
	p.send(m)
	return length, known && m.GetStep().GetGenerate() == nil
}

func (p *player) ranBefore() bool {
	return slices.ContainsFunc(p.sent, func(s *sentStep) bool { return s.message.GetGenerate() != nil })
}

// guess is the length after a step, where no Generate is before it.
func (p *player) guess(after uint64) uint32 {
	length := uint32(len(p.cache))
	for _, s := range p.sent {
		if s.replies > 0 || s.id > after {
			continue
		}
		if t := s.message.GetTruncate(); t != nil {
			length = min(length, t.GetLength())
		}
		length += uint32(len(s.message.GetPrefill().GetTokens()) + len(s.message.GetDecode().GetTokens()))
	}
	return length
}

// take looks at what came up since.
func (p *player) take() {
	for ; p.seen < len(p.got); p.seen++ {
		switch kind := p.got[p.seen].GetKind().(type) {
		case *workerpb.SessionResponse_Credit:
			p.steps += int64(kind.Credit.GetSteps())
		case *workerpb.SessionResponse_Token:
			s := p.byID[kind.Token.GetStepId()]
			if s.replies > 0 || int(kind.Token.GetIndex()) != len(s.sampled) {
				p.fail("token %d of step %d after %d tokens", kind.Token.GetIndex(), s.id, len(s.sampled))
			}
			s.sampled = append(s.sampled, kind.Token.GetId())
			p.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{
				ReceiveCredit: &workerpb.ReceiveCredit{Tokens: proto.Uint32(1), Bytes: proto.Uint64(0)},
			}})
		case *workerpb.SessionResponse_StepResult:
			p.result(kind.StepResult)
		case *workerpb.SessionResponse_StepFailed:
			s := p.byID[kind.StepFailed.GetStepId()]
			s.replies++
			s.failed = true
			p.reach = kind.StepFailed.GetCache().GetReach()
		case *workerpb.SessionResponse_Closed:
			p.fail("closed: %v", kind.Closed)
		}
	}
}

// result applies a good reply to what the driver knows.
func (p *player) result(m *workerpb.StepResult) {
	s := p.byID[m.GetStepId()]
	s.replies++
	p.reach = m.GetCache().GetReach()
	p.last = max(p.last, s.id)
	if m.GetFinish() == workerpb.Finish_FINISH_CANCELLED && !s.stopped {
		p.fail("step %d was kept, and nobody asked for that", s.id)
	}
	switch {
	case s.message.GetTruncate() != nil:
		p.cache = p.cache[:min(len(p.cache), int(s.message.GetTruncate().GetLength()))]
	case s.message.GetGenerate() != nil:
		p.cache = append(p.cache, s.message.GetGenerate().GetTokens()...)
		if n := len(s.sampled); n > 0 {
			p.cache = append(p.cache, s.sampled[:n-1]...)
		}
		if int(m.GetSampled()) != len(s.sampled) {
			p.fail("step %d: %d sampled, %d tokens came", s.id, m.GetSampled(), len(s.sampled))
		}
	default:
		p.cache = append(p.cache, s.message.GetPrefill().GetTokens()...)
		p.cache = append(p.cache, s.message.GetDecode().GetTokens()...)
	}
	if int(m.GetCache().GetLength()) != len(p.cache) {
		p.fail("the result of step %d says %d tokens, the driver counts %d", s.id, m.GetCache().GetLength(), len(p.cache))
	}
}

// move lets one thing happen; some steps fail in the engine, and StopWork is sometimes obeyed too late.
func (p *player) move() bool {
	all := p.moves()
	if len(all) == 0 {
		return false
	}
	m := all[p.r.IntN(len(all))]
	if p.hello != nil && p.r.IntN(200) == 0 {
		p.note("the ring is cut")
		p.hello, p.rung = nil, nil
		return true
	}
	if strings.HasPrefix(m.name, "engine") {
		n := p.hops[m.name[len("engine ")]-'0']
		n.stop = n.stop && p.r.IntN(3) > 0
		if p.faults > 0 && n.work[0].Kind == session.WorkStep && p.r.IntN(6) == 0 {
			p.faults--
			p.note("hop %d fails its step", n.index)
			n.work = n.work[1:]
			n.stop = false
			p.apply(n, n.core.Outcome(p.now, session.Outcome{
				Kind: session.WorkStep, Result: engine.StepResult{Err: engine.Errorf(engine.NumericFault, "made up")},
			}))
			return true
		}
	}
	m.do()
	return true
}

// round sends a few steps, perhaps cancels, and waits until all is at rest.
func (p *player) round() {
	after, length, known := p.last, uint32(len(p.cache)), true
	left := 1 + p.r.IntN(4)
	p.faults = p.r.IntN(2)
	cancels := p.r.IntN(3)
	for {
		if left > 0 && p.steps > 0 && length < 80 && p.r.IntN(3) == 0 {
			id := p.next
			length, known = p.sendStep(after, length, known)
			after = id
			left--
		} else if cancels > 0 && len(p.sent) > 0 && p.r.IntN(12) == 0 {
			cancels--
			from := p.sent[p.r.IntN(len(p.sent))].id
			undo := p.r.IntN(2) == 0
			p.byID[from].stopped = p.byID[from].stopped || !undo
			p.send(cancel(from, p.sent[len(p.sent)-1].id, undo))
		} else if !p.move() && (left == 0 || p.steps <= 0 || length >= 80) {
			p.take()
			if len(p.moves()) == 0 {
				break
			}
		}
		p.take()
	}
	p.atRest()
}

func (p *player) atRest() {
	for _, s := range p.sent {
		if s.replies != 1 {
			p.fail("step %d got %d terminal replies", s.id, s.replies)
		}
	}
	if p.steps != p.window {
		p.fail("%d of %d steps of credit came back", p.steps, p.window)
	}
	p.everyHop("rest")
	p.everyReach()
	for i, n := range p.hops {
		if n.core.State() != tables.SessionActive {
			p.fail("hop %d is %v at rest", i, n.core.State())
		}
	}
}

// proof asks the chain for a sample and compares it with one engine that has seen the same tokens.
func (p *player) proof() {
	p.faults = 0
	if len(p.cache) > 100 {
		return
	}
	id := p.next
	p.next++
	m := decode(id, p.last, uint32(len(p.cache)), workerpb.Want_WANT_SAMPLE, 77)
	s := &sentStep{id: id, message: m.GetStep()}
	p.sent, p.byID[id] = append(p.sent, s), s
	p.steps--
	p.send(m)
	for p.move() {
		p.take()
	}
	if s.replies != 1 || s.failed {
		p.fail("the step after all that got %d replies, failed %v", s.replies, s.failed)
	}
	whole := newNode(p.t, p.model, 0, engine.LayerRange{First: 0, End: p.model.NLayer})
	ctx := context.Background()
	if err := whole.engine.Open(ctx, sessionID, 200); err != nil {
		p.t.Fatal(err)
	}
	var want engine.TokenID
	for i, id := range p.cache {
		r, err := whole.engine.Step(ctx, []engine.Step{{
			Session: sessionID, Start: engine.Pos(i), Tokens: []engine.TokenID{engine.TokenID(id)}, Want: engine.WantSample,
			Sampling: &engine.Sampling{TopP: 1, RepeatPenalty: 1},
		}})
		if err != nil || r[0].Err != nil {
			p.t.Fatal(err, r[0].Err)
		}
		want = r[0].Sample.Token
	}
	if s.sampled[0] != uint32(want) {
		p.fail("the chain says %d, one engine says %d", s.sampled[0], want)
	}
	p.atRest()
}

// breakLink cuts a random link, so that the hops may hold different lengths.
func (p *player) breakLink() {
	for range p.r.IntN(6) {
		p.move()
	}
	n := p.hops[p.r.IntN(len(p.hops))]
	p.note("the link into hop %d breaks", n.index)
	if n.index == 0 {
		n.down, n.up = nil, nil
		p.apply(n, n.core.UpstreamEnded(p.now))
	} else if n.dialed {
		n.down, n.up, n.broken = nil, nil, fmt.Errorf("cut")
		if n.attachedTo() {
			p.apply(n, n.core.UpstreamEnded(p.now))
		}
	}
	for len(p.moves()) > 0 {
		p.move()
	}
}

func TestEveryInterleavingKeepsTheCachesEqual(t *testing.T) {
	runs := uint64(250)
	if testing.Short() {
		runs = 100
	}
	rung := 0
	for seed := range runs {
		rung += play(t, seed)
	}
	if rung < 50 {
		t.Errorf("the ring brought %d tokens first", rung)
	}
}

// play returns how many tokens a ring brought first.
func play(t *testing.T, seed uint64) int {
	p := newPlayer(t, seed)
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	for range 1 + p.r.IntN(2) {
		p.begin()
		for range 1 + p.r.IntN(3) {
			p.round()
		}
		p.proof()
		if p.r.IntN(4) == 0 {
			expected := p.closeKeeping()
			p.begin()
			if len(p.cache) != int(expected) {
				p.fail("offered %v, opened with %d tokens, want %d", p.offers, len(p.cache), expected)
			}
			p.offers = nil
			p.proof()
		}
		if p.r.IntN(2) == 0 {
			after := p.last
			for range min(3, p.steps) {
				id := p.next
				p.sendStep(after, uint32(len(p.cache)), false)
				after = id
			}
			p.breakLink()
		}
	}
	return p.first
}
