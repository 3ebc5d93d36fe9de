package session

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// pathOf is the path of a field of a list's entry, as `open.route[1].address`.
func pathOf(list string, i int, name string) string { return fmt.Sprintf("%s[%d].%s", list, i, name) }

// stepRules are what a step's shape is checked against.
type stepRules struct {
	hop         *Hop
	stepTokens  uint32 // greatest step of the route
	frameBytes  uint32 // size of a full frame on the route
	hub         bool   // the boundary goes back to the caller
	lastHop     bool   // no hop comes after this one
	first       bool   // nobody but the driver is before this hop
	outputBytes uint64 // greatest payload of an answer
	runBefore   bool   // a Generate is before this step; whether the driver has its answer yet, a hop cannot know
}

// checkStep refuses a step whose shape is wrong. It looks at nothing that changes with time.
//
// Errors: MALFORMED, TOKEN_OUT_OF_RANGE, UNSUPPORTED_FEATURE, INVALID_GRAMMAR; all of scope STEP.
func checkStep(r stepRules, s *workerpb.Step) *fault.Error {
	if err := checkFence(r, s); err != nil {
		return stepScope(err)
	}
	if len(s.GetAuxiliary()) > 0 {
		return stepScope(reserved("auxiliary_state"))
	}
	var err *fault.Error
	switch kind := s.GetKind().(type) {
	case *workerpb.Step_Prefill:
		err = checkTokens(r, "step.prefill.tokens", kind.Prefill.GetTokens())
	case *workerpb.Step_Decode:
		err = checkDecode(r, kind.Decode)
	case *workerpb.Step_Generate:
		err = checkGenerate(r, kind.Generate)
	case *workerpb.Step_Truncate:
		if kind.Truncate.Length == nil {
			err = malformed("step.truncate.length", "present")
		} else if s.GetBoundary() != nil {
			err = malformed("step.boundary", "absent with truncate")
		}
		return stepScope(err)
	default:
		err = malformed("step.kind", "set")
	}
	if err == nil {
		err = checkBoundary(r, "step.boundary", s.GetBoundary(), len(tokensOf(s)))
	}
	return stepScope(err)
}

func stepScope(err *fault.Error) *fault.Error {
	if err == nil {
		return nil
	}
	return err.With(func(e *fault.Error) { e.Scope = workerpb.ErrorScope_ERROR_SCOPE_STEP })
}

func reserved(feature string) *fault.Error {
	return fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "%s is reserved", feature)
}

func checkFence(r stepRules, s *workerpb.Step) *fault.Error {
	switch {
	case s.After == nil || s.GetAfter() >= s.GetStepId():
		return malformed("step.after", "the id of an earlier step, or 0")
	case s.GetExpectCache().GetChainHash() != nil && len(s.GetExpectCache().GetChainHash()) != 16:
		return malformed("step.expect_cache.chain_hash", "16 bytes or absent")
	case s.GetExpectCache() == nil || s.GetExpectCache().Length == nil:
		if !r.runBefore {
			return malformed("step.expect_cache.length", "present, unless a Generate comes before")
		}
	}
	if s.GetBudget() == nil || !within(s.GetBudget(), 1, maxDuration) {
		return malformed("step.budget", "more than 0 s")
	}
	return nil
}

// tokensOf are the tokens that a step evaluates.
func tokensOf(s *workerpb.Step) []uint32 {
	switch kind := s.GetKind().(type) {
	case *workerpb.Step_Prefill:
		return kind.Prefill.GetTokens()
	case *workerpb.Step_Decode:
		return kind.Decode.GetTokens()
	case *workerpb.Step_Generate:
		return kind.Generate.GetTokens()
	}
	return nil
}

func checkTokens(r stepRules, path string, tokens []uint32) *fault.Error {
	if n := len(tokens); n == 0 || n > int(r.stepTokens) {
		return malformed(path, "1 to %d ids, not %d", r.stepTokens, n)
	}
	return checkIDs(r, path, tokens)
}

func checkIDs(r stepRules, path string, tokens []uint32) *fault.Error {
	for i, id := range tokens {
		if id >= r.hop.Shard.Vocab {
			return field(workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE, fmt.Sprintf("%s[%d]", path, i),
				"less than %d, not %d", r.hop.Shard.Vocab, id)
		}
	}
	return nil
}

func checkDecode(r stepRules, d *workerpb.Decode) *fault.Error {
	if err := checkTokens(r, "step.decode.tokens", d.GetTokens()); err != nil {
		return err
	}
	samples := d.GetWant() == workerpb.Want_WANT_SAMPLE
	switch {
	case d.GetMtp() != nil:
		return reserved("mtp")
	case d.GetWant() == workerpb.Want_WANT_UNSPECIFIED:
		return malformed("step.decode.want", "NONE, LOGITS_LAST, LOGITS_ALL or SAMPLE")
	case r.hub && r.lastHop && !r.hop.Shard.Tail() && d.GetWant() != workerpb.Want_WANT_NONE:
		return malformed("step.decode.want", "NONE, for this worker returns its boundary")
	case !r.hub || r.hop.Shard.Tail():
		if rows := r.outputBytes / (uint64(r.hop.Shard.Vocab) * float); uint64(logits(d)) > rows {
			return malformed("step.decode.tokens", "at most %d for the logits of all, %d bytes in one answer", rows, r.outputBytes)
		}
	}
	switch {
	case samples != (d.GetSampling() != nil):
		return malformed("step.decode.sampling", "present with want SAMPLE, and only then")
	case samples:
		return checkSampling(r, "step.decode.sampling", d.GetSampling())
	}
	return nil
}

// logits is how many rows of them a Decode asks for.
func logits(d *workerpb.Decode) int {
	switch d.GetWant() {
	case workerpb.Want_WANT_LOGITS_LAST:
		return 1
	case workerpb.Want_WANT_LOGITS_ALL:
		return len(d.GetTokens())
	}
	return 0
}

func checkGenerate(r stepRules, g *workerpb.Generate) *fault.Error {
	if err := checkTokens(r, "step.generate.tokens", g.GetTokens()); err != nil {
		return err
	}
	switch {
	case g.GetMtp() != nil:
		return reserved("mtp")
	case r.hub:
		return fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "with egress RETURN nobody brings the sample back to the head; use Decode with want SAMPLE at the tail")
	case r.first && !r.hop.Shard.Head():
		return fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "a run begins at the head; this route begins at layer %d", r.hop.Shard.Layers.First)
	case g.GetSampling() == nil:
		return malformed("step.generate.sampling", "present")
	case g.GetMaxTokens() == 0:
		return malformed("step.generate.max_tokens", "1 or more")
	case g.GetTokenBudget() == nil || !within(g.GetTokenBudget(), 1, maxDuration):
		return malformed("step.generate.token_budget", "more than 0 s")
	case len(g.GetStopTokens()) > 64:
		return malformed("step.generate.stop_tokens", "at most 64 ids")
	}
	if err := checkIDs(r, "step.generate.stop_tokens", g.GetStopTokens()); err != nil {
		return err
	}
	return checkSampling(r, "step.generate.sampling", g.GetSampling())
}

// checkSampling looks at ranges. NaN is in none.
func checkSampling(r stepRules, path string, s *workerpb.Sampling) *fault.Error {
	between := func(v *float32, low, high float64) bool {
		return v == nil || float64(*v) >= low && float64(*v) <= high
	}
	switch {
	case s.GetGrammar() != nil && !r.hop.on("sampling.grammar"):
		return fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "sampling.grammar is not ON here")
	case s.Logprobs != nil && !r.hop.on("sampling.logprobs"):
		return fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "sampling.logprobs is not ON here")
	case !between(s.Temperature, 0, math.MaxFloat32):
		return malformed(path+".temperature", "0 or more")
	case s.TopP != nil && (!between(s.TopP, 0, 1) || s.GetTopP() == 0):
		return malformed(path+".top_p", "more than 0 and at most 1")
	case !between(s.MinP, 0, 1):
		return malformed(path+".min_p", "0 to 1")
	case s.Typical != nil && (!between(s.Typical, 0, 1) || s.GetTypical() == 0):
		return malformed(path+".typical", "more than 0 and at most 1")
	case s.RepeatPenalty != nil && (!between(s.RepeatPenalty, 0, math.MaxFloat32) || s.GetRepeatPenalty() == 0):
		return malformed(path+".repeat_penalty", "more than 0")
	case !between(s.FrequencyPenalty, -2, 2):
		return malformed(path+".frequency_penalty", "−2 to 2")
	case !between(s.PresencePenalty, -2, 2):
		return malformed(path+".presence_penalty", "−2 to 2")
	case s.GetLogprobs() > 20:
		return malformed(path+".logprobs", "0 to 20")
	case len(s.GetLogitBias()) > 1024:
		return malformed(path+".logit_bias", "at most 1024 entries")
	}
	for i, b := range s.GetLogitBias() {
		at := fmt.Sprintf("%s.logit_bias[%d]", path, i)
		if b.Id == nil || b.Bias == nil || b.GetBias() != b.GetBias() {
			return malformed(at, "an id and a bias that is a number")
		}
		if err := checkIDs(r, at+".id", []uint32{b.GetId()}); err != nil {
			return err
		}
	}
	return checkGrammar(r, path+".grammar", s.GetGrammar())
}

// checkGrammar compiles a grammar where the driver's step comes in, so that a bad one costs nobody an evaluation.
func checkGrammar(r stepRules, path string, g *workerpb.Grammar) *fault.Error {
	if g == nil {
		return nil
	}
	if err := checkIDs(r, path+".trigger_tokens", g.GetTriggerTokens()); err != nil || !r.first {
		return err
	}
	err := fault.FromEngine(r.hop.CheckGrammar(*grammarOf(g)))
	if err != nil && err.Code == workerpb.ErrorCode_ERROR_CODE_INVALID_GRAMMAR {
		return err.With(func(e *fault.Error) {
			e.Detail = &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Field{Field: &workerpb.FieldDetail{Path: path, Expected: "a grammar that compiles"}}}
		})
	}
	return err
}

// checkBoundary compares an announced boundary with the layout that was agreed.
func checkBoundary(r stepRules, path string, b *workerpb.Boundary, rows int) *fault.Error {
	width := r.hop.widthIn()
	if width == 0 {
		if b != nil {
			return malformed(path, "absent at the head")
		}
		return nil
	}
	size := uint64(rows) * uint64(width) * float
	switch {
	case b == nil:
		return malformed(path, "present behind the head")
	case b.GetEncoding() == workerpb.BoundaryEncoding_BOUNDARY_ENCODING_UNSPECIFIED:
		return malformed(path+".encoding", "F32")
	case b.GetEncoding() != workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32:
		return fault.New(workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_FEATURE, "the encoding %v is reserved", b.GetEncoding())
	case b.GetRows() != uint32(rows):
		return malformed(path+".rows", "%d, one for each token", rows)
	case b.GetWidth() != width:
		return malformed(path+".width", "%d", width)
	case b.GetSize() != size:
		return malformed(path+".size", "%d", size)
	case size <= uint64(r.frameBytes) && uint64(len(b.GetData())) != size:
		return malformed(path+".data", "%d bytes", size)
	case size > uint64(r.frameBytes) && len(b.GetData()) != 0:
		return malformed(path+".data", "empty, for frames of %d bytes follow", r.frameBytes)
	}
	return nil
}

// clampBudget is what is left until deadline as it goes on the wire; never 0, which would be illegal.
func clampBudget(left time.Duration) *durationpb.Duration {
	return durationpb.New(max(left, time.Millisecond))
}
