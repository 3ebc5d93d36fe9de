package conformance

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// roomCases are about how much may be under way: windows that grow, greatest steps, and what a worker buffers.
func roomCases() []Case {
	return []Case{
		{ID: "flow.window-grows", Clauses: []string{"FLO-9"}, Skip: growsInSteps, Says: "A sender that uses up its window of steps is given more, up to limits.max_window and no further.", Run: windowGrows},
		{ID: "flow.window-grows-in-bytes", Clauses: []string{"FLO-9"}, Skip: either(framedBoundary, growsInBytes), Says: "A sender that uses up its window of bytes is given more, and no more than twice what it had.", Run: windowGrowsInBytes},
		{ID: "flow.window-unused", Clauses: []string{"FLO-9", "FLO-1"}, Says: "A sender that never uses up its window gets back what it gave, and no more.", Run: func(t *T) {
			d := t.openDriver()
			for range 3 * d.opened.GetWindow().GetSteps() {
				d.result(d.put(d.step(prefill(t.ids(1, 1)...))))
			}
			d.finish()
			if first := int64(d.opened.GetWindow().GetSteps()); first > 1 && d.steps != first {
				t.Errorf("%d steps of credit are left, the window is %d and was never used up", d.steps, first)
			}
		}},
		eachHop("flow.window-holds-a-step", "The first window has room for the boundary of a greatest step.", []string{"FLO-10"}, func(t *T, h *Hop) {
			d := t.openAt(slices.Index(t.Hops, h))
			need := uint64(d.opened.GetMaxStepTokens()) * uint64(h.Is.GetShard().GetBoundaryIn().GetWidth()) * 4
			if got := d.opened.GetWindow().GetBytes(); got < need || d.opened.GetMaxStepTokens() == 0 {
				t.Errorf("the window has %d bytes, a step of %d tokens brings %d", got, d.opened.GetMaxStepTokens(), need)
			}
			d.finish()
		}),
		{ID: "flow.greatest-step", Clauses: []string{"FLO-5", "FLO-10", "HUB-1", "HUB-2"}, Skip: either(needs("hub"), hops(2), roomForGreatest), Says: "A step of max_step_tokens passes along the route and through a relay, in frames where it must, and gives one token.", Run: greatestStep},
		{ID: "flow.output-too-large", Clauses: []string{"FLO-11", "STP-7"}, Skip: outputFits, Says: "Logits that are more than limits.output_bytes are MALFORMED, and the session goes on.", Run: func(t *T) {
			d := t.openDriver()
			rows := int(t.head().Is.GetLimits().GetOutputBytes()/(uint64(t.vocab())*4)) + 1
			d.failed(d.give(d.step(decode(workerpb.Want_WANT_LOGITS_ALL, t.ids(rows, 1)...))), malformed)
			d.usable()
			d.finish()
		}},
		{ID: "flow.buffered-counted", Clauses: []string{"FLO-7"}, Skip: framedBoundary, Says: "GetMetrics.buffered_bytes counts frames of a step that is not whole, within the worker's bounds, and lets go of them when the session ends.", Run: bufferedCounted},
	}
}

// growsInSteps is a Case.Skip for workers whose windows are as great as can be from the start, or could not be filled.
func growsInSteps(t *Target) string {
	l := t.head().Is.GetLimits()
	first, most := l.GetFirstWindow().GetSteps(), l.GetMaxWindow().GetSteps()
	switch {
	case first >= most:
		return label("the first window has all of the %d steps that a window can have", most)
	case t.head().Is.GetCache().GetTruncate() != workerpb.TruncateAbility_TRUNCATE_ABILITY_ANY:
		return "a cache that cannot go back anywhere bounds its window by its marks"
	}
	return ""
}

// growsInBytes is a Case.Skip for workers whose first window one step does not use up.
func growsInBytes(t *Target) string {
	l := t.tail().Is.GetLimits()
	step := uint64(l.GetStepTokens()) * uint64(t.tail().Is.GetShard().GetBoundaryIn().GetWidth()) * 4
	first := max(l.GetFirstWindow().GetBytes(), step)
	switch {
	case l.GetMaxWindow().GetBytes() <= first:
		return label("the first window has all of the %d bytes that a window can have", first)
	case 2*step <= first || t.tail().Is.GetShard().GetContextLimit() < l.GetStepTokens():
		return label("a step of at most %d bytes does not use up a window of %d", step, first)
	}
	return ""
}

// windowGrows fills the window again and again, behind a run that waits for room, so that nothing is answered meanwhile.
func windowGrows(t *T) {
	d := t.openDriver(func(o *workerpb.Open) {
		o.ContextTokens, o.Receive.Tokens = t.head().Is.GetShard().GetContextLimit(), proto.Uint32(0)
	})
	blind := func(s *workerpb.Step) { s.ExpectCache = nil }
	most := int64(t.head().Is.GetLimits().GetMaxWindow().GetSteps())
	window := int64(d.opened.GetWindow().GetSteps())
	for rounds, full := 0, false; !full && rounds < 16; rounds++ { // once more when it is as great as can be
		full = window == most
		d.send(receiveCredit(1, 0))
		run := d.put(d.step(generate(2, t.ids(1, 1))))
		for len(d.of(run).tokens) == 0 {
			if !d.take() || d.of(run).failed != nil {
				t.Fatalf("the run failed with %v, the stream ended with %v", d.of(run).failed, d.end)
			}
		}
		last := run
		for n := d.steps; n > 0; n-- {
			last = d.put(d.step(prefill(t.ids(1, 1)...), blind))
		}
		d.send(receiveCredit(1, 0))
		d.done(last)
		d.done(d.put(d.step(truncate(0), blind))) // so that the context lasts
		if d.steps > min(2*window, most) {
			t.Fatalf("the window has grown from %d to %d steps at once, limits.max_window has %d", window, d.steps, most)
		}
		window = max(window, d.steps)
	}
	if window != most {
		t.Errorf("the window stays at %d steps although it is used up, limits.max_window has %d", window, most)
	}
	d.finish()
}

func windowGrowsInBytes(t *T) {
	d := t.asHop(func(o *workerpb.Open) { o.ContextTokens = t.tail().Is.GetShard().GetContextLimit() })
	width, rows := t.tail().Is.GetShard().GetBoundaryIn().GetWidth(), d.opened.GetMaxStepTokens()
	sent, first := uint64(rows)*uint64(width)*4, d.opened.GetWindow().GetBytes()
	data := make([]byte, sent)
	d.result(d.putWith(d.step(prefill(t.ids(int(rows), 1)...), patient), boundaryOf(rows, width, data)))
	d.finish()
	most := min(2*first, t.tail().Is.GetLimits().GetMaxWindow().GetBytes())
	if got := d.credit.GetBytes(); got <= sent || got-sent+first > most {
		t.Errorf("%d bytes were sent in a window of %d, and %d came back; the window may have %d", sent, first, got, most)
	}
}

// patient is a step with time for a great boundary.
func patient(s *workerpb.Step) { s.Budget = durationpb.New(20 * time.Second) }

// putWith puts a step with a boundary, in frames where it must be.
func (d *driver) putWith(s *workerpb.Step, b *workerpb.Boundary) uint64 {
	s.Boundary = b
	full := int(d.opened.GetFrameBytes())
	if len(b.GetData()) <= full {
		return d.put(s)
	}
	data := b.GetData()
	b.Data = nil
	id, index := d.put(s), uint32(0)
	for part := range slices.Chunk(data, full) {
		d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: id, Index: proto.Uint32(index), Data: part}}})
		index++
	}
	return id
}

// roomForGreatest is a Case.Skip for contexts that are shorter than a step can be, and boundaries that Open.receive has no
// room for.
func roomForGreatest(t *Target) string {
	for _, h := range t.Hops {
		is := h.Is
		if is.GetShard().GetContextLimit() < is.GetLimits().GetStepTokens() {
			return label("a context has %d tokens, a step can have %d", is.GetShard().GetContextLimit(), is.GetLimits().GetStepTokens())
		}
		if n := uint64(is.GetLimits().GetStepTokens()) * uint64(is.GetShard().GetBoundaryOut().GetWidth()) * 4; n > 64<<20 {
			return label("the boundary of a greatest step has %d bytes", n)
		}
	}
	return ""
}

func greatestStep(t *T) {
	deep := func(o *workerpb.Open) { o.ContextTokens = t.head().Is.GetShard().GetContextLimit() }
	d := t.openDriver(deep)
	tokens := t.ids(int(d.opened.GetMaxStepTokens()), 4)
	id := d.put(d.step(decode(workerpb.Want_WANT_SAMPLE, tokens...), patient))
	d.result(id)
	want := sampled(d.of(id))
	d.finish()
	var carried []byte
	for i, h := range t.Hops {
		d := t.openAt(i, returning, deep)
		s := d.step(prefill(tokens...), patient)
		if h == t.tail() {
			s = d.again(func(s *workerpb.Step) { decode(workerpb.Want_WANT_SAMPLE, tokens...)(s); patient(s) })
		}
		if i == 0 {
			id = d.put(s)
		} else {
			id = d.putWith(s, boundaryOf(uint32(len(tokens)), h.Is.GetShard().GetBoundaryIn().GetWidth(), carried))
		}
		d.result(id)
		if reply := d.of(id); h != t.tail() {
			carried = d.payload(reply, reply.result.GetOutput().GetBoundary())
		} else if got := sampled(reply); !slices.Equal(got, want) {
			t.Errorf("relayed %v, chained %v", got, want)
		}
		d.finish()
	}
}

// outputFits is a Case.Skip for workers whose greatest answer fits.
func outputFits(t *Target) string {
	l := t.head().Is.GetLimits()
	if n := uint64(min(l.GetStepTokens(), t.context())) * uint64(t.vocab()) * 4; n <= l.GetOutputBytes() {
		return label("the logits of a greatest step are %d bytes, an answer may have %d", n, l.GetOutputBytes())
	}
	return ""
}

func bufferedCounted(t *T) {
	limits := t.tail().Is.GetLimits()
	before := t.metrics(t.tail())
	d := t.asHop(func(o *workerpb.Open) { o.ContextTokens = t.tail().Is.GetShard().GetContextLimit() })
	_, frames := t.framed(d)
	d.send(frames[0])
	full := uint64(d.opened.GetFrameBytes())
	t.until("a frame that waits for the next one is counted", func() bool {
		return t.metrics(t.tail()).GetBufferedBytes() >= before.GetBufferedBytes()+full
	})
	d.hangUp()
	t.until("the frame is let go of", func() bool { return t.metrics(t.tail()).GetBufferedBytes() < full })
	if m := t.metrics(t.tail()); m.BufferedBytes == nil || m.BufferedMost == nil || m.GetBufferedMost() < full ||
		m.GetBufferedMost() > limits.GetWorkerWindowBytes()+limits.GetWorkerOutgoingBytes() {
		t.Errorf("%d bytes are buffered, %d were at most; the bounds are %d and %d", m.GetBufferedBytes(), m.GetBufferedMost(),
			limits.GetWorkerWindowBytes(), limits.GetWorkerOutgoingBytes())
	}
}
