package conformance

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// promiseCases hold a worker to what it says of itself: its limits, its counters, and who is given up first.
func promiseCases() []Case {
	return []Case{
		{ID: "promise.step-tokens", Clauses: []string{"CAP-6", "OPN-15"}, Says: "No step of the route is greater than any hop's limits.step_tokens.", Run: func(t *T) {
			d := t.openDriver()
			for i, h := range t.Hops {
				if most := h.Is.GetLimits().GetStepTokens(); d.opened.GetMaxStepTokens() > most {
					t.Errorf("Opened.max_step_tokens is %d, hop %d takes %d", d.opened.GetMaxStepTokens(), i, most)
				}
			}
			d.finish()
		}},
		{ID: "promise.first-window", Clauses: []string{"CAP-6", "OPN-15"}, Says: "The window that Opened grants is limits.first_window, with no more steps than there are marks where nothing can be truncated.", Run: func(t *T) {
			d := t.openDriver()
			limits, got := t.head().Is.GetLimits(), d.opened.GetWindow()
			first := limits.GetFirstWindow()
			steps := first.GetSteps()
			if truncate, marks := t.weakest(); truncate == workerpb.TruncateAbility_TRUNCATE_ABILITY_NONE {
				steps = min(steps, marks)
			}
			if got.GetSteps() != steps || got.GetBytes() == 0 || got.GetBytes() > first.GetBytes() {
				t.Errorf("Opened grants %v, limits.first_window is %v", got, first)
			}
			d.finish()
		}},
		{ID: "promise.context-detail", Clauses: []string{"OPN-11"}, Says: "CONTEXT_OVERFLOW of an Open carries the limit as capacity.", Run: func(t *T) {
			limit := t.head().Is.GetShard().GetContextLimit()
			e := t.refuse(workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW, func(o *workerpb.Open) { o.ContextTokens = limit + 1 })
			if got := e.GetDetail().GetCache().GetCapacity(); got != limit {
				t.Errorf("the detail says %d, the limit is %d", got, limit)
			}
		}},
		{ID: "promise.oldest-evicted", Clauses: []string{"OPN-12"}, Says: "Of two lingering caches the older is given up, the younger is still found.", Run: oldestGoes, Skip: func(t *Target) string {
			if t.head().Is.GetLimits().GetSessions() < 3 {
				return "the first worker has room for fewer than 3 sessions"
			}
			return ""
		}},
		{ID: "promise.room-grows", Clauses: []string{"OPN-5", "OPN-10"}, Says: "A greater attempt that asks for more context than the older one has it.", Run: roomGrows},
		{ID: "promise.total-counts-open-sessions", Clauses: []string{"HLT-5"}, Says: "The total counts what an open session used, and nothing twice when it ends.", Run: totalCounts},
		{ID: "promise.total-counts-samples", Clauses: []string{"HLT-5"}, Says: "The last hop counts the tokens that it sampled.", Run: func(t *T) {
			before := t.metrics(t.tail()).GetTotal().GetTokensSampled()
			d := t.openDriver()
			d.run(3, t.ids(2, 1))
			d.finish()
			if grown := t.metrics(t.tail()).GetTotal().GetTokensSampled() - before; grown < 3 {
				t.Errorf("the total grew by %d sampled tokens, 3 were", grown)
			}
		}},
		{ID: "promise.errors-counted", Clauses: []string{"HLT-5"}, Says: "Failures of a step and of an Open are counted by code.", Run: func(t *T) {
			const step, open = workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH
			before := t.metrics(t.head())
			d := t.openDriver()
			d.failed(d.give(d.step(prefill(t.vocab()))), step)
			d.finish()
			t.refuse(open, func(o *workerpb.Open) { o.Expect.Fingerprint = random(32) })
			after := t.metrics(t.head())
			for _, code := range []workerpb.ErrorCode{step, open} {
				if counted(after, code) <= counted(before, code) {
					t.Errorf("%s was counted %d times before, %d times after", name(code), counted(before, code), counted(after, code))
				}
			}
		}},
		{ID: "time.idle", Clauses: []string{"TIM-3", "CAP-6"}, Says: "A session without a message for limits.idle is closed with IDLE, its cache lingers, and a greater attempt finds it.", Run: idle, Skip: func(t *Target) string {
			if bound := t.head().Is.GetLimits().GetIdle().AsDuration(); bound <= 0 || bound > 2*time.Second {
				return "limits.idle of the first worker is not between 0 and 2 s, which is what a case can wait for"
			}
			return ""
		}},
	}
}

func counted(m *workerpb.GetMetricsResponse, code workerpb.ErrorCode) uint64 {
	for _, e := range m.GetErrors() {
		if e.GetCode() == uint32(code) {
			return e.GetCount()
		}
	}
	return 0
}

func oldestGoes(t *T) {
	old := t.linger(3)
	young := t.linger(4)
	all := []*driver{}
	for range t.head().Is.GetLimits().GetSessions() - 1 { // one more than there is room for beside both
		all = append(all, t.openDriver())
	}
	next := t.again(young, 4)
	next.usable()
	next.finish()
	for _, d := range all {
		d.finish()
	}
	t.again(old, 0).finish()
}

func roomGrows(t *T) {
	d := t.openDriver(func(o *workerpb.Open) { o.ContextTokens, o.Linger = 16, durationpb.New(10*time.Second) })
	d.result(d.put(d.step(prefill(t.ids(8, 2)...))))
	d.hangUp()
	for d.take() {
	}
	o := proto.CloneOf(d.open)
	o.Attempt, o.ContextTokens = 2, 48
	next := t.openWith(t.head(), o)
	n := min(int(next.opened.GetCache().GetLength()), len(d.tokens))
	next.tokens = d.tokens[:n]
	next.holds(next.opened.GetCache(), next.tokens)
	next.result(next.put(next.step(prefill(t.ids(48-n, 3)...))))
	next.finish()
}

func totalCounts(t *T) {
	t.quiet()
	total := func() uint64 { return t.metrics(t.head()).GetTotal().GetTokensEvaluated() }
	before := total()
	d := t.openDriver()
	for _, n := range []int{5, 4} {
		d.result(d.put(d.step(prefill(t.ids(n, 8)...))))
		if grown := total() - before; grown != uint64(len(d.tokens)) {
			t.Errorf("with %d tokens evaluated in an open session the total grew by %d", len(d.tokens), grown)
		}
	}
	used := d.finish().GetUsage().GetTokensEvaluated()
	t.quiet()
	if grown := total() - before; used != 9 || grown != used {
		t.Errorf("Closed.usage has %d evaluated tokens, the total grew by %d", used, grown)
	}
}

func idle(t *T) {
	d := t.openDriver(func(o *workerpb.Open) { o.Linger = durationpb.New(10 * time.Second) })
	d.result(d.put(d.step(prefill(t.ids(4, 2)...))))
	began := time.Now()
	c := d.over()
	if took := time.Since(began); took < t.head().Is.GetLimits().GetIdle().AsDuration()/2 {
		t.Errorf("it was closed after %v", took)
	}
	if c.GetReason() != workerpb.CloseReason_CLOSE_REASON_IDLE || !c.GetLingering() {
		t.Errorf("Closed is %v", c)
	}
	t.again(d, 4).finish()
}
