package conformance

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// stranger gives a message a field that no revision knows yet.
func stranger(m proto.Message) {
	raw := protowire.AppendTag(nil, 19_876, protowire.VarintType)
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(raw, 1))
}

// strictCases try unknown fields and enum values at every depth of every request.
func strictCases() []Case {
	return append(append(strictOpen(), strictStep()...), append(strictControl(), strictUnary()...)...)
}

func strictOpen() []Case {
	var cases []Case
	for _, f := range []struct {
		at   string
		skip func(*Target) string
		of   func(*workerpb.Open) proto.Message
	}{
		{"open", nil, func(o *workerpb.Open) proto.Message { return o }},
		{"open.revisions", nil, func(o *workerpb.Open) proto.Message { return o.Revisions }},
		{"open.expect", nil, func(o *workerpb.Open) proto.Message { return o.Expect }},
		{"open.expect.layers", nil, func(o *workerpb.Open) proto.Message { return o.Expect.Layers }},
		{"open.expect.boundary_out", hops(2), func(o *workerpb.Open) proto.Message { return o.Expect.BoundaryOut }},
		{"open.route[0]", hops(2), func(o *workerpb.Open) proto.Message { return o.Route[0] }},
		{"open.route[0].layers", hops(2), func(o *workerpb.Open) proto.Message { return o.Route[0].Layers }},
		{"open.receive", nil, func(o *workerpb.Open) proto.Message { return o.Receive }},
		{"open.linger", nil, func(o *workerpb.Open) proto.Message { return o.Linger }},
		{"open.budget", nil, func(o *workerpb.Open) proto.Message { return o.Budget }},
		{"open.prefix[0]", nil, func(o *workerpb.Open) proto.Message {
			o.Prefix = []*workerpb.PrefixOffer{{Length: 1, ChainHash: make([]byte, 16)}}
			return o.Prefix[0]
		}},
	} {
		cases = append(cases, openFault{
			id: "unknown-field." + f.at, clauses: []string{"VER-1"}, code: malformed, path: f.at, skip: f.skip,
			says: "An unknown field in " + f.at + " is MALFORMED, with its path.", change: func(_ *Target, o *workerpb.Open) { stranger(f.of(o)) },
		}.asCase())
	}
	return append(cases,
		openFault{id: "unknown-enum.open.egress", clauses: []string{"VER-1"}, code: malformed, path: "open.egress",
			says: "An unknown egress is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Egress = 77 }}.asCase(),
		openFault{id: "unknown-enum.open.expect.boundary_out.encoding", clauses: []string{"VER-1"}, code: malformed, path: "open.expect.boundary_out.encoding", skip: hops(2),
			says: "An unknown encoding is MALFORMED.", change: func(_ *Target, o *workerpb.Open) { o.Expect.BoundaryOut.Encoding = 77 }}.asCase())
}

// strictStep are steps with something unknown inside: the step fails alone.
func strictStep() []Case {
	var cases []Case
	for _, f := range []struct {
		at   string
		make func(*T) func(*workerpb.Step)
		of   func(*workerpb.Step) proto.Message
	}{
		{"step", somePrefill, func(s *workerpb.Step) proto.Message { return s }},
		{"step.expect_cache", somePrefill, func(s *workerpb.Step) proto.Message { return s.ExpectCache }},
		{"step.budget", somePrefill, func(s *workerpb.Step) proto.Message { return s.Budget }},
		{"step.prefill", somePrefill, func(s *workerpb.Step) proto.Message { return s.GetPrefill() }},
		{"step.decode", someSample, func(s *workerpb.Step) proto.Message { return s.GetDecode() }},
		{"step.decode.sampling", someSample, func(s *workerpb.Step) proto.Message { return s.GetDecode().GetSampling() }},
		{"step.decode.sampling.logit_bias[0]", someSample, func(s *workerpb.Step) proto.Message {
			s.GetDecode().Sampling.LogitBias = []*workerpb.LogitBias{{Id: proto.Uint32(1), Bias: proto.Float32(1)}}
			return s.GetDecode().Sampling.LogitBias[0]
		}},
		{"step.generate", someRun, func(s *workerpb.Step) proto.Message { return s.GetGenerate() }},
		{"step.generate.sampling", someRun, func(s *workerpb.Step) proto.Message { return s.GetGenerate().GetSampling() }},
		{"step.generate.token_budget", someRun, func(s *workerpb.Step) proto.Message { return s.GetGenerate().GetTokenBudget() }},
		{"step.truncate", func(*T) func(*workerpb.Step) { return truncate(0) }, func(s *workerpb.Step) proto.Message { return s.GetTruncate() }},
	} {
		cases = append(cases, stepFault{
			id: "unknown-field." + f.at, clauses: []string{"VER-1", "STP-7"}, code: malformed, path: f.at, make: f.make,
			says: "An unknown field in " + f.at + " fails the step alone as MALFORMED, with its path.", change: func(s *workerpb.Step) { stranger(f.of(s)) },
		}.asCase())
	}
	return append(cases, stepFault{id: "unknown-enum.step.decode.want", clauses: []string{"VER-1", "STP-7"}, code: malformed, path: "step.decode.want",
		says: "An unknown want fails the step as MALFORMED.", make: someSample, change: func(s *workerpb.Step) { s.GetDecode().Want = 77 }}.asCase())
}

// strictControl are unknown things in messages that are no step: they end the attempt.
func strictControl() []Case {
	var cases []Case
	for _, f := range []struct {
		at   string
		make func() *workerpb.SessionRequest
		of   func(*workerpb.SessionRequest) proto.Message
	}{
		{"cancel_step", func() *workerpb.SessionRequest {
			return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_CancelStep{CancelStep: &workerpb.CancelStep{StepId: 1, Through: 1}}}
		}, func(m *workerpb.SessionRequest) proto.Message { return m.GetCancelStep() }},
		{"receive_credit", func() *workerpb.SessionRequest {
			return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: &workerpb.ReceiveCredit{Tokens: proto.Uint32(1)}}}
		}, func(m *workerpb.SessionRequest) proto.Message { return m.GetReceiveCredit() }},
		{"close", func() *workerpb.SessionRequest {
			return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}}
		}, func(m *workerpb.SessionRequest) proto.Message { return m.GetClose() }},
		{"frame", func() *workerpb.SessionRequest {
			return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: 1, Index: proto.Uint32(0), Data: []byte{1}}}}
		}, func(m *workerpb.SessionRequest) proto.Message { return m.GetFrame() }},
		{"iteration", func() *workerpb.SessionRequest {
			return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Iteration{Iteration: &workerpb.Iteration{StepId: 1, Index: proto.Uint32(0), Token: proto.Uint32(1)}}}
		}, func(m *workerpb.SessionRequest) proto.Message { return m.GetIteration() }},
		{"#19876", func() *workerpb.SessionRequest {
			return &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: &workerpb.ReceiveCredit{}}}
		}, func(m *workerpb.SessionRequest) proto.Message { return m }},
	} {
		cases = append(cases, Case{ID: "strict.unknown-field." + f.at, Clauses: []string{"VER-1", "STP-7"},
			Says: "An unknown field in a " + f.at + " message ends the attempt as MALFORMED, with its path.", Run: func(t *T) {
				d := t.openDriver()
				m := f.make()
				stranger(f.of(m))
				d.send(m)
				e := d.ends(malformed)
				if path := e.GetDetail().GetField().GetPath(); !strings.HasPrefix(path, f.at) {
					t.Errorf("the detail names the field %q", path)
				}
			}})
	}
	for _, f := range []struct {
		id, path string
		m        *workerpb.SessionRequest
	}{
		{"cancel_step.zero", "cancel_step", cancelStep(0, 1, true)},
		{"cancel_step.backwards", "cancel_step", cancelStep(2, 1, true)},
		{"frame.no-index", "frame", &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: 1, Data: []byte{1}}}}},
		{"frame.empty", "frame", &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: 1, Index: proto.Uint32(0)}}}},
	} {
		cases = append(cases, Case{ID: "strict.illegal." + f.id, Clauses: []string{"VER-2", "STP-7"}, Says: f.id + " ends the attempt as MALFORMED, with its path.", Run: func(t *T) {
			d := t.openDriver()
			d.send(f.m)
			if path := d.ends(malformed).GetDetail().GetField().GetPath(); !strings.HasPrefix(path, f.path) {
				t.Errorf("the detail names the field %q, %q is due", path, f.path)
			}
		}})
	}
	return append(cases, Case{ID: "strict.no-kind", Clauses: []string{"VER-2"}, Says: "A request without a kind ends the attempt as MALFORMED.", Run: func(t *T) {
		d := t.openDriver()
		d.send(&workerpb.SessionRequest{})
		d.ends(malformed)
	}})
}

// strictUnary are unknown fields in the requests of all other calls.
func strictUnary() []Case {
	fingerprint := func(t *T) []byte { return t.head().Is.GetShard().GetFingerprint() }
	var cases []Case
	for call, do := range map[string]func(*T) error{
		"GetCapability": func(t *T) error {
			m := &workerpb.GetCapabilityRequest{}
			stranger(m)
			_, err := t.head().Worker.GetCapability(t.ctx, m)
			return err
		},
		"GetHealth": func(t *T) error {
			m := &workerpb.GetHealthRequest{}
			stranger(m)
			_, err := t.head().Worker.GetHealth(t.ctx, m)
			return err
		},
		"GetMetrics": func(t *T) error {
			m := &workerpb.GetMetricsRequest{}
			stranger(m)
			_, err := t.head().Worker.GetMetrics(t.ctx, m)
			return err
		},
		"WatchHealth": func(t *T) error {
			m := &workerpb.WatchHealthRequest{}
			stranger(m)
			s, err := t.head().Worker.WatchHealth(t.ctx, m)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"CancelSession": func(t *T) error {
			m := &workerpb.CancelSessionRequest{SessionId: random(16), SessionKey: random(32)}
			stranger(m)
			_, err := t.head().Worker.CancelSession(t.ctx, m)
			return err
		},
		"ReleaseSession": func(t *T) error {
			m := &workerpb.ReleaseSessionRequest{SessionId: random(16), SessionKey: random(32)}
			stranger(m)
			_, err := t.head().Worker.ReleaseSession(t.ctx, m)
			return err
		},
		"LoadShard": func(t *T) error {
			m := &workerpb.LoadShardRequest{Model: "no-such-model", First: proto.Uint32(0)}
			stranger(m)
			s, err := t.head().Shard.LoadShard(t.ctx, m)
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"UnloadShard": func(t *T) error {
			m := &workerpb.UnloadShardRequest{}
			stranger(m)
			_, err := t.head().Shard.UnloadShard(t.ctx, m)
			return err
		},
		"Drain": func(t *T) error {
			m := &workerpb.DrainRequest{Budget: durationpb.New(0)}
			stranger(m)
			_, err := t.head().Shard.Drain(t.ctx, m)
			return err
		},
		"Tokenize": func(t *T) error {
			m := &workerpb.TokenizeRequest{Fingerprint: fingerprint(t), Text: "a"}
			stranger(m)
			_, err := t.head().Text.Tokenize(t.ctx, m)
			return err
		},
		"Detokenize": func(t *T) error {
			m := &workerpb.DetokenizeRequest{Fingerprint: fingerprint(t), Tokens: []uint32{1}}
			stranger(m)
			_, err := t.head().Text.Detokenize(t.ctx, m)
			return err
		},
		"RenderChat": func(t *T) error {
			m := &workerpb.RenderChatRequest{Fingerprint: fingerprint(t), MessagesJson: "[]"}
			stranger(m)
			_, err := t.head().Text.RenderChat(t.ctx, m)
			return err
		},
		"ParseChat": func(t *T) error {
			m := &workerpb.ParseChatRequest{Fingerprint: fingerprint(t)}
			stranger(m)
			_, err := t.head().Text.ParseChat(t.ctx, m)
			return err
		},
	} {
		cases = append(cases, Case{ID: "strict.unknown-field." + call, Clauses: []string{"VER-1"}, Says: "An unknown field in the request of " + call + " is MALFORMED and changes nothing.",
			Run: func(t *T) {
				if path := t.want(t.errorOf(do(t)), malformed).GetDetail().GetField().GetPath(); path != "#19876" {
					t.Errorf("the detail names the field %q", path)
				}
				d := t.openDriver()
				d.usable()
				d.finish()
			}})
	}
	return sorted(cases)
}
