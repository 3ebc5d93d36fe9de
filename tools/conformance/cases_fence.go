package conformance

import (
	"bytes"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const predecessor = workerpb.ErrorCode_ERROR_CODE_PREDECESSOR_FAILED

// fenceFault is a step that does not fit the cache.
func fenceFault(id, says string, clauses []string, change func(*driver, *workerpb.Step)) Case {
	return Case{ID: "fence." + id, Clauses: append(clauses, "STP-10", "FEN-7"), Says: says, Run: func(t *T) {
		d := t.openDriver()
		d.result(d.put(d.step(prefill(t.ids(4, 3)...))))
		d.result(d.put(d.step(prefill(t.ids(3, 4)...))))
		s := d.step(somePrefill(t))
		change(d, s)
		e := d.failed(d.give(s), mismatch)
		c := e.GetDetail().GetCache()
		if c.GetLength() != 7 || !bytes.Equal(c.GetChainHash(), chainHash(d.open.GetExpect().GetFingerprint(), d.tokens)) {
			t.Errorf("the detail says %v, the cache has 7 tokens", c)
		}
		d.holds(d.of(d.id).failed.GetCache(), d.tokens)
		d.usable()
		d.finish()
	}}
}

func fenceCases() []Case {
	return []Case{
		fenceFault("after-unknown", "A step on a step that never was is CACHE_MISMATCH.", []string{"STP-2"}, func(d *driver, s *workerpb.Step) {
			d.id = 50
			s.StepId, s.After = d.id, proto.Uint64(40)
		}),
		fenceFault("after-older", "A step on an older step than the last is CACHE_MISMATCH.", []string{"STP-2"}, func(_ *driver, s *workerpb.Step) { s.After = proto.Uint64(1) }),
		fenceFault("after-zero", "A step on the opening, behind others, is CACHE_MISMATCH.", []string{"STP-2"}, func(_ *driver, s *workerpb.Step) { s.After = proto.Uint64(0) }),
		fenceFault("length-short", "A step that expects fewer tokens is CACHE_MISMATCH.", []string{"STP-3"}, func(_ *driver, s *workerpb.Step) { s.ExpectCache.Length = proto.Uint32(6) }),
		fenceFault("length-long", "A step that expects more tokens is CACHE_MISMATCH.", []string{"STP-3"}, func(_ *driver, s *workerpb.Step) { s.ExpectCache.Length = proto.Uint32(8) }),
		fenceFault("hash-wrong", "A step that expects other tokens is CACHE_MISMATCH.", []string{"STP-3", "CAC-1"}, func(_ *driver, s *workerpb.Step) { s.ExpectCache.ChainHash = make([]byte, 16) }),
		{ID: "fence.hash-right", Clauses: []string{"STP-3", "CAC-1"}, Says: "A step that expects the right hash runs.", Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(prefill(t.ids(4, 3)...))))
			d.result(d.put(d.step(somePrefill(t), func(s *workerpb.Step) {
				s.ExpectCache.ChainHash = chainHash(d.open.GetExpect().GetFingerprint(), d.tokens)
			})))
			d.finish()
		}},
		{ID: "fence.pipeline", Clauses: []string{"STP-8", "STP-9", "FLO-1"}, Says: "A window of steps sent at once is answered in order, each once, and all credit comes back.", Run: func(t *T) {
			d := t.openDriver()
			n := int(d.opened.GetWindow().GetSteps())
			ids := make([]uint64, n)
			for i := range ids {
				ids[i] = d.put(d.step(prefill(t.ids(2, uint32(i))...)))
			}
			for i, id := range ids {
				if got := d.result(id).GetCache().GetLength(); got != uint32(2*(i+1)) {
					t.Errorf("after step %d the cache has %d tokens", id, got)
				}
			}
			d.usable()
			d.finish()
			if d.steps != int64(n) && d.steps != 2*int64(n) { // it was used up, and may have grown
				t.Errorf("%d steps of credit are left of %d", d.steps, n)
			}
		}},
		{ID: "fence.predecessor-failed", Clauses: []string{"STP-2", "FEN-2", "STP-8"}, Skip: oneStep, Says: "Behind a step that fails, steps sent already fail with PREDECESSOR_FAILED and retry_after 0, and the next one that builds on the right step runs.", Run: predecessorFails},
		{ID: "fence.predecessor-retry", Clauses: []string{"STP-2"}, Says: "A step that failed for its predecessor succeeds when it is sent again behind the new last step.", Run: func(t *T) {
			d := t.openDriver()
			bad := d.give(d.step(prefill(t.vocab())))
			behind := d.step(somePrefill(t), func(s *workerpb.Step) { s.After = proto.Uint64(bad) })
			d.failed(bad, workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
			d.failed(d.give(behind), predecessor)
			d.result(d.put(d.step(somePrefill(t))))
			d.finish()
		}},
		{ID: "fence.cancel-queued", Clauses: []string{"FEN-3", "CAN-1", "STP-8"}, Skip: oneStep, Says: "CancelStep fails the queued steps of its range with CANCELLED; steps before it stand.", Run: cancelQueued},
		{ID: "fence.cancel-ahead", Clauses: []string{"FEN-3"}, Says: "A cancelled step that arrives later fails with CANCELLED and is not run; greater ids run.", Run: func(t *T) {
			d := t.openDriver()
			d.send(cancelStep(1, 2, true))
			d.failed(d.give(d.step(somePrefill(t))), workerpb.ErrorCode_ERROR_CODE_CANCELLED)
			d.failed(d.give(d.step(somePrefill(t))), workerpb.ErrorCode_ERROR_CODE_CANCELLED)
			d.result(d.put(d.step(somePrefill(t))))
			d.usable()
			d.finish()
		}},
		{ID: "fence.cancel-answered", Clauses: []string{"CAN-3", "FEN-3"}, Says: "CancelStep of an answered step does nothing and gets no reply.", Run: func(t *T) {
			d := t.openDriver()
			id := d.put(d.step(somePrefill(t)))
			d.result(id)
			d.send(cancelStep(id, id, true))
			d.silent("after the cancel of an answered step")
			d.usable()
			d.finish()
		}},
		{ID: "fence.context-exact", Clauses: []string{"STP-5", "OPN-10"}, Says: "The reserved context can be filled to its last token; one more is CONTEXT_OVERFLOW with the capacity, and the cache stays.", Run: fillContext},
		{ID: "fence.context-run-exact", Clauses: []string{"STP-5", "GEN-3"}, Says: "A Generate fits when its tokens and max_tokens − 1 do; with one token more it is CONTEXT_OVERFLOW.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.ContextTokens = 16 })
			d.failed(d.give(d.step(generate(16, t.ids(2, 1)))), workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW)
			if ids := d.run(15, t.ids(2, 1)); len(ids) != 15 || len(d.tokens) != 16 {
				t.Errorf("%d tokens came, %d are cached", len(ids), len(d.tokens))
			}
			d.finish()
		}},
		{ID: "fence.context-huge-run", Clauses: []string{"STP-5"}, Says: "max_tokens of 2³² − 1 is CONTEXT_OVERFLOW, not a sum that wraps around.", Run: func(t *T) {
			d := t.openDriver()
			d.failed(d.give(d.step(generate(1<<32-1, t.ids(2, 1)))), workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW)
			d.usable()
			d.finish()
		}},
	}
}

func predecessorFails(t *T) {
	d := t.openDriver()
	good := d.put(d.step(prefill(t.ids(3, 1)...)))
	bad := d.give(d.step(prefill(t.vocab())))
	var behind []uint64
	after := bad
	for i := range min(5, int(d.opened.GetWindow().GetSteps())-2) {
		s := d.step(prefill(t.ids(2, uint32(i))...), func(s *workerpb.Step) {
			s.After, s.ExpectCache.Length = proto.Uint64(after), proto.Uint32(uint32(4+2*i))
		})
		after = d.give(s)
		behind = append(behind, after)
	}
	d.result(good)
	d.failed(bad, workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
	for _, id := range behind {
		e := d.failed(id, predecessor)
		if e.GetRecovery() != workerpb.Recovery_RECOVERY_RETRY_SAME || e.GetRetryAfter().AsDuration() != 0 {
			t.Errorf("PREDECESSOR_FAILED has recovery %v and retry_after %v", e.GetRecovery(), e.GetRetryAfter())
		}
	}
	d.usable()
	d.finish()
}

func cancelQueued(t *T) {
	d := t.openDriver()
	tokens := t.ids(2, 1)
	run := d.put(d.step(generate(6, tokens)))
	var queued []uint64
	after := run
	for i := range min(4, int(d.opened.GetWindow().GetSteps())-1) {
		s := d.step(prefill(t.ids(1, uint32(i))...), func(s *workerpb.Step) { s.After, s.ExpectCache = proto.Uint64(after), nil })
		after = d.give(s)
		queued = append(queued, after)
	}
	d.send(cancelStep(queued[0], after, true))
	r := d.done(run)
	if r.failed != nil {
		t.Fatalf("the run before the cancelled range failed: %v", r.failed.GetError())
	}
	stood := 0
	for _, id := range queued { // what was answered before the cancel arrived stands
		q := d.done(id)
		if q.failed == nil {
			stood++
			continue
		}
		if code := q.failed.GetError().GetCode(); code != workerpb.ErrorCode_ERROR_CODE_CANCELLED && code != predecessor {
			t.Errorf("a cancelled step failed with %s", name(code))
		}
	}
	ids := sampled(r)
	d.tokens = append(slices.Clone(tokens), ids[:len(ids)-1]...)
	d.top = run
	for i := range stood {
		d.tokens = append(d.tokens, t.ids(1, uint32(i))...)
		d.top = queued[i]
	}
	d.usable()
	d.finish()
}

func fillContext(t *T) {
	n := uint32(24)
	d := t.openDriver(func(o *workerpb.Open) { o.ContextTokens = n })
	d.result(d.put(d.step(prefill(t.ids(int(n)-1, 2)...))))
	e := d.failed(d.give(d.step(prefill(t.ids(2, 3)...))), workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW)
	if c := e.GetDetail().GetCache(); c.GetLength() != n-1 || c.GetCapacity() < n {
		t.Errorf("the detail says %v", c)
	}
	d.result(d.put(d.step(prefill(t.ids(1, 3)...))))
	d.failed(d.give(d.step(prefill(t.ids(1, 3)...))), workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW)
	d.finish()
}

// anyLength is a Case.Skip for routes that cannot go back wherever a case wants to.
func anyLength(t *Target) string {
	for _, h := range t.Hops {
		if h.Is.GetCache().GetTruncate() != workerpb.TruncateAbility_TRUNCATE_ABILITY_ANY {
			return "a cache of the route cannot go back to any length"
		}
	}
	return ""
}

// cacheCases are about going back.
func cacheCases() []Case {
	var cases []Case
	for _, to := range []uint32{0, 1, 5, 9} {
		cases = append(cases, Case{ID: label("cache.truncate.%d-of-10", to), Clauses: []string{"CAC-4", "FEN-5", "CAC-2"}, Skip: anyLength,
			Says: label("After Truncate from 10 to %d tokens the cache is that prefix, and the same steps give the same logits as before.", to), Run: func(t *T) { truncateTo(t, to) }})
	}
	return append(cases,
		Case{ID: "cache.truncate.present", Clauses: []string{"FEN-5"}, Says: "Truncate to the present length does nothing and succeeds.", Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(prefill(t.ids(5, 1)...))))
			d.result(d.put(d.step(truncate(5))))
			d.usable()
			d.finish()
		}},
		Case{ID: "cache.truncate.beyond", Clauses: []string{"FEN-5"}, Says: "Truncate to more than the present length does nothing and succeeds.", Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(prefill(t.ids(5, 1)...))))
			d.result(d.put(d.step(truncate(1 << 31))))
			d.usable()
			d.finish()
		}},
		Case{ID: "cache.truncate.empty", Clauses: []string{"FEN-5"}, Says: "Truncate of an empty cache to 0 succeeds.", Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(truncate(0))))
			d.usable()
			d.finish()
		}},
		Case{ID: "cache.truncate.in-flight", Clauses: []string{"FEN-4"}, Skip: anyLength, Says: "A Truncate sent behind steps waits for them; a step behind it runs on what is left.", Run: func(t *T) {
			d := t.openDriver()
			a := d.put(d.step(prefill(t.ids(6, 1)...)))
			b := d.put(d.step(truncate(4)))
			c := d.put(d.step(prefill(t.ids(3, 2)...)))
			d.result(a)
			if n := d.result(b).GetCache().GetLength(); n != 4 {
				t.Errorf("after Truncate to 4 the cache has %d tokens", n)
			}
			d.result(c)
			d.finish()
		}},
		Case{ID: "cache.truncate.timing", Clauses: []string{"STP-14"}, Says: "StepResult has a timing for every hop, with the rows of its calls.", Run: func(t *T) {
			d := t.openDriver()
			r := d.result(d.put(d.step(prefill(t.ids(6, 1)...))))
			if len(r.GetTiming()) != len(t.Hops) {
				t.Fatalf("%d timings, %d hops", len(r.GetTiming()), len(t.Hops))
			}
			for i, h := range r.GetTiming() {
				if h.Hop == nil || h.GetHop() != uint32(i) || len(h.GetShapes()) == 0 || h.GetShapes()[0] != 6 {
					t.Errorf("hop %d has the timing %v", i, h)
				}
			}
			d.finish()
		}},
		Case{ID: "cache.reach-any", Clauses: []string{"CAC-5", "CAC-3"}, Skip: anyLength, Says: "With truncate ANY the reach holds every length up to the present one.", Run: func(t *T) {
			d := t.openDriver()
			r := d.result(d.put(d.step(prefill(t.ids(9, 1)...))))
			if spans := r.GetCache().GetReach(); len(spans) != 1 || spans[0].GetTo() < 9 {
				t.Errorf("the reach of 9 tokens is %v", spans)
			}
			d.finish()
		}},
		Case{ID: "cache.reach-outside", Clauses: []string{"FEN-5"}, Says: "Truncate to a length outside the reach is CACHE_MISMATCH and changes nothing.", Skip: func(t *Target) string {
			if anyLength(t) == "" {
				return "the caches of this route reach every length"
			}
			return ""
		}, Run: outsideReach},
		Case{ID: "cache.isolation", Clauses: []string{"CAN-2", "FEN-7"}, Says: "Two sessions with different tokens do not see each other's cache.", Run: func(t *T) {
			a, b := t.openDriver(), t.openDriver()
			for i := range 3 {
				a.result(a.put(a.step(prefill(t.ids(3, uint32(i))...))))
				b.result(b.put(b.step(prefill(t.ids(4, uint32(10+i))...))))
			}
			a.finish()
			b.usable()
			b.finish()
		}})
}

func truncateTo(t *T, to uint32) {
	d := t.openDriver()
	tokens := t.ids(10, 5)
	for _, token := range tokens { // one a step, so that the shapes are the same later
		d.result(d.put(d.step(prefill(token))))
	}
	ask := func() []byte {
		return d.logits(d.put(d.step(decode(workerpb.Want_WANT_LOGITS_LAST, t.ids(1, 77)...))))
	}
	before := ask()
	if got := d.result(d.put(d.step(truncate(to)))).GetCache().GetLength(); got != to {
		t.Errorf("Truncate to %d left %d tokens", to, got)
	}
	for _, token := range tokens[to:] {
		d.result(d.put(d.step(prefill(token))))
	}
	if !bytes.Equal(before, ask()) {
		t.Errorf("after going back to %d and on the same tokens give other logits", to)
	}
	d.finish()
}

func outsideReach(t *T) {
	d := t.openDriver()
	for i := range 20 {
		r := d.result(d.put(d.step(prefill(t.ids(4, uint32(i))...))))
		reach := r.GetCache().GetReach()
		for length := uint32(1); length < uint32(len(d.tokens)); length++ {
			if !slices.ContainsFunc(reach, func(s *workerpb.LengthSpan) bool { return s.GetFrom() <= length && length <= s.GetTo() }) {
				d.failed(d.give(d.step(truncate(length))), mismatch)
				d.usable()
				d.finish()
				return
			}
		}
	}
	t.Errorf("every length up to 80 is within the reach, though the cache says that it cannot go back to any")
}

// cancelCases are about steps that run.
func cancelCases() []Case {
	return []Case{
		{ID: "cancel.keep", Clauses: []string{"GEN-7"}, Says: "undo false ends a run between iterations: CANCELLED, whole iterations kept, and every token told.", Run: cancelKeep},
		{ID: "cancel.undo", Clauses: []string{"GEN-7", "STP-10", "CAN-1", "MRK-1"}, Says: "undo true takes a run back to its start on every hop.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(2) }) // so that it waits
			d.result(d.put(d.step(prefill(t.ids(4, 1)...))))
			id := d.give(d.step(generate(8, t.ids(2, 2))))
			for len(d.of(id).tokens) < 2 {
				if !d.take() {
					t.Fatalf("the stream ended: %v", d.end)
				}
			}
			d.send(cancelStep(id, id, true))
			r := d.done(id)
			if r.failed == nil {
				t.Fatalf("the run ended with %v, though it had room for two tokens", r.result.GetFinish())
			}
			d.failed(id, workerpb.ErrorCode_ERROR_CODE_CANCELLED)
			d.holds(r.failed.GetCache(), d.tokens)
			d.usable()
			d.finish()
		}},
		{ID: "cancel.keep-then-truncate", Clauses: []string{"GEN-7", "CAC-2"}, Skip: anyLength, Says: "Behind a run that was stopped, Truncate to what the client was given leaves exactly that.", Run: func(t *T) {
			d := t.openDriver()
			tokens := t.ids(3, 2)
			id := d.put(d.step(generate(t.room(d)-4, tokens)))
			for len(d.of(id).tokens) < 3 {
				if !d.take() {
					t.Fatalf("the stream ended: %v", d.end)
				}
			}
			given := sampled(d.of(id))[:2]
			d.send(cancelStep(id, id, false))
			cut := d.give(d.step(truncate(uint32(len(tokens)+2)), func(s *workerpb.Step) { s.ExpectCache = nil }))
			if r := d.done(id); r.failed != nil {
				t.Fatalf("the run failed: %v", r.failed.GetError())
			}
			d.tokens = append(slices.Clone(tokens), given...)
			d.top = cut
			d.result(cut)
			d.usable()
			d.finish()
		}},
		{ID: "cancel.other-session", Clauses: []string{"CAN-2"}, Says: "Cancelling a run does not change what another session is given.", Run: func(t *T) {
			alone := t.openDriver()
			want := alone.run(12, t.ids(3, 4))
			alone.finish()
			a, b := t.openDriver(), t.openDriver()
			id := a.give(a.step(generate(t.room(a)-2, t.ids(2, 9))))
			other := b.put(b.step(generate(12, t.ids(3, 4))))
			a.send(cancelStep(id, id, true))
			r := b.done(other)
			if r.failed != nil {
				t.Fatalf("the other session's run failed: %v", r.failed.GetError())
			}
			if deterministic(t.Target) && !slices.Equal(sampled(r), want) {
				t.Errorf("the other session got %v, alone it gets %v", sampled(r), want)
			}
			a.done(id)
			a.finish()
			b.finish()
		}},
		{ID: "cancel.before-its-turn", Clauses: []string{"CAN-1", "TIM-1"}, Skip: oneStep, Says: "A step that was cancelled while it waited is never computed.", Run: func(t *T) {
			d := t.openDriver()
			run := d.put(d.step(generate(20, t.ids(2, 2))))
			waiting := d.give(d.step(prefill(t.ids(30, 3)...), func(s *workerpb.Step) { s.ExpectCache = nil }))
			d.send(cancelStep(waiting, waiting, true))
			d.done(run)
			if r := d.done(waiting); r.failed == nil {
				t.Fatalf("the waiting step was run before the cancel came; the target is too fast for this case")
			}
			if used := d.finish().GetUsage().GetTokensEvaluated(); used >= 2+19+30 {
				t.Errorf("%d tokens were evaluated, 21 is the run", used)
			}
		}},
	}
}

// deterministic says whether every hop computes one session a call, so that others cannot change bits.
func deterministic(t *Target) bool {
	return !slices.ContainsFunc(t.Hops, func(h *Hop) bool { return !h.Is.GetNumerics().GetDeterministic() })
}

func cancelKeep(t *T) {
	d := t.openDriver()
	tokens := t.ids(3, 2)
	id := d.put(d.step(generate(t.room(d)-2, tokens)))
	for len(d.of(id).tokens) < 2 {
		if !d.take() {
			t.Fatalf("the stream ended: %v", d.end)
		}
	}
	d.send(cancelStep(id, id, false))
	r := d.done(id)
	if r.failed != nil {
		t.Fatalf("the run failed: %v", r.failed.GetError())
	}
	ids := sampled(r)
	if r.result.GetFinish() != workerpb.Finish_FINISH_CANCELLED {
		t.Errorf("the run of %d ended with %v after %d tokens", t.room(d)-2, r.result.GetFinish(), len(ids))
	}
	if got := r.result.GetSampled(); got != uint32(len(ids)) {
		t.Errorf("the result counts %d tokens, %d came", got, len(ids))
	}
	all := append(slices.Clone(tokens), ids...)
	n := r.result.GetCache().GetLength()
	if n > uint32(len(all)) || n < uint32(len(tokens)) {
		t.Fatalf("the cache has %d tokens of %d sent and told", n, len(all))
	}
	d.tokens = all[:n]
	d.holds(r.result.GetCache(), d.tokens)
	d.usable()
	d.finish()
}

// timeCases are about budgets.
func timeCases() []Case {
	const late = workerpb.ErrorCode_ERROR_CODE_DEADLINE_EXCEEDED
	return []Case{
		{ID: "time.expired-in-queue", Clauses: []string{"TIM-1", "TIM-2"}, Skip: oneStep, Says: "A step whose budget is over before its turn fails with DEADLINE_EXCEEDED, names a hop, and is not computed.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(1) })
			run := d.put(d.step(generate(8, t.ids(2, 1)))) // it waits for room after its first token
			s := d.step(prefill(t.ids(40, 2)...), func(s *workerpb.Step) {
				s.ExpectCache, s.Budget = nil, durationpb.New(50*time.Millisecond)
			})
			waiting := d.give(s)
			e := d.failed(waiting, late)
			if e.GetSubject() == nil {
				t.Errorf("DEADLINE_EXCEEDED names no hop")
			}
			d.send(receiveCredit(16, 0))
			d.done(run)
			if used := d.finish().GetUsage().GetTokensEvaluated(); used >= 40 {
				t.Errorf("%d tokens were evaluated, the step that was late has 40", used)
			}
		}},
		{ID: "time.run-budget", Clauses: []string{"TIM-2", "GEN-1", "STP-10"}, Says: "A run whose budget is over is undone and fails with DEADLINE_EXCEEDED.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.ContextTokens = t.head().Is.GetShard().GetContextLimit() })
			s := d.step(generate(d.open.GetContextTokens()-2, t.ids(2, 1)), func(s *workerpb.Step) { s.Budget = durationpb.New(time.Millisecond) })
			id := d.give(s)
			r := d.done(id)
			if r.failed == nil {
				t.Fatalf("a run of %d tokens took less than 1 ms", len(r.tokens))
			}
			d.failed(id, late)
			d.holds(r.failed.GetCache(), nil)
			d.usable()
			d.finish()
		}},
		{ID: "time.open-budget-passes", Clauses: []string{"OPN-17"}, Says: "An Open with ample budget is served well within it.", Run: func(t *T) {
			began := time.Now()
			t.openDriver(func(o *workerpb.Open) { o.Budget = durationpb.New(20 * time.Second) }).finish()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		}},
	}
}
