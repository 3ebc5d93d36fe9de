package batch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/batch"
)

// These tests run in virtual time: a native call takes what timed says, and nothing else takes any.

// timed is the fake with the time of a processor that is bound by compute: a call has a price of its own, and rows come in
// fours.
type timed struct {
	engine.ShardEngine
	calls []call // owned by the goroutine that calls the engine; read when that is at rest
}

type call struct {
	at    time.Time
	took  time.Duration
	steps []engine.Step
}

func price(rows int) time.Duration {
	return 5*time.Millisecond + time.Duration((rows+3)/4)*8*time.Millisecond
}

func (e *timed) Step(ctx context.Context, steps []engine.Step) ([]engine.StepResult, error) {
	rows := 0
	for _, s := range steps {
		rows += len(s.Tokens)
	}
	c := call{at: time.Now(), steps: slices.Clone(steps)}
	select {
	case <-time.After(price(rows)):
	case <-ctx.Done():
	}
	c.took = time.Since(c.at)
	e.calls = append(e.calls, c)
	return e.ShardEngine.Step(ctx, steps)
}

const sessionsMost = 12

func newTimed(t *testing.T) *timed {
	t.Helper()
	e, _, err := fake.Factory(fake.Default())()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Load(t.Context(), engine.LoadRequest{
		ContextLimit: 4096, Sessions: sessionsMost, BatchTokens: 256, MicroBatch: 256, Threads: 1, CacheType: "f32",
	}, nil); err != nil {
		t.Fatal(err)
	}
	return &timed{ShardEngine: e}
}

// plan is what one session does: steps of so many tokens, one behind the other, each begun a while after the last ended.
type plan struct {
	start time.Duration
	steps []int
	pause []time.Duration
}

// workload draws sessions that prefill and decode.
func workload(r *rand.Rand) []plan {
	plans := make([]plan, 1+r.IntN(sessionsMost))
	for i := range plans {
		p := &plans[i]
		p.start = time.Duration(r.IntN(200)) * time.Millisecond
		for range 1 + r.IntN(3) {
			p.steps = append(p.steps, 9+r.IntN(200))
			for range r.IntN(30) {
				p.steps = append(p.steps, 1)
			}
		}
		for range p.steps {
			pause := time.Duration(0)
			if r.IntN(8) == 0 {
				pause = time.Duration(r.IntN(100)) * time.Millisecond
			}
			p.pause = append(p.pause, pause)
		}
	}
	return plans
}

func (p plan) tokens(session, step int) []engine.TokenID {
	ids := make([]engine.TokenID, p.steps[step])
	for i := range ids {
		ids[i] = engine.TokenID((session*7 + step*13 + i*3) % 40)
	}
	return ids
}

// outcome is what a step gave, and when.
type outcome struct {
	logits    []byte
	length    engine.Pos
	submitted time.Time
	done      time.Time
}

// reference is the scheduler that cannot be wrong: one step a call, in order of arrival. It returns what each step gave
// and how long all took.
func reference(t *testing.T, plans []plan) ([][]outcome, time.Duration) {
	e := newTimed(t)
	defer e.Close()
	out := make([][]outcome, len(plans))
	began := time.Now()
	type arrival struct {
		session, step int
		at            time.Time
	}
	var queue []arrival
	for i, p := range plans {
		if err := e.Open(t.Context(), id(byte(i+1)), 4096); err != nil {
			t.Fatal(err)
		}
		queue = append(queue, arrival{i, 0, began.Add(p.start + p.pause[0])})
	}
	lengths := make([]engine.Pos, len(plans))
	for len(queue) > 0 {
		slices.SortStableFunc(queue, func(a, b arrival) int { return a.at.Compare(b.at) })
		next := queue[0]
		queue = queue[1:]
		time.Sleep(time.Until(next.at))
		p := plans[next.session]
		results, err := e.Step(t.Context(), []engine.Step{{
			Session: id(byte(next.session + 1)), Start: lengths[next.session], Tokens: p.tokens(next.session, next.step), Want: engine.WantLogitsLast,
		}})
		if err != nil || results[0].Err != nil {
			t.Fatal(err, results)
		}
		lengths[next.session] = results[0].Cache.Length
		out[next.session] = append(out[next.session], outcome{results[0].Logits.Data, results[0].Cache.Length, next.at, time.Now()})
		if step := next.step + 1; step < len(p.steps) {
			queue = append(queue, arrival{next.session, step, time.Now().Add(p.pause[step])})
		}
	}
	return out, time.Since(began)
}

// scheduled runs the plans on the scheduler, each session in a goroutine of its own.
func scheduled(t *testing.T, plans []plan, o batch.Options) ([][]outcome, time.Duration, *timed) {
	e := newTimed(t)
	defer e.Close()
	o.Tokens, o.Limit = 256, 1000
	s := batch.New(e, o)
	out := make([][]outcome, len(plans))
	began := time.Now()
	done := make(chan error, len(plans))
	for i, p := range plans {
		go func() { done <- p.run(s, i, &out[i]) }()
	}
	for range plans {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	took := time.Since(began)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return out, took, e
}

// run is one session's life.
func (p plan) run(s *batch.Scheduler, session int, out *[]outcome) error {
	came := make(chan batch.Outcome, 1)
	do := func(j *batch.Job) (batch.Outcome, error) {
		j.Session, j.Done = id(byte(session+1)), func(o batch.Outcome) { came <- o }
		if err := s.Submit(j); err != nil {
			return batch.Outcome{}, err
		}
		o := <-came
		return o, o.Err
	}
	if _, err := do(&batch.Job{Kind: batch.Open, Context: 4096}); err != nil {
		return err
	}
	time.Sleep(p.start)
	at := engine.Pos(0)
	for step := range p.steps {
		time.Sleep(p.pause[step])
		submitted := time.Now()
		o, err := do(&batch.Job{Kind: batch.Step, Step: engine.Step{
			Session: id(byte(session + 1)), Start: at, Tokens: p.tokens(session, step), Want: engine.WantLogitsLast,
		}})
		if err != nil || o.Result.Err != nil {
			return fmt.Errorf("session %d, step %d: %v, %v", session, step, err, o.Result.Err)
		}
		at = o.Result.Cache.Length
		*out = append(*out, outcome{o.Result.Logits.Data, at, submitted, time.Now()})
	}
	return nil
}

// Whatever is packed with whatever: each step gives what it gives alone, no session waits longer than its fair turn, and
// all are done sooner than one after another.
func TestAsTheReferenceAndSooner(t *testing.T) {
	var packed, single time.Duration
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			plans := workload(rand.New(rand.NewPCG(seed, 1)))
			want, alone := reference(t, plans)
			for _, o := range []batch.Options{{}, {Deterministic: true}} {
				got, took, e := scheduled(t, plans, o)
				for i := range plans {
					same := slices.EqualFunc(got[i], want[i], func(a, b outcome) bool { return slices.Equal(a.logits, b.logits) && a.length == b.length })
					if !same {
						t.Fatalf("seed %d, session %d: its steps do not give what the reference gives", seed, i)
					}
				}
				if took > alone+alone/32 { // what calls may wait for more
					t.Errorf("seed %d, %+v: it took %v, one after another %v", seed, o, took, alone)
				}
				if !o.Deterministic {
					packed, single = packed+took, single+alone
				}
				checkCalls(t, seed, o, e.calls)
				checkTurns(t, seed, got, e.calls)
			}
		})
	}
	if packed > single*85/100 {
		t.Errorf("all took %v, one after another %v: little is packed", packed, single)
	}
	t.Logf("all took %v, one after another %v", packed, single)
}

// checkCalls looks at each native call by itself.
func checkCalls(t *testing.T, seed uint64, o batch.Options, calls []call) {
	t.Helper()
	for _, c := range calls {
		seen := map[engine.SessionID]bool{}
		rows, decodes := 0, 0
		for _, s := range c.steps {
			if seen[s.Session] {
				t.Errorf("seed %d: a session stands twice in a call", seed)
			}
			seen[s.Session] = true
			rows += len(s.Tokens)
			if len(s.Tokens) <= 8 {
				decodes++
			}
		}
		if rows > 256 || decodes != 0 && decodes != len(c.steps) || o.Deterministic && len(c.steps) > 1 {
			t.Errorf("seed %d, %+v: a call of %d rows in %d steps, %d of them decodes", seed, o, rows, len(c.steps), decodes)
		}
	}
}

// checkTurns: while a step waits, no other session has more than two turns with steps of its kind (in the call that ran
// when it came, and in one ahead of it), and calls of the other kind come no more often than those of its own.
func checkTurns(t *testing.T, seed uint64, got [][]outcome, calls []call) {
	t.Helper()
	prefill := func(c call) bool { return len(c.steps[0].Tokens) > 8 }
	for i, steps := range got {
		for n, s := range steps {
			kinds := map[bool]int{}
			turns := map[engine.SessionID]int{}
			mine := false
			var waited []call
			for _, c := range calls {
				if !c.at.Add(c.took).After(s.submitted) || !c.at.Before(s.done) {
					continue
				}
				if slices.ContainsFunc(c.steps, func(x engine.Step) bool { return x.Session == id(byte(i+1)) }) {
					mine = prefill(c)
				}
				waited = append(waited, c)
			}
			for _, c := range waited {
				kinds[prefill(c) == mine]++
				for _, other := range c.steps {
					if prefill(c) == mine {
						turns[other.Session]++
					}
				}
			}
			if kinds[false] > kinds[true]+1 {
				t.Errorf("seed %d, session %d, step %d: %d calls of the other kind and %d of its own while it waited", seed, i, n, kinds[false], kinds[true])
			}
			for other, count := range turns {
				if count > 2 {
					t.Errorf("seed %d, session %d, step %d: session %d had %d turns while it waited", seed, i, n, other[0], count)
				}
			}
		}
	}
}

// Sessions that all decode through two hops, of which this is the first, are divided: the other hop has a group to work on.
func TestSessionsAreDividedAmongTheHops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions, hops, rounds = 8, 2, 40
		e := newTimed(t)
		defer e.Close()
		s := batch.New(e, batch.Options{Tokens: 256, Limit: 1000})
		tail := newTimed(t)
		defer tail.Close()
		below := batch.New(tail, batch.Options{Tokens: 256, Limit: 1000})
		done := make(chan error, sessions)
		began := time.Now()
		for i := range sessions {
			go func() { done <- relay(s, below, i, hops, rounds) }()
		}
		for range sessions {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		took := time.Since(began)
		for _, x := range []*batch.Scheduler{s, below} {
			if err := x.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		// Two groups of four keep both hops busy: a round costs one call of four on each hop, and both work at once.
		// In one group each hop would wait for the other: a call of eight on one, then on the other.
		divided, together := rounds*2*price(4), rounds*2*price(8)
		if took > divided*5/4 {
			t.Errorf("%d rounds took %v; divided they take %v, together %v", rounds, took, divided, together)
		}
		if calls := len(e.calls); calls > rounds*hops*5/4 {
			t.Errorf("%d rounds of %d sessions took %d calls; two groups take %d", rounds, sessions, calls, rounds*hops)
		}
	})
}

// relay decodes a session through two hops, again and again.
func relay(head, tail *batch.Scheduler, session, hops, rounds int) error {
	came := make(chan batch.Outcome, 1)
	do := func(s *batch.Scheduler, j *batch.Job) error {
		j.Session, j.Done = id(byte(session+1)), func(o batch.Outcome) { came <- o }
		if err := s.Submit(j); err != nil {
			return err
		}
		o := <-came
		if o.Err != nil {
			return o.Err
		}
		return o.Result.Err
	}
	for _, s := range []*batch.Scheduler{head, tail} {
		if err := do(s, &batch.Job{Kind: batch.Open, Context: 4096}); err != nil {
			return err
		}
	}
	for n := range rounds {
		step := engine.Step{Session: id(byte(session + 1)), Start: engine.Pos(n), Tokens: []engine.TokenID{1}}
		if err := do(head, &batch.Job{Kind: batch.Step, Step: step, Hops: hops}); err != nil {
			return err
		}
		if err := do(tail, &batch.Job{Kind: batch.Step, Step: step}); err != nil {
			return err
		}
	}
	return nil
}

// A chunk is what fits the time of a call, as measured, and as much as can be where nothing was or must not matter.
func TestChunkFollowsWhatWasMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			o           batch.Options
			before, now int
		}{
			{batch.Options{}, 256, 107}, // 100 rows take 205 ms
			{batch.Options{Time: 20 * time.Millisecond}, 256, 64},
			{batch.Options{Time: time.Minute}, 256, 256},
			{batch.Options{Deterministic: true}, 256, 256},
		} {
			e := newTimed(t)
			c.o.Tokens, c.o.Limit = 256, 10
			s := batch.New(e, c.o)
			if got := s.Chunk(); got != c.before {
				t.Errorf("%+v: a chunk of %d before anything ran, want %d", c.o, got, c.before)
			}
			var out []outcome
			p := plan{steps: []int{100}, pause: []time.Duration{0}}
			if err := p.run(s, 0, &out); err != nil {
				t.Fatal(err)
			}
			got := s.Chunk()
			if c.now == 107 {
				c.now = int(100 / price(100).Seconds() * 0.25)
			}
			if got != c.now {
				t.Errorf("%+v: a chunk of %d, want %d", c.o, got, c.now)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
			e.Close()
		}
	})
}
