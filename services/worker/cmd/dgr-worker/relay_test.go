package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
)

// relayed is one worker as a relay has it: a program in any language that knows nothing of this repository but the contract.
type relayed struct {
	t      *testing.T
	shard  *workerpb.ShardInfo
	text   workerpb.TextServiceClient
	stream grpc.BidiStreamingClient[workerpb.SessionRequest, workerpb.SessionResponse]
	step   uint64
	length uint32
}

// relay opens a session of its own, with egress RETURN, on each worker.
func relay(t *testing.T, workers ...announcement) []*relayed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	var all []*relayed
	for _, w := range workers {
		conn, err := grpc.NewClient(w.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		client := workerpb.NewWorkerServiceClient(conn)
		is, err := client.GetCapability(ctx, &workerpb.GetCapabilityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range is.GetCapability().GetFeatures() {
			if f.GetName() == "chain" && f.GetStatus() == workerpb.FeatureStatus_FEATURE_STATUS_ON {
				t.Errorf("the worker at %s may dial others", w.Address)
			}
		}
		r := &relayed{t: t, shard: is.GetCapability().GetShard(), text: workerpb.NewTextServiceClient(conn)}
		if r.stream, err = client.Session(ctx); err != nil {
			t.Fatal(err)
		}
		r.open()
		all = append(all, r)
	}
	return all
}

func (r *relayed) open() {
	r.t.Helper()
	key := make([]byte, 48)
	_, _ = rand.Read(key) // never fails
	r.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: &workerpb.Open{
		SessionId: key[:16], SessionKey: key[16:], Attempt: 1, Revisions: &workerpb.RevisionRange{Min: 1, Max: 1},
		Expect:        &workerpb.Expectation{Fingerprint: r.shard.GetFingerprint(), Layers: r.shard.GetLayers()},
		ContextTokens: 64, Egress: workerpb.Egress_EGRESS_RETURN,
		Receive: &workerpb.ReceiveWindow{Tokens: proto.Uint32(64), Bytes: proto.Uint64(16 << 20)},
		Linger:  durationpb.New(0), Budget: durationpb.New(5 * time.Second),
	}}})
	if m, err := r.stream.Recv(); err != nil || m.GetOpened() == nil {
		r.t.Fatalf("opened: %v, %v", m, err)
	}
}

func (r *relayed) send(m *workerpb.SessionRequest) {
	r.t.Helper()
	if err := r.stream.Send(m); err != nil {
		r.t.Fatal(err)
	}
}

// take has the worker take tokens with the boundary of the one before; it returns its own boundary, or at the tail a token.
func (r *relayed) take(tokens []uint32, in *workerpb.Boundary, sampling *workerpb.Sampling) (out *workerpb.Boundary, token uint32) {
	r.t.Helper()
	r.step++
	s := &workerpb.Step{
		StepId: r.step, After: proto.Uint64(r.step - 1), ExpectCache: &workerpb.ExpectCache{Length: proto.Uint32(r.length)},
		Budget: durationpb.New(10 * time.Second), Boundary: in, Kind: &workerpb.Step_Prefill{Prefill: &workerpb.Prefill{Tokens: tokens}},
	}
	if r.shard.GetTail() {
		s.Kind = &workerpb.Step_Decode{Decode: &workerpb.Decode{Tokens: tokens, Want: workerpb.Want_WANT_SAMPLE, Sampling: sampling}}
	}
	r.length += uint32(len(tokens))
	r.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Step{Step: s}})
	for {
		m, err := r.stream.Recv()
		switch {
		case err != nil:
			r.t.Fatal(err)
		case m.GetToken() != nil:
			token = m.GetToken().GetId()
		case m.GetStepResult() != nil:
			return m.GetStepResult().GetOutput().GetBoundary(), token
		case m.GetCredit() == nil:
			r.t.Fatalf("%v came", m)
		}
	}
}

// generated is n tokens that the relay makes of the prompt.
func generated(hops []*relayed, n int, sampling *workerpb.Sampling) (ids []uint32) {
	next := prompt
	for range n {
		var boundary *workerpb.Boundary
		var token uint32
		for _, hop := range hops {
			boundary, token = hop.take(next, boundary, sampling)
		}
		ids, next = append(ids, token), []uint32{token}
	}
	return ids
}

// says is the text of tokens.
func (r *relayed) says(ids []uint32) []byte {
	r.t.Helper()
	m, err := r.text.Detokenize(r.t.Context(), &workerpb.DetokenizeRequest{Fingerprint: r.shard.GetFingerprint(), Tokens: ids, Special: true})
	if err != nil {
		r.t.Fatal(err)
	}
	return m.GetData()
}

// sameThroughARelay compares a chained route with a relay between workers that may dial nobody.
func sameThroughARelay(t *testing.T, chained, apart []announcement) {
	t.Helper()
	const n = 16
	for _, temperature := range []float32{0, 0.8} {
		sampling := &workerpb.Sampling{Temperature: proto.Float32(temperature), Seed: proto.Uint64(7), AnswerStart: proto.Uint32(uint32(len(prompt)))}
		run, err := open(t, chained...).Generate(t.Context(), session.Generation{Tokens: prompt, MaxTokens: n, IgnoreEnd: true, Sampling: sampling})
		if err != nil {
			t.Fatal(err)
		}
		want, err := take(t, run, n)
		if err != nil {
			t.Fatal(err)
		}
		hops := relay(t, apart...)
		got := generated(hops, n, sampling)
		if !slices.Equal(got, want) {
			t.Errorf("at temperature %v relayed %v, chained %v", temperature, got, want)
		}
		if text := hops[0].says(got); len(text) == 0 || !bytes.Equal(text, hops[len(hops)-1].says(want)) {
			t.Errorf("at temperature %v the relay says %q", temperature, text)
		}
	}
}

// A relay carries boundaries between workers that never dial each other, and gets the text of the chained route.
func TestARelaySaysWhatARouteSays(t *testing.T) {
	const model = "fake:layers=5"
	_, chained := startRoute(t, model, "2", "4")
	var apart []announcement
	for _, layers := range []string{"0:2", "2:4", "4:"} {
		apart = append(apart, start(t, nil, faked("--model", model, "--layers", layers)...).ready())
	}
	sameThroughARelay(t, chained, apart)
}
