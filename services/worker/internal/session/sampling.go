package session

import (
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// samplingOf is a checked Sampling in the engine's words; what is absent is off.
func samplingOf(s *workerpb.Sampling) *engine.Sampling {
	if s == nil {
		return nil
	}
	out := &engine.Sampling{
		Seed: s.GetSeed(), Temperature: s.GetTemperature(), TopK: s.GetTopK(), TopP: 1, MinP: s.GetMinP(), Typical: s.GetTypical(), RepeatPenalty: 1,
		PenaltyWindow: s.GetPenaltyWindow(), FrequencyPenalty: s.GetFrequencyPenalty(), PresencePenalty: s.GetPresencePenalty(),
		AnswerStart: engine.Pos(s.GetAnswerStart()), Logprobs: s.GetLogprobs(), WantLogprob: s.Logprobs != nil,
	}
	if s.TopP != nil {
		out.TopP = s.GetTopP()
	}
	if s.RepeatPenalty != nil {
		out.RepeatPenalty = s.GetRepeatPenalty()
	}
	for _, b := range s.GetLogitBias() {
		out.LogitBias = append(out.LogitBias, engine.LogitBias{Token: engine.TokenID(b.GetId()), Bias: b.GetBias()})
	}
	if g := s.GetGrammar(); g != nil {
		out.Grammar = grammarOf(g)
	}
	return out
}

func grammarOf(g *workerpb.Grammar) *engine.Grammar {
	return &engine.Grammar{
		Text: g.GetText(), Lazy: g.GetLazy(), TriggerPatterns: g.GetTriggerPatterns(), Prefill: g.GetPrefill(),
		TriggerTokens: idsOf(g.GetTriggerTokens()),
	}
}

func idsOf(tokens []uint32) []engine.TokenID {
	ids := make([]engine.TokenID, len(tokens))
	for i, t := range tokens {
		ids[i] = engine.TokenID(t)
	}
	return ids
}

// wants is what the tail's engine is to return for a step.
func wants(s *workerpb.Step) engine.Want {
	switch kind := s.GetKind().(type) {
	case *workerpb.Step_Generate:
		return engine.WantSample
	case *workerpb.Step_Decode:
		switch kind.Decode.GetWant() {
		case workerpb.Want_WANT_LOGITS_LAST:
			return engine.WantLogitsLast
		case workerpb.Want_WANT_LOGITS_ALL:
			return engine.WantLogitsAll
		case workerpb.Want_WANT_SAMPLE:
			return engine.WantSample
		}
	}
	return engine.WantNone
}
