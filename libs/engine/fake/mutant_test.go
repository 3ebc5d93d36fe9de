package fake_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/enginetest"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

var mutant = flag.String("mutant", "", "run the suite on the engine with this defect, for TestSuiteFindsEveryDefect")

// broken is a fake with one defect.
type broken struct {
	engine.ShardEngine
	defect   string
	opened   bool
	sessions map[engine.SessionID]engine.Step
}

// defects maps each to a case that must find it.
var defects = map[string]string{
	"opens_twice":             "open/twice",
	"loses_a_release":         "lasting/many_sessions_leave_nothing",
	"blames_the_first":        "batches/each_bad_step_has_its_own_error_in_its_place",
	"ignores_deadlines":       "cancelling/deadline_passes_on_the_way",
	"keeps_cache_of_failure":  "batches/start_too_small",
	"drops_row_order":         "parity/two_shards_every_cut",
	"swaps_results":           "batches/results_in_the_order_of_steps",
	"lies_about_reach":        "going_back/every_step_boundary_within_reach_is_exact",
	"truncates_too_far":       "going_back/every_step_boundary_within_reach_is_exact",
	"ignores_cancel":          "cancelling/all_of_a_batch",
	"plain_error":             "lifecycle/new_refuses_all_but_load",
	"keeps_tokens":            "ownership/tokens_and_boundary_may_be_changed_after_the_call",
	"samples_at_random":       "sampling/a_function_of_seed_tokens_and_position",
	"wrong_logprob":           "sampling/logprob_and_alternatives",
	"takes_reserved_fields":   "reserved/auxiliary_state",
	"forgets_ready":           "load/progress_is_in_order",
	"leaks_goroutine":         "goroutines are left",
	"metrics_fall":            "observing/metrics_count_and_never_fall",
	"notices_no_nan":          "batches/boundary_nan",
	"accepts_work_when_close": "closing/while_a_batch_runs",
}

// TestMutant is run by TestSuiteFindsEveryDefect alone.
func TestMutant(t *testing.T) {
	if *mutant == "" {
		t.Skip("no -mutant is asked for")
	}
	small := target(t, fake.Default())
	small.Churn = 300
	enginetest.Run(t, small.With(func(f engine.Factory) engine.Factory {
		return func() (engine.ShardEngine, engine.TextEngine, error) {
			e, text, err := f()
			return &broken{ShardEngine: e, defect: *mutant, sessions: map[engine.SessionID]engine.Step{}}, text, err
		}
	}))
}

// TestSuiteFindsEveryDefect runs the suite in a process of its own on an engine with one defect: it must fail, and where the
// defect is.
func TestSuiteFindsEveryDefect(t *testing.T) {
	if *mutant != "" {
		t.Skip("a mutant runs")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for defect, found := range defects {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), self, "-test.run=^TestMutant$", "-test.timeout=2m", "-mutant="+defect).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("the suite passes an engine with this defect (%v)", err)
			}
			if !strings.Contains(string(out), found) || strings.Contains(string(out), "panic:") {
				t.Errorf("the suite fails elsewhere than at %s:\n%s", found, out)
			}
		})
	}
}

func (b *broken) Load(ctx context.Context, req engine.LoadRequest, progress func(engine.LoadProgress)) (engine.ShardInfo, error) {
	if b.defect == "leaks_goroutine" {
		go func() { select {} }()
	}
	if b.defect == "forgets_ready" && progress != nil {
		report := progress
		progress = func(p engine.LoadProgress) {
			if p.Phase != engine.LoadReady {
				report(p)
			}
		}
	}
	return b.ShardEngine.Load(ctx, req, progress)
}

func (b *broken) Open(ctx context.Context, session engine.SessionID, contextTokens uint32) error {
	err := b.ShardEngine.Open(ctx, session, contextTokens)
	switch {
	case b.defect == "opens_twice" && errors.Is(err, engine.LifecycleViolation) && b.Capabilities().Shard != nil:
		return nil
	case b.defect == "plain_error" && err != nil:
		return errors.New("it went wrong")
	}
	return err
}

func (b *broken) Release(ctx context.Context, session engine.SessionID) error {
	if b.defect == "loses_a_release" && session[15] == 250 {
		return nil
	}
	return b.ShardEngine.Release(ctx, session)
}

func (b *broken) Cancel(session engine.SessionID) {
	if b.defect != "ignores_cancel" {
		b.ShardEngine.Cancel(session)
	}
}

func (b *broken) Metrics() engine.Metrics {
	m := b.ShardEngine.Metrics()
	if b.defect == "metrics_fall" && m.Rows > 5 {
		m.Rows = 5
	}
	return m
}

func (b *broken) Close() error {
	if b.defect == "accepts_work_when_close" && b.Capabilities().Shard != nil && !b.opened {
		b.opened = true
		return nil
	}
	return b.ShardEngine.Close()
}

func (b *broken) Truncate(ctx context.Context, session engine.SessionID, length engine.Pos) (engine.CacheState, error) {
	if b.defect == "truncates_too_far" && length > 1 && length < 1<<30 {
		if state, err := b.ShardEngine.Truncate(ctx, session, length-1); err != nil {
			return state, err
		}
		_, _ = b.ShardEngine.Step(ctx, []engine.Step{{Session: session, Start: length - 1, Tokens: []engine.TokenID{0}}})
	}
	state, err := b.ShardEngine.Truncate(ctx, session, length)
	if b.defect == "lies_about_reach" && length >= state.Length && state.Length > 0 {
		state.Reach = []engine.Span{{From: 0, To: 0}}
	}
	return state, err
}

func (b *broken) Step(ctx context.Context, batch []engine.Step) ([]engine.StepResult, error) {
	own := append([]engine.Step(nil), batch...)
	for i := range own {
		b.spoil(ctx, &own[i])
	}
	if b.defect == "ignores_deadlines" {
		ctx = context.WithoutCancel(ctx)
	}
	results, err := b.ShardEngine.Step(ctx, own)
	if b.defect == "blames_the_first" {
		var first error
		for i := range results {
			if first = cmp.Or(first, results[i].Err); results[i].Err != nil {
				results[i].Err = first
			}
		}
	}
	for i := range results {
		b.spoilResult(&results[i])
	}
	if b.defect == "swaps_results" && len(results) == 2 {
		results[0], results[1] = results[1], results[0]
	}
	return results, err
}

// spoil changes a step on its way in.
func (b *broken) spoil(ctx context.Context, step *engine.Step) {
	switch b.defect {
	case "takes_reserved_fields":
		step.Auxiliary = nil
	case "notices_no_nan":
		for i := range step.Boundary.Data {
			if i%4 == 3 && step.Boundary.Data[i]&0x7f == 0x7f {
				step.Boundary.Data = append([]byte(nil), step.Boundary.Data...)
				step.Boundary.Data[i] = 0
			}
		}
	case "samples_at_random":
		if step.Sampling != nil {
			sampling := *step.Sampling
			sampling.Seed += b.Metrics().Rows
			step.Sampling = &sampling
		}
	case "keeps_cache_of_failure":
		if step.Start == 2 && len(step.Tokens) == 2 {
			_, _ = b.ShardEngine.Step(ctx, []engine.Step{{Session: step.Session, Start: 3, Tokens: []engine.TokenID{1}}})
		}
	case "keeps_tokens": // it looks at the last step's slices again, as if it evaluated late
		if last, ok := b.sessions[step.Session]; ok && len(last.Boundary.Data) > 0 {
			_, _ = b.ShardEngine.Truncate(ctx, step.Session, last.Start)
			_, _ = b.ShardEngine.Step(ctx, []engine.Step{last})
		}
		b.sessions[step.Session] = *step
	}
}

// spoilResult changes a result on its way out.
func (b *broken) spoilResult(result *engine.StepResult) {
	switch {
	case b.defect == "drops_row_order" && result.Boundary.N > 1:
		row := int(4 * result.Boundary.Width)
		first := append([]byte(nil), result.Boundary.Data[:row]...)
		copy(result.Boundary.Data, result.Boundary.Data[row:2*row])
		copy(result.Boundary.Data[row:], first)
	case b.defect == "wrong_logprob" && result.Sample != nil:
		result.Sample.Logprob /= 2
	}
}
