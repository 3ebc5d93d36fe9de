package conformance

import (
	"bytes"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const anyTruncate = workerpb.TruncateAbility_TRUNCATE_ABILITY_ANY

// weakest is what a route's caches can do together.
func (t *Target) weakest() (truncate workerpb.TruncateAbility, marks uint32) {
	marks = 1 << 31
	for _, h := range t.Hops {
		c := h.Is.GetCache()
		truncate = max(truncate, c.GetTruncate())
		if c.GetTruncate() != anyTruncate {
			marks = min(marks, c.GetMarks())
		}
	}
	return truncate, marks
}

// fewMarks is a Case.Skip for routes whose caches hold one mark alone.
func fewMarks(t *Target) string {
	if truncate, marks := t.weakest(); truncate != anyTruncate && marks < 2 {
		return "a cache of the route holds one mark alone"
	}
	return ""
}

// oneStep is a Case.Skip for routes that take one step at a time.
func oneStep(t *Target) string {
	if truncate, marks := t.weakest(); truncate == workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE && marks < 2 || t.head().Is.GetLimits().GetFirstWindow().GetSteps() < 2 {
		return "the window of the route has one step"
	}
	return ""
}

// within says whether a length is in a cache's reach.
func within(state *workerpb.CacheState, length uint32) bool {
	for _, s := range state.GetReach() {
		if s.GetFrom() <= length && length <= s.GetTo() {
			return true
		}
	}
	return false
}

// markCases are about checkpoints, and what they make of going back.
func markCases() []Case {
	return []Case{
		eachHop("mark.capability", "What a cache can take back is one of the abilities there are, and one that does not go back to any length holds marks.", []string{"MRK-2"}, func(t *T, h *Hop) {
			c := t.capability(h).GetCache()
			if c.GetTruncate() < anyTruncate || c.GetTruncate() > workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE || c.GetCopy() == 0 || c.Marks == nil ||
				c.GetTruncate() != anyTruncate && c.GetMarks() == 0 {
				t.Errorf("Capability.cache is %v", c)
			}
		}),
		{ID: "mark.opened-ability", Clauses: []string{"MRK-2", "OPN-15"}, Says: "Opened.ability is the weakest truncation of the route, and the least marks of those that need them.", Run: func(t *T) {
			d := t.openDriver()
			truncate, marks := t.weakest()
			if got := d.opened.GetAbility(); got.GetTruncate() != truncate || truncate != anyTruncate && got.GetMarks() != marks {
				t.Errorf("Opened.ability is %v, the weakest of the route is %v with %d marks", got, truncate, marks)
			}
			d.finish()
		}},
		{ID: "mark.window", Clauses: []string{"MRK-3"}, Says: "Where nothing can be truncated, no more steps are granted than there are marks.", Run: func(t *T) {
			d := t.openDriver()
			truncate, marks := t.weakest()
			if n := d.opened.GetWindow().GetSteps(); n == 0 || truncate == workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE && n > marks {
				t.Errorf("the window has %d steps, the caches %d marks", n, marks)
			}
			d.finish()
		}},
		{ID: "mark.more-steps-than-marks", Clauses: []string{"MRK-1", "FLO-1"}, Says: "Steps that come as fast as credit does all get their results, however few marks there are.", Run: moreSteps},
		{ID: "mark.cancelled-in-flight", Clauses: []string{"MRK-1", "STP-10"}, Says: "Steps that are cancelled in flight are undone to the start of the first, and the next step runs from there.", Run: cancelledInFlight},
		{ID: "mark.end-of-prefill", Clauses: []string{"MRK-4", "MRK-5"}, Skip: fewMarks, Says: "Behind a run and further steps the end of the prefill is within reach, and the same run from there gives the same tokens.", Run: endOfPrefill},
		{ID: "mark.return-often", Clauses: []string{"MRK-5", "CAC-4"}, Says: "The start of the last step is returned to, to the bit, as often as it is asked for.", Run: returnOften},
		{ID: "mark.dropped-behind", Clauses: []string{"MRK-5", "CAC-3"}, Says: "Going back behind a mark drops it: with other tokens at its length it is not within reach.", Skip: func(t *Target) string {
			if truncate, _ := t.weakest(); truncate != workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE {
				return "the caches of this route go back without marks"
			}
			return fewMarks(t)
		}, Run: droppedBehind},
		{ID: "mark.reach-is-true", Clauses: []string{"CAC-3", "FEN-5"}, Says: "Every length within reach can be gone back to, and no other.", Run: reachIsTrue},
		{ID: "mark.reopened-anywhere", Clauses: []string{"LOS-2", "OPN-14", "CAN-6"}, Says: "Broken after any number of a run's tokens, a session opens again with a length that all hops reach, and goes on.", Run: reopenedAnywhere},
	}
}

func moreSteps(t *T) {
	d := t.openDriver()
	var ids []uint64
	for i := range 24 {
		for d.steps == 0 {
			if !d.take() {
				t.Fatalf("the stream ended: %v", d.end)
			}
		}
		ids = append(ids, d.put(d.step(prefill(t.ids(2, uint32(i))...))))
	}
	for _, id := range ids {
		d.result(id)
	}
	d.usable()
	d.finish()
}

func cancelledInFlight(t *T) {
	d := t.openDriver()
	d.result(d.put(d.step(prefill(t.ids(5, 1)...))))
	top, length := d.top, len(d.tokens)
	var ids []uint64
	for i := range d.steps {
		ids = append(ids, d.put(d.step(prefill(t.ids(6, uint32(i))...))))
	}
	d.send(cancelStep(ids[0], ids[len(ids)-1], true))
	for _, id := range ids {
		if r := d.done(id); r.failed == nil { // it was faster than the cancel
			top, length = id, length+6
		}
	}
	d.top, d.tokens = top, d.tokens[:length]
	for _, id := range ids {
		if f := d.of(id).failed; f != nil {
			d.holds(f.GetCache(), d.tokens)
		}
	}
	d.usable()
	d.finish()
}

func endOfPrefill(t *T) {
	d := t.openDriver()
	for i := range 3 {
		d.result(d.put(d.step(prefill(t.ids(4, uint32(i))...))))
	}
	prompt := bytes.Clone(chainHash(d.open.GetExpect().GetFingerprint(), d.tokens))
	want := d.run(5, t.ids(1, 7))
	for i := range 4 {
		r := d.result(d.put(d.step(decode(workerpb.Want_WANT_NONE, t.ids(1, uint32(i))...))))
		if !within(r.GetCache(), 12) {
			t.Errorf("%d steps behind the run the reach %v does not hold the end of the prefill, 12", i+1, r.GetCache().GetReach())
		}
	}
	if r := d.result(d.put(d.step(truncate(12)))); !bytes.Equal(r.GetCache().GetChainHash(), prompt) {
		t.Errorf("after going back to the end of the prefill the hash is %x", r.GetCache().GetChainHash())
	}
	if got := d.run(5, t.ids(1, 7)); !equal(got, want) {
		t.Errorf("the same run from there gives %v, it gave %v", got, want)
	}
	d.finish()
}

func equal(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func returnOften(t *T) {
	d := t.openDriver()
	d.result(d.put(d.step(prefill(t.ids(9, 1)...))))
	ask := func() []byte {
		return d.logits(d.put(d.step(decode(workerpb.Want_WANT_LOGITS_LAST, t.ids(3, 5)...))))
	}
	want := ask()
	for i := range 3 {
		d.result(d.put(d.step(truncate(9))))
		if !bytes.Equal(ask(), want) {
			t.Errorf("after going back %d times the same tokens give other logits", i+1)
		}
	}
	d.finish()
}

func droppedBehind(t *T) {
	d := t.openDriver()
	d.result(d.put(d.step(prefill(t.ids(4, 1)...))))
	d.result(d.put(d.step(prefill(t.ids(4, 2)...))))
	if r := d.result(d.put(d.step(decode(workerpb.Want_WANT_NONE, t.ids(1, 3)...)))); !within(r.GetCache(), 8) || !within(r.GetCache(), 4) {
		t.Fatalf("the reach %v does not hold the starts of the last two steps, 4 and 8", r.GetCache().GetReach())
	}
	d.result(d.put(d.step(truncate(4))))
	if r := d.result(d.put(d.step(prefill(t.ids(6, 9)...)))); within(r.GetCache(), 8) {
		t.Errorf("the reach %v holds the mark of tokens that are gone, 8", r.GetCache().GetReach())
	}
	d.failed(d.give(d.step(truncate(8))), mismatch)
	d.usable()
	d.finish()
}

func reachIsTrue(t *T) {
	for length := range uint32(19) {
		d := t.openDriver()
		var r *workerpb.StepResult
		for i, n := range []int{7, 5, 1, 1, 4, 1} {
			r = d.result(d.put(d.step(prefill(t.ids(n, uint32(i))...))))
		}
		if within(r.GetCache(), length) {
			d.result(d.put(d.step(truncate(length))))
		} else {
			d.failed(d.give(d.step(truncate(length))), mismatch)
		}
		d.usable()
		d.finish()
	}
}

func reopenedAnywhere(t *T) {
	t.quiet()
	for n := range 6 {
		d := t.openDriver(func(o *workerpb.Open) { o.Linger, o.Receive.Tokens = durationpb.New(5*time.Second), proto.Uint32(8) })
		d.result(d.put(d.step(prefill(t.ids(6, 1)...))))
		tokens := t.ids(2, 2)
		id := d.give(d.step(generate(40, tokens)))
		for len(d.of(id).tokens) < n {
			if !d.take() {
				t.Fatalf("the stream ended: %v", d.end)
			}
		}
		d.hangUp()
		for d.take() {
		}
		t.quiet()
		o := proto.CloneOf(d.open)
		o.Attempt = 2
		next := t.openWith(t.head(), o)
		next.tokens = append(append(d.tokens, tokens...), sampled(d.of(id))...)
		length := next.opened.GetCache().GetLength()
		if length < 6 { // the start of the run, which no hop may have given up
			t.Errorf("after %d tokens of a run that began at 6 the session opens with %d tokens", n, length)
		}
		if length <= uint32(len(next.tokens)) { // more than was told: the driver does not know them
			next.tokens = next.tokens[:length]
			next.holds(next.opened.GetCache(), next.tokens)
			next.usable()
		}
		next.finish()
	}
}
