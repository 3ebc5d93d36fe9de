package conformance_test

import (
	"bufio"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
)

var transition = regexp.MustCompile(`^dgr_worker_transitions_total\{event="(\w+)",state="(\w+)",table="(\w+)"\} \d`)

// metOf are the pairs of the lifecycle tables, as `session ACTIVE Step`, that workers have met since they started.
func metOf(t *testing.T, met map[string]bool, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		admin, _ := admins.Load(address)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%v/metrics", admin), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() {
			if m := transition.FindStringSubmatch(lines.Text()); m != nil {
				met[m[3]+" "+m[2]+" "+m[1]] = true
			}
		}
		answer.Body.Close()
	}
}

// possible are the pairs of all tables that are not called impossible.
func possible() []string {
	var all []string
	add := func(o tables.Outcome, pair string) {
		if o != tables.OutcomeImpossible {
			all = append(all, pair)
		}
	}
	for _, s := range tables.SessionStates() {
		for _, e := range tables.SessionEvents() {
			add(tables.SessionTransition(s, e).Outcome, fmt.Sprintf("session %v %v", s, e))
		}
	}
	for _, s := range tables.StepStates() {
		for _, e := range tables.StepEvents() {
			add(tables.StepTransition(s, e).Outcome, fmt.Sprintf("step %v %v", s, e))
		}
	}
	for _, s := range tables.ShardStates() {
		for _, e := range tables.ShardEvents() {
			add(tables.ShardTransition(s, e).Outcome, fmt.Sprintf("shard %v %v", s, e))
		}
	}
	return all
}

// unmet are the possible pairs that the tables have and nobody met, and those that were met and are impossible.
func unmet(met map[string]bool) (missing, broken []string) {
	for _, pair := range possible() {
		if !met[pair] {
			missing = append(missing, pair)
		}
	}
	for pair := range met {
		if !slices.Contains(possible(), pair) {
			broken = append(broken, pair)
		}
	}
	return missing, broken
}

// unseen are possible pairs that no caller can bring about by itself, each with the reason. All of them are tried on the machines
// alone, in services/worker/internal/session and shard.
var unseen = []struct {
	pairs  string // a pattern
	reason string
}{
	{`session CLOSED \w+`, "a closed session is forgotten: only what was under way when it closed still comes"},
	{`session \w+ (IdleTimeout)`, "the idle bound of these workers is minutes; another one of this file has one of a second"},
	{`session NONE (CancelStepAnswered|Violation)`, "a stream without Open is refused by its first message's kind, or before a table is asked"},
	{`session OPENING CancelStepUnanswered`, "there is no step before Opened"},
	{`session (CLOSING|LINGERING) (StepDone|StepFailedHere|Unwound)`, "the engine ends a call for a session that has no use for it any more: chance"},
	{`session CLOSING (StepFailedDownstreamAnswered|StepFailedDownstreamUnanswered|CancelStepUnanswered)`, "no step is left of a session that closes"},
	{`session CLOSING RefusedHere`, "an opening that waits for this hop's own room is over in microseconds"},
	{`session UNWINDING StepFailedHere|session (UNWINDING|CLOSING) RingToken`, "the engine or the ring crosses a cancel or a close: chance"},
	{`session OPENING (Unwound|RingToken)`, "the engine is at rest or not when a newer attempt comes: chance"},
	{`session LINGERING DrainDeadline`, "what lingers is evicted when the drain begins"},
	{`step HELD Stopped|step CANCELLING (Applied|Advanced|Finished|Stopped|PredecessorFailed|Cancelled)`, "the engine's end of a call and a cancel cross: chance"},
	{`step (DONE|FAILED) \w+`, "an answered step is forgotten"},
	{`shard \w+ CancelLoad`, "the end of a LoadShard that is over"},
	{`shard (UNLOADED|LOADING|DRAINING|FAILED) (EngineLost|EngineRestarted)`, "an engine without work is not lost by any message"},
}

// chance says whether a pair may stay unmet.
func chance(pair string) bool {
	return slices.ContainsFunc(unseen, func(u struct{ pairs, reason string }) bool {
		return regexp.MustCompile("^(" + u.pairs + ")$").MatchString(pair)
	})
}
