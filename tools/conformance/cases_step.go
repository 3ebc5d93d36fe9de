package conformance

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

func sorted(cases []Case) []Case {
	slices.SortFunc(cases, func(a, b Case) int { return strings.Compare(a.ID, b.ID) })
	return cases
}

func somePrefill(t *T) func(*workerpb.Step) { return prefill(t.ids(3, 5)...) }
func someSample(t *T) func(*workerpb.Step) {
	return decode(workerpb.Want_WANT_SAMPLE, t.ids(2, 6)...)
}
func someRun(t *T) func(*workerpb.Step) { return generate(3, t.ids(2, 7)) }

// stepFault is a step that must fail alone.
type stepFault struct {
	id, says string
	clauses  []string
	code     workerpb.ErrorCode
	path     string // that the detail must name, or ""
	skip     func(*Target) string
	make     func(*T) func(*workerpb.Step)
	change   func(*workerpb.Step)
}

// asCase makes a case of the fault: the step fails with scope STEP, the cache is what it was, the session works, and the
// credit comes back.
func (f stepFault) asCase() Case {
	return Case{ID: "step." + f.id, Clauses: append(f.clauses, "STP-10", "FLO-1"), Says: f.says, Skip: f.skip, Run: func(t *T) {
		d := t.openDriver()
		d.result(d.put(d.step(prefill(t.ids(4, 3)...))))
		s := d.step(f.make(t))
		f.change(s)
		e := d.failed(d.give(s), f.code)
		if path := e.GetDetail().GetField().GetPath(); f.path != "" && !strings.HasPrefix(path, f.path) {
			t.Errorf("the detail names the field %q, %q is due", path, f.path)
		}
		d.holds(d.of(d.id).failed.GetCache(), d.tokens)
		d.usable()
		d.finish()
		if d.steps != int64(d.opened.GetWindow().GetSteps()) {
			t.Errorf("%d steps of credit are left of %d", d.steps, d.opened.GetWindow().GetSteps())
		}
	}}
}

func stepCases() []Case {
	lacks := func(path string, m func(*T) func(*workerpb.Step), change func(*workerpb.Step)) stepFault {
		return stepFault{id: "missing." + strings.TrimPrefix(path, "step."), clauses: []string{"VER-2", "STP-4"}, code: malformed, path: path, make: m, change: change,
			says: "A step without " + path + " fails as MALFORMED, with its path."}
	}
	wrong := func(path, what string, m func(*T) func(*workerpb.Step), change func(*workerpb.Step)) stepFault {
		return stepFault{id: "illegal." + strings.TrimPrefix(path, "step.") + "." + what, clauses: []string{"VER-2", "STP-4"}, code: malformed, path: path, make: m, change: change,
			says: fmt.Sprintf("A step with %s %s fails as MALFORMED, with its path.", path, what)}
	}
	faults := []stepFault{
		lacks("step.after", somePrefill, func(s *workerpb.Step) { s.After = nil }),
		lacks("step.expect_cache", somePrefill, func(s *workerpb.Step) { s.ExpectCache = nil }),
		lacks("step.expect_cache.length", somePrefill, func(s *workerpb.Step) { s.ExpectCache.Length = nil }),
		lacks("step.budget", somePrefill, func(s *workerpb.Step) { s.Budget = nil }),
		lacks("step.kind", somePrefill, func(s *workerpb.Step) { s.Kind = nil }),
		lacks("step.prefill.tokens", somePrefill, func(s *workerpb.Step) { s.GetPrefill().Tokens = nil }),
		lacks("step.decode.tokens", someSample, func(s *workerpb.Step) { s.GetDecode().Tokens = nil }),
		lacks("step.decode.want", someSample, func(s *workerpb.Step) { s.GetDecode().Want = 0 }),
		lacks("step.decode.sampling", someSample, func(s *workerpb.Step) { s.GetDecode().Sampling = nil }),
		lacks("step.generate.tokens", someRun, func(s *workerpb.Step) { s.GetGenerate().Tokens = nil }),
		lacks("step.generate.sampling", someRun, func(s *workerpb.Step) { s.GetGenerate().Sampling = nil }),
		lacks("step.generate.max_tokens", someRun, func(s *workerpb.Step) { s.GetGenerate().MaxTokens = 0 }),
		lacks("step.generate.token_budget", someRun, func(s *workerpb.Step) { s.GetGenerate().TokenBudget = nil }),
		lacks("step.truncate.length", func(*T) func(*workerpb.Step) { return truncate(1) }, func(s *workerpb.Step) { s.GetTruncate().Length = nil }),
		wrong("step.after", "itself", somePrefill, func(s *workerpb.Step) { s.After = proto.Uint64(s.GetStepId()) }),
		wrong("step.after", "later", somePrefill, func(s *workerpb.Step) { s.After = proto.Uint64(s.GetStepId() + 1) }),
		wrong("step.budget", "zero", somePrefill, func(s *workerpb.Step) { s.Budget = durationpb.New(0) }),
		wrong("step.budget", "negative", somePrefill, func(s *workerpb.Step) { s.Budget = durationpb.New(-time.Second) }),
		wrong("step.expect_cache.chain_hash", "15-bytes", somePrefill, func(s *workerpb.Step) { s.ExpectCache.ChainHash = make([]byte, 15) }),
		wrong("step.generate.token_budget", "zero", someRun, func(s *workerpb.Step) { s.GetGenerate().TokenBudget = durationpb.New(0) }),
		wrong("step.generate.stop_tokens", "65-ids", someRun, func(s *workerpb.Step) { s.GetGenerate().StopTokens = slices.Repeat([]uint32{1}, 65) }),
		wrong("step.decode.sampling", "without-sample", someSample, func(s *workerpb.Step) { s.GetDecode().Want = workerpb.Want_WANT_LOGITS_LAST }),
		wrong("step.boundary", "at-the-head", somePrefill, func(s *workerpb.Step) {
			s.Boundary = &workerpb.Boundary{Rows: 3, Width: 1, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: 12, Data: make([]byte, 12)}
		}),
	}
	faults = append(faults, samplingFaults()...)
	faults = append(faults, grammarFaults()...)
	faults = append(faults, tokenFaults()...)
	for feature, change := range map[string]func(*workerpb.Step){
		"step.auxiliary": func(s *workerpb.Step) { s.Auxiliary = []*workerpb.AuxiliaryState{{Name: "x"}} },
		"step.decode.mtp": func(s *workerpb.Step) {
			s.Kind = &workerpb.Step_Decode{Decode: &workerpb.Decode{Tokens: []uint32{1}, Want: workerpb.Want_WANT_NONE, Mtp: &workerpb.MultiTokenPrediction{MaxDraft: 1}}}
		},
		"step.generate.mtp": func(s *workerpb.Step) {
			generate(1, []uint32{1}, func(g *workerpb.Generate) { g.Mtp = &workerpb.MultiTokenPrediction{MaxDraft: 1} })(s)
		},
	} {
		faults = append(faults, stepFault{id: "reserved." + strings.TrimPrefix(feature, "step."), clauses: []string{"VER-8"}, code: unsupported, make: somePrefill, change: change,
			says: "The reserved field " + feature + " is UNSUPPORTED_FEATURE."})
	}
	var cases []Case
	for _, f := range faults {
		cases = append(cases, f.asCase())
	}
	return sorted(append(cases, tooManyTokens()))
}

// samplingFaults are values of Sampling out of their ranges, in a Decode and in a Generate.
func samplingFaults() []stepFault {
	var faults []stepFault
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	set := map[string]func(*workerpb.Sampling){
		"temperature.negative":    func(s *workerpb.Sampling) { s.Temperature = proto.Float32(-0.1) },
		"temperature.nan":         func(s *workerpb.Sampling) { s.Temperature = &nan },
		"temperature.infinite":    func(s *workerpb.Sampling) { s.Temperature = &inf },
		"top_p.zero":              func(s *workerpb.Sampling) { s.TopP = proto.Float32(0) },
		"top_p.above-1":           func(s *workerpb.Sampling) { s.TopP = proto.Float32(1.01) },
		"top_p.nan":               func(s *workerpb.Sampling) { s.TopP = &nan },
		"min_p.negative":          func(s *workerpb.Sampling) { s.MinP = proto.Float32(-0.01) },
		"min_p.above-1":           func(s *workerpb.Sampling) { s.MinP = proto.Float32(1.01) },
		"typical.zero":            func(s *workerpb.Sampling) { s.Typical = proto.Float32(0) },
		"typical.above-1":         func(s *workerpb.Sampling) { s.Typical = proto.Float32(1.01) },
		"typical.nan":             func(s *workerpb.Sampling) { s.Typical = &nan },
		"repeat_penalty.zero":     func(s *workerpb.Sampling) { s.RepeatPenalty = proto.Float32(0) },
		"repeat_penalty.nan":      func(s *workerpb.Sampling) { s.RepeatPenalty = &nan },
		"frequency_penalty.below": func(s *workerpb.Sampling) { s.FrequencyPenalty = proto.Float32(-2.1) },
		"frequency_penalty.above": func(s *workerpb.Sampling) { s.FrequencyPenalty = proto.Float32(2.1) },
		"presence_penalty.below":  func(s *workerpb.Sampling) { s.PresencePenalty = proto.Float32(-2.1) },
		"presence_penalty.above":  func(s *workerpb.Sampling) { s.PresencePenalty = proto.Float32(2.1) },
		"logit_bias.no-id":        func(s *workerpb.Sampling) { s.LogitBias = []*workerpb.LogitBias{{Bias: proto.Float32(1)}} },
		"logit_bias.no-bias":      func(s *workerpb.Sampling) { s.LogitBias = []*workerpb.LogitBias{{Id: proto.Uint32(1)}} },
		"logit_bias.nan":          func(s *workerpb.Sampling) { s.LogitBias = []*workerpb.LogitBias{{Id: proto.Uint32(1), Bias: &nan}} },
		"logit_bias.1025-entries": func(s *workerpb.Sampling) {
			s.LogitBias = slices.Repeat([]*workerpb.LogitBias{{Id: proto.Uint32(1), Bias: proto.Float32(1)}}, 1025)
		},
	}
	for what, change := range set {
		field := what[:strings.IndexByte(what, '.')]
		faults = append(faults,
			stepFault{id: "illegal.decode.sampling." + what, clauses: []string{"VER-2"}, code: malformed, path: "step.decode.sampling." + field, make: someSample,
				says: "Decode with a sampling of " + what + " fails as MALFORMED, with its path.", change: func(s *workerpb.Step) { change(s.GetDecode().Sampling) }},
			stepFault{id: "illegal.generate.sampling." + what, clauses: []string{"VER-2"}, code: malformed, path: "step.generate.sampling." + field, make: someRun,
				says: "Generate with a sampling of " + what + " fails as MALFORMED, with its path.", change: func(s *workerpb.Step) { change(s.GetGenerate().Sampling) }})
	}
	return append(faults, stepFault{id: "illegal.generate.sampling.logprobs.21", clauses: []string{"VER-2"}, code: malformed, path: "step.generate.sampling.logprobs", make: someRun,
		skip: needs("sampling.logprobs"), says: "21 log-probabilities are MALFORMED.", change: func(s *workerpb.Step) { s.GetGenerate().Sampling.Logprobs = proto.Uint32(21) }})
}

// tokenFaults are ids that the vocabulary does not have.
func tokenFaults() []stepFault {
	const code = workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE
	var faults []stepFault
	for _, f := range []struct {
		id, path string
		make     func(*T) func(*workerpb.Step)
		put      func(*workerpb.Step, uint32)
	}{
		{"prefill.first", "step.prefill.tokens[0]", somePrefill, func(s *workerpb.Step, id uint32) { s.GetPrefill().Tokens[0] = id }},
		{"prefill.last", "step.prefill.tokens[2]", somePrefill, func(s *workerpb.Step, id uint32) { s.GetPrefill().Tokens[2] = id }},
		{"decode", "step.decode.tokens[1]", someSample, func(s *workerpb.Step, id uint32) { s.GetDecode().Tokens[1] = id }},
		{"generate", "step.generate.tokens[0]", someRun, func(s *workerpb.Step, id uint32) { s.GetGenerate().Tokens[0] = id }},
		{"stop", "step.generate.stop_tokens[0]", someRun, func(s *workerpb.Step, id uint32) { s.GetGenerate().StopTokens = []uint32{id} }},
		{"bias", "step.generate.sampling.logit_bias[0]", someRun, func(s *workerpb.Step, id uint32) {
			s.GetGenerate().Sampling.LogitBias = []*workerpb.LogitBias{{Id: proto.Uint32(id), Bias: proto.Float32(0)}}
		}},
	} {
		faults = append(faults,
			stepFault{id: "token.most." + f.id, clauses: []string{"STP-6"}, code: code, path: f.path, make: f.make,
				says: "The greatest uint32 as id in " + f.path + " is TOKEN_OUT_OF_RANGE.", change: func(s *workerpb.Step) { f.put(s, math.MaxUint32) }},
			stepFault{id: "token.vocab." + f.id, clauses: []string{"STP-6"}, code: code, path: f.path, make: func(t *T) func(*workerpb.Step) {
				do, n := f.make(t), t.vocab()
				return func(s *workerpb.Step) { do(s); f.put(s, n) }
			}, says: "The id n_vocab in " + f.path + " is TOKEN_OUT_OF_RANGE.", change: func(*workerpb.Step) {}})
	}
	return faults
}

// tooManyTokens tries the route's greatest step and one token more.
func tooManyTokens() Case {
	return Case{ID: "step.max-step-tokens", Clauses: []string{"CAP-6", "OPN-15", "VER-2"}, Says: "A step of max_step_tokens tokens runs where the context has room, and one token more is MALFORMED.",
		Run: func(t *T) {
			limit := t.head().Is.GetShard().GetContextLimit()
			d := t.openDriver(func(o *workerpb.Open) { o.ContextTokens = limit })
			n := d.opened.GetMaxStepTokens()
			e := d.failed(d.give(d.step(prefill(t.ids(int(n)+1, 4)...))), malformed)
			if path := e.GetDetail().GetField().GetPath(); path != "step.prefill.tokens" {
				t.Errorf("the detail names the field %q", path)
			}
			if n < limit {
				d.result(d.put(d.step(prefill(t.ids(int(n), 4)...))))
			}
			d.usable()
			d.finish()
		}}
}
