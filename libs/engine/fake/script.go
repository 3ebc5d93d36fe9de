package fake

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Op is a kind of call that a rule strikes.
type Op string

// The calls. OpStep counts steps, not batches.
const (
	OpLoad     Op = "load"
	OpOpen     Op = "open"
	OpStep     Op = "step"
	OpTruncate Op = "truncate"
	OpCopy     Op = "copy"
	OpProbe    Op = "probe" // deep health
)

// Action is what a rule does to a call.
type Action string

// The actions.
const (
	ActionSlow   Action = "slow"   // takes Delay: a row of a step, or the whole of another call
	ActionStuck  Action = "stuck"  // does not end until it is cancelled
	ActionFail   Action = "fail"   // fails with Code
	ActionNaN    Action = "nan"    // computes a NaN and reports NUMERIC_FAULT
	ActionPoison Action = "poison" // computes a NaN and does not notice: it stands in the boundary or the logits
	ActionLost   Action = "lost"   // the engine is lost with every cache
)

// Rule is one line of a script.
type Rule struct {
	Op      Op
	From    uint64           // first call that it strikes, from 1
	To      uint64           // last call that it strikes; 0: no last
	Tokens  []engine.TokenID // it strikes only steps that hold these in a row; none: any
	Action  Action
	Delay   time.Duration // of ActionSlow
	Failure engine.Code   // of ActionFail
}

// Script is the faults of an engine. Of the rules that strike one call all apply, in order; the first failure wins.
type Script []Rule

// ParseScript reads rules apart by `;` or line ends: an operation, then which calls it means (none: each, `3`: the third,
// `3+`: from the third on, `with 7,7`: those steps that hold these tokens in a row), then an action with its argument. Nothing at all is the
// empty script.
//
//	step slow 20ms
//	step 5 fail ENGINE_OUT_OF_MEMORY; step 9+ stuck
//	step with 7,7 lost
//	probe nan
func ParseScript(text string) (Script, error) {
	var script Script
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == '\n' })
	for _, line := range lines {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		rule, err := parseRule(words)
		if err != nil {
			return nil, fmt.Errorf("script rule %q: %w", strings.TrimSpace(line), err)
		}
		script = append(script, rule)
	}
	return script, nil
}

func parseRule(words []string) (Rule, error) {
	rule := Rule{Op: Op(words[0]), From: 1}
	if !slices.Contains([]Op{OpLoad, OpOpen, OpStep, OpTruncate, OpCopy, OpProbe}, rule.Op) {
		return Rule{}, fmt.Errorf("there is no operation %q; write load, open, step, truncate, copy or probe", words[0])
	}
	words, err := rule.which(words[1:])
	if err != nil {
		return Rule{}, err
	}
	if len(words) == 0 {
		return Rule{}, fmt.Errorf("the action is missing")
	}
	rule.Action = Action(words[0])
	return rule.withArguments(words[1:])
}

// which reads the calls that a rule means, and returns the words behind them.
func (r *Rule) which(words []string) ([]string, error) {
	switch {
	case len(words) > 0 && words[0][0] >= '0' && words[0][0] <= '9':
		number, onward := strings.CutSuffix(words[0], "+")
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q is no call number; write 3 or 3+", words[0])
		}
		r.From, r.To = n, n
		if onward {
			r.To = 0
		}
		return words[1:], nil
	case len(words) > 1 && words[0] == "with":
		for word := range strings.SplitSeq(words[1], ",") {
			n, err := strconv.ParseUint(word, 10, 31)
			if err != nil || r.Op != OpStep {
				return nil, fmt.Errorf("%q names no tokens of a step; write step with 7,7", strings.Join(words[:2], " "))
			}
			r.Tokens = append(r.Tokens, engine.TokenID(n))
		}
		return words[2:], nil
	}
	return words, nil
}

func (r Rule) withArguments(arguments []string) (Rule, error) {
	want := 0
	if r.Action == ActionSlow || r.Action == ActionFail {
		want = 1
	}
	if len(arguments) != want {
		return Rule{}, fmt.Errorf("%s takes %d arguments, not %d", r.Action, want, len(arguments))
	}
	var err error
	switch r.Action {
	case ActionSlow:
		r.Delay, err = time.ParseDuration(arguments[0])
	case ActionFail:
		r.Failure = engine.Code(arguments[0])
	case ActionNaN, ActionPoison:
		if r.Op != OpStep && r.Op != OpProbe {
			err = fmt.Errorf("%s computes nothing that could be NaN", r.Op)
		}
	case ActionStuck, ActionLost:
	default:
		err = fmt.Errorf("there is no action %q; write slow, stuck, fail, nan, poison or lost", r.Action)
	}
	return r, err
}

// faults counts the calls of all engines of one factory and says what strikes each.
type faults struct {
	script Script

	mu    sync.Mutex
	calls map[Op]uint64
}

func newFaults(script Script) *faults {
	return &faults{script: slices.Clone(script), calls: make(map[Op]uint64)}
}

// fault is all that strikes one call.
type fault struct {
	delay               time.Duration
	stuck, poison, lost bool
	failure             engine.Code
}

// next counts one call; tokens are those of a step.
func (f *faults) next(op Op, tokens []engine.TokenID) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[op]++
	n := f.calls[op]
	var struck fault
	for _, rule := range f.script {
		if rule.Op == op && n >= rule.From && (rule.To == 0 || n <= rule.To) && holds(tokens, rule.Tokens) {
			struck.add(rule)
		}
	}
	return struck
}

// holds says whether some tokens stand in a row among others.
func holds(tokens, row []engine.TokenID) bool {
	for at := 0; at+len(row) <= len(tokens); at++ {
		if slices.Equal(tokens[at:at+len(row)], row) {
			return true
		}
	}
	return len(row) == 0
}

func (f *fault) add(rule Rule) {
	failure := rule.Failure
	switch rule.Action {
	case ActionSlow:
		f.delay += rule.Delay
	case ActionStuck:
		f.stuck = true
	case ActionPoison:
		f.poison = true
	case ActionLost:
		f.lost = true
	case ActionNaN:
		failure = engine.NumericFault
	}
	if f.failure == "" {
		f.failure = failure
	}
}

// err is the failure as an error of the call, or nil.
func (f *fault) err(op Op) error {
	if f.failure == "" {
		return nil
	}
	return engine.Errorf(f.failure, "the script of the fake engine lets this %s fail", op)
}
