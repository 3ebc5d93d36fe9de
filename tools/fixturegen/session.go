package fixturegen

import (
	"math"
	"slices"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// down is a request with one kind set.
func down(name string, kind any) Fixture {
	r := &workerpb.SessionRequest{}
	switch k := kind.(type) {
	case *workerpb.Open:
		r.Kind = &workerpb.SessionRequest_Open{Open: k}
	case *workerpb.Step:
		r.Kind = &workerpb.SessionRequest_Step{Step: k}
	case *workerpb.Frame:
		r.Kind = &workerpb.SessionRequest_Frame{Frame: k}
	case *workerpb.CancelStep:
		r.Kind = &workerpb.SessionRequest_CancelStep{CancelStep: k}
	case *workerpb.Iteration:
		r.Kind = &workerpb.SessionRequest_Iteration{Iteration: k}
	case *workerpb.ReceiveCredit:
		r.Kind = &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: k}
	case *workerpb.Close:
		r.Kind = &workerpb.SessionRequest_Close{Close: k}
	}
	return Fixture{name, r}
}

// requests is what goes down a Session stream.
func requests() []Fixture {
	return []Fixture{
		down("open_by_driver", openByDriver()),
		down("open_by_hop", openByHop()),
		down("open_hub", openHub()),
		down("step_prefill_at_head", &workerpb.Step{
			StepId: 1, After: big(0), ExpectCache: expects(), Budget: duration(30 * time.Second),
			Kind: &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: prompt[:3]}},
		}),
		down("step_prefill_at_hop", &workerpb.Step{
			StepId: 2, After: big(1), ExpectCache: expects(prompt[:3]...), Budget: duration(30 * time.Second),
			Kind: &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: prompt[3:5]}}, Boundary: rows(2, width),
		}),
		down("step_prefill_framed", &workerpb.Step{
			StepId: 2, After: big(1), ExpectCache: expects(prompt[:3]...), Budget: duration(30 * time.Second),
			Kind:     &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: slices.Repeat([]uint32{7}, framedRows)}},
			Boundary: announced(framedRows, width),
		}),
		down("step_decode_logits", &workerpb.Step{
			StepId: 3, After: big(2), ExpectCache: expects(prompt[:5]...), Budget: duration(30 * time.Second),
			Kind: &workerpb.Step_Decode{Decode: &workerpb.Decode{Tokens: prompt[5:], Want: workerpb.Want_WANT_LOGITS_LAST}},
		}),
		down("step_decode_sample", &workerpb.Step{
			StepId: 3, After: big(2), ExpectCache: expects(prompt[:5]...), Budget: duration(30 * time.Second),
			Kind: &workerpb.Step_Decode{Decode: &workerpb.Decode{Tokens: prompt[5:], Want: workerpb.Want_WANT_SAMPLE, Sampling: greedy()}},
		}),
		down("step_generate", &workerpb.Step{
			StepId: 4, After: big(2), ExpectCache: expects(prompt[:5]...), Budget: duration(2 * time.Minute),
			Kind: &workerpb.Step_Generate{Generate: &workerpb.Generate{
				Tokens: prompt[5:], Sampling: sampling(), MaxTokens: 64, StopTokens: []uint32{2}, TokenBudget: duration(10 * time.Second), IgnoreEog: true,
			}},
		}),
		down("step_truncate", &workerpb.Step{
			StepId: 5, After: big(4), ExpectCache: &workerpb.ExpectCache{}, Budget: duration(5 * time.Second),
			Kind: &workerpb.Step_Truncate{Truncate: &workerpb.Truncate{Length: num(len(prompt))}},
		}),
		down("reserved_step", &workerpb.Step{
			StepId: 6, After: big(5), ExpectCache: expects(prompt...), Budget: duration(30 * time.Second),
			Kind: &workerpb.Step_Generate{Generate: &workerpb.Generate{
				Tokens: []uint32{200}, Sampling: greedy(), MaxTokens: 8, TokenBudget: duration(10 * time.Second), Mtp: drafts(),
			}},
			Boundary: rows(1, width), Auxiliary: auxiliary(),
		}),
		down("reserved_decode", &workerpb.Step{
			StepId: 6, After: big(5), ExpectCache: expects(prompt...), Budget: duration(30 * time.Second),
			Kind: &workerpb.Step_Decode{Decode: &workerpb.Decode{Tokens: []uint32{200}, Want: workerpb.Want_WANT_LOGITS_ALL, Mtp: drafts()}},
		}),
		down("frame", lastFrame(2)),
		down("cancel_step", &workerpb.CancelStep{StepId: 3, Through: 4, Undo: true}),
		down("iteration", &workerpb.Iteration{StepId: 4, Index: num(0), Token: num(200), Boundary: rows(1, width)}),
		down("reserved_iteration", &workerpb.Iteration{
			StepId: 4, Index: num(1), Token: num(201), Boundary: rows(1, width), Auxiliary: auxiliary(),
		}),
		down("receive_credit", &workerpb.ReceiveCredit{Tokens: num(32), Bytes: big(windowBytes)}),
		down("close", &workerpb.Close{KeepPrefix: true}),
	}
}

// framedRows is a boundary one row longer than a full frame, so that a second frame holds the last row.
const framedRows = frameBytes/(4*width) + 1

// lastFrame is the second frame of such a boundary.
func lastFrame(step uint64) *workerpb.Frame {
	return &workerpb.Frame{StepId: step, Index: num(1), Data: rows(1, width).Data}
}

// openByDriver is what the driver sends to the head of three hops.
func openByDriver() *workerpb.Open {
	return &workerpb.Open{
		SessionId: name16("session"), SessionKey: name32("key"), Attempt: 1, Revisions: revisions(), Needs: []string{"chain", "session"},
		Expect:        &workerpb.Expectation{Fingerprint: fingerprint(), Layers: layersOf(0)},
		ContextTokens: 512, Egress: workerpb.Egress_EGRESS_FORWARD,
		Route:   []*workerpb.RouteHop{{Address: address(1), Layers: layersOf(1)}, {Address: address(2), Layers: layersOf(2)}},
		Receive: &workerpb.ReceiveWindow{Tokens: num(64), Bytes: big(windowBytes)},
		Linger:  duration(30 * time.Second), Budget: duration(15 * time.Second),
		Prefix:     []*workerpb.PrefixOffer{{Length: 4, ChainHash: chainHash(prompt[:4]...)}, {Length: 2, ChainHash: chainHash(prompt[:2]...)}},
		OnBehalfOf: "team-a",
	}
}

// openByHop is what the head makes of it for the second hop.
func openByHop() *workerpb.Open {
	o := openByDriver()
	o.Expect = &workerpb.Expectation{Fingerprint: fingerprint(), Layers: layersOf(1), BoundaryIn: hidden(), BoundaryOut: hidden()}
	o.Route, o.Prefix, o.OnBehalfOf = o.Route[1:], nil, ""
	o.Budget = duration(10 * time.Second)
	o.Ring = &workerpb.RingTarget{Address: address(0)}
	o.CacheDomain = name32("domain of team-a")
	o.Held = holds()
	return o
}

// openHub is for a caller that relays boundaries itself.
func openHub() *workerpb.Open {
	return &workerpb.Open{
		SessionId: name16("hub session"), SessionKey: name32("hub key"), Attempt: 1, Revisions: revisions(), Needs: []string{"hub"},
		Expect:        &workerpb.Expectation{Fingerprint: fingerprint(), Layers: layersOf(1), BoundaryIn: hidden(), BoundaryOut: hidden()},
		ContextTokens: 512, Egress: workerpb.Egress_EGRESS_RETURN, Receive: &workerpb.ReceiveWindow{Tokens: num(1), Bytes: big(windowBytes)},
		Linger: duration(0), Budget: duration(15 * time.Second),
	}
}

func greedy() *workerpb.Sampling { return &workerpb.Sampling{Temperature: real(0)} }

// sampling uses every field.
func sampling() *workerpb.Sampling {
	return &workerpb.Sampling{
		Seed: big(7), Temperature: real(0.5), TopK: num(40), TopP: real(0.875), MinP: real(0.0625), Typical: real(0.75), RepeatPenalty: real(1.125),
		PenaltyWindow: num(64), FrequencyPenalty: real(0.25), PresencePenalty: real(-0.25), Grammar: grammar(), AnswerStart: num(len(prompt)),
		Logprobs:  num(2),
		LogitBias: []*workerpb.LogitBias{{Id: num(5), Bias: real(1.5)}, {Id: num(6), Bias: real(float32(math.Inf(-1)))}},
	}
}

func grammar() *workerpb.Grammar {
	return &workerpb.Grammar{
		Text: `root ::= "{" [a-z]+ "}"`, Lazy: true, TriggerPatterns: []string{`^\{`}, TriggerTokens: []uint32{123}, Prefill: "{",
	}
}

// drafts and auxiliary use what is reserved: well formed, and refused as UNSUPPORTED_FEATURE.
func drafts() *workerpb.MultiTokenPrediction {
	return &workerpb.MultiTokenPrediction{MaxDraft: 2, Draft: []uint32{201, 202}}
}

func auxiliary() []*workerpb.AuxiliaryState {
	return []*workerpb.AuxiliaryState{{Name: "v_first", Payload: rows(1, width)}}
}

// up is a response with one kind set.
func up(name string, kind any) Fixture {
	r := &workerpb.SessionResponse{}
	switch k := kind.(type) {
	case *workerpb.Opened:
		r.Kind = &workerpb.SessionResponse_Opened{Opened: k}
	case *workerpb.Credit:
		r.Kind = &workerpb.SessionResponse_Credit{Credit: k}
	case *workerpb.Token:
		r.Kind = &workerpb.SessionResponse_Token{Token: k}
	case *workerpb.StepResult:
		r.Kind = &workerpb.SessionResponse_StepResult{StepResult: k}
	case *workerpb.StepFailed:
		r.Kind = &workerpb.SessionResponse_StepFailed{StepFailed: k}
	case *workerpb.Frame:
		r.Kind = &workerpb.SessionResponse_Frame{Frame: k}
	case *workerpb.Draining:
		r.Kind = &workerpb.SessionResponse_Draining{Draining: k}
	case *workerpb.Closed:
		r.Kind = &workerpb.SessionResponse_Closed{Closed: k}
	}
	return Fixture{name, r}
}

// responses is what comes up a Session stream.
func responses() []Fixture {
	return []Fixture{
		up("opened", opened()),
		up("credit", &workerpb.Credit{Steps: num(1), Bytes: big(64)}),
		up("token", &workerpb.Token{StepId: 4, Index: num(0), Id: num(200), Bytes: []byte(" a")}),
		up("token_with_logprobs", &workerpb.Token{
			StepId: 4, Index: num(1), Id: num(201), Bytes: []byte(" part"), Logprob: real(-0.25), Last: true,
			Top: []*workerpb.TokenLogprob{
				{Id: num(201), Bytes: []byte(" part"), Logprob: real(-0.25)}, {Id: num(202), Bytes: []byte(" piece"), Logprob: real(-2.5)},
			},
		}),
		up("step_result", result(2, prompt[:5], nil, workerpb.Finish_FINISH_DONE, nil)),
		up("step_result_logits", result(3, prompt, nil, workerpb.Finish_FINISH_DONE, &workerpb.Output{
			Kind: &workerpb.Output_Logits{Logits: rows(1, vocabulary)},
		})),
		up("step_result_boundary", result(3, prompt, nil, workerpb.Finish_FINISH_DONE, &workerpb.Output{
			Kind: &workerpb.Output_Boundary{Boundary: rows(1, width)},
		})),
		up("step_result_framed", result(3, prompt, nil, workerpb.Finish_FINISH_DONE, &workerpb.Output{
			Kind: &workerpb.Output_Boundary{Boundary: announced(framedRows, width)},
		})),
		up("step_result_generate", result(4, append(slices.Clone(prompt), 200), num(2), workerpb.Finish_FINISH_END_OF_GENERATION, nil)),
		up("step_failed", &workerpb.StepFailed{
			StepId: 3, Error: shardError(workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH), Cache: holds(prompt[:5]...),
		}),
		up("frame", lastFrame(3)),
		up("draining", &workerpb.Draining{Hop: hopRef(1), Left: duration(42 * time.Second)}),
		up("closed_requested", &workerpb.Closed{Reason: workerpb.CloseReason_CLOSE_REASON_REQUESTED, Usage: usage()}),
		up("closed_error", &workerpb.Closed{
			Reason: workerpb.CloseReason_CLOSE_REASON_ERROR, Error: shardError(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST), Usage: usage(), Lingering: true,
		}),
	}
}

func opened() *workerpb.Opened {
	o := &workerpb.Opened{
		Revision: 1, Features: []string{"chain", "session"}, Window: &workerpb.Credit{Steps: num(2), Bytes: big(windowBytes)},
		MaxStepTokens: 512, ChunkTokens: 128, FrameBytes: frameBytes, Cache: holds(), Ability: ability(), Linger: duration(30 * time.Second),
	}
	for hop := range 3 {
		report := &workerpb.HopReport{Hop: hopRef(hop), Layers: layersOf(hop), Found: holds(), Numerics: numerics()}
		if hop < 2 {
			report.LinkRtt = duration(400 * time.Microsecond)
		}
		o.Hops = append(o.Hops, report)
	}
	return o
}

// result is a good end of a step, with the times of three hops.
func result(step uint64, cache []uint32, sampled *uint32, finish workerpb.Finish, output *workerpb.Output) *workerpb.StepResult {
	r := &workerpb.StepResult{StepId: step, Cache: holds(cache...), Finish: finish, Output: output, Sampled: sampled}
	for hop := range 3 {
		r.Timing = append(r.Timing, &workerpb.HopTiming{
			Hop: num(hop), Queued: duration(300 * time.Microsecond), Compute: duration(4 * time.Millisecond), Shapes: []uint32{1},
		})
	}
	return r
}
