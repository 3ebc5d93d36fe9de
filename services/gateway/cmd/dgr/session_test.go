//go:build unix

package main_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
	drive "github.com/distributed-gguf-runtime/dgr/libs/client/worker"
)

// These tests drive libs/client against real workers: both halves of the contract at once.

func connect(t *testing.T, addresses string) *route.Route {
	t.Helper()
	var clients []*drive.Client
	for address := range strings.SplitSeq(addresses, ",") {
		w, err := drive.Open(address, dial.Default())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		clients = append(clients, w)
	}
	r, err := route.Discover(t.Context(), clients)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func openSession(t *testing.T, r *route.Route, change func(*session.Options)) *session.Session {
	t.Helper()
	o := session.Default()
	if change != nil {
		change(&o)
	}
	s, err := session.Open(t.Context(), r, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Abandon)
	return s
}

// prompt is n byte tokens of the fake's vocabulary.
func prompt(n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(3 + (i*37+11)%256)
	}
	return tokens
}

// generate samples n tokens greedily and returns their ids.
func generate(t *testing.T, s *session.Session, tokens []uint32, n uint32) []uint32 {
	t.Helper()
	ids, err := try(t.Context(), s, tokens, n)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// try is generate for another goroutine than the test's.
func try(ctx context.Context, s *session.Session, tokens []uint32, n uint32) ([]uint32, error) {
	run, err := s.Generate(ctx, session.Generation{Tokens: tokens, MaxTokens: n})
	if err != nil {
		return nil, err
	}
	ids, err := rest(ctx, run)
	if errors.Is(err, io.EOF) {
		return ids, nil
	}
	return ids, err
}

// rest takes a run to its end.
func rest(ctx context.Context, run *session.Run) (ids []uint32, err error) {
	for {
		token, err := run.Next(ctx)
		if err != nil {
			return ids, err
		}
		ids = append(ids, token.ID)
	}
}

func TestGoingBackAndOnGivesTheSameTokens(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=6", "0:2", "2:4", "4:6")
	r := connect(t, addresses)
	s := openSession(t, r, nil)
	tokens := prompt(200) // four chunks
	first := generate(t, s, tokens, 30)
	if s.Length() != 229 { // the last sample is not in the caches
		t.Fatalf("length %d after 200 and 30 tokens", s.Length())
	}
	for _, length := range []uint32{199, 128, 1, 0} {
		if err := s.Truncate(t.Context(), length); err != nil || s.Length() != length {
			t.Fatalf("truncate to %d: %v, length %d", length, err, s.Length())
		}
		if again := generate(t, s, tokens[length:], 30); !slices.Equal(again, first) {
			t.Errorf("after going back to %d: %v, before %v", length, again, first)
		}
	}
	if err := s.Truncate(t.Context(), 5000); err != nil || s.Length() != 229 {
		t.Errorf("truncate beyond the end: %v, length %d", err, s.Length())
	}
	usage, err := s.Close(t.Context(), false)
	if err != nil || usage.GetTokensEvaluated() == 0 {
		t.Errorf("usage %v, %v", usage, err)
	}
}

func TestStoppedRunGoesOnWhereItWasLeft(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=4,script=step slow 2ms", "0:2", "2:4")
	r := connect(t, addresses)
	whole := generate(t, openSession(t, r, nil), prompt(5), 60)

	s := openSession(t, r, nil)
	run, err := s.Generate(t.Context(), session.Generation{Tokens: prompt(5), MaxTokens: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var taken []uint32
	for range 10 {
		token, err := run.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, token.ID)
	}
	run.Stop()
	more, err := rest(t.Context(), run)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	result, ok := run.Result()
	if !ok || result.Finish != workerpb.Finish_FINISH_CANCELLED || len(more) > 10 {
		t.Errorf("finish %v, %d tokens after the stop", result.Finish, len(more))
	}
	// Keep what was taken, as a gateway does that found a stop string there, and go on.
	if err := s.Truncate(t.Context(), 5+9); err != nil {
		t.Fatal(err)
	}
	taken = append(taken, generate(t, s, taken[9:], 50)...)
	if !slices.Equal(taken, whole) {
		t.Errorf("with a stop in between %v, at once %v", taken, whole)
	}
}

func TestLogitsOfSeveralRowsComeThroughFrames(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=2,vocab=30000", "0:1", "1:2")
	r := connect(t, addresses)
	s := openSession(t, r, nil)
	tokens := prompt(20) // 2.4 MB of logits, more than a message
	all, err := s.Decode(t.Context(), tokens, workerpb.Want_WANT_LOGITS_ALL, nil)
	if err != nil || len(all.Logits) != 20 || len(all.Logits[19]) != 30000 {
		t.Fatalf("%d rows, %v", len(all.Logits), err)
	}
	if err := s.Truncate(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	last, err := s.Decode(t.Context(), tokens, workerpb.Want_WANT_LOGITS_LAST, nil)
	if err != nil || len(last.Logits) != 1 || !slices.Equal(last.Logits[0], all.Logits[19]) {
		t.Fatalf("the last row alone differs, or %v", err)
	}
	best := uint32(slices.Index(last.Logits[0], slices.Max(last.Logits[0])))
	if err := s.Truncate(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	sampled, err := s.Decode(t.Context(), tokens, workerpb.Want_WANT_SAMPLE, &workerpb.Sampling{Temperature: proto.Float32(0), Logprobs: proto.Uint32(3)})
	if err != nil || sampled.Sample.ID != best || len(sampled.Sample.Top) != 3 || sampled.Sample.Logprob == nil {
		t.Errorf("sample %+v, %v, want token %d", sampled, err, best)
	}
}

// The generation goes on over a replica after a hop was killed: no token is lost and none doubled.
func TestResumeOverAReplica(t *testing.T) {
	const model = "fake:layers=6,script=step slow 2ms"
	parts := []string{"0:2", "2:4", "4:6"}
	for index, part := range parts {
		t.Run(part, func(t *testing.T) {
			workers, addresses := startRoute(t, model, parts...)
			r := connect(t, addresses)
			tokens := prompt(100)
			whole := generate(t, openSession(t, r, nil), tokens, 40)

			s := openSession(t, r, func(o *session.Options) { o.Linger = 10 * time.Second })
			run, err := s.Generate(t.Context(), session.Generation{Tokens: tokens, MaxTokens: 40})
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				token, err := run.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				tokens = append(tokens, token.ID)
			}
			workers[index].signal(syscall.SIGKILL)
			more, err := rest(t.Context(), run)
			if f := fault.Of(err); f.Code != workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST || f.Subject.GetIndex() != uint32(index) {
				t.Fatalf("error %+v", f)
			}
			tokens = append(tokens, more...)

			replica := startWorker(t, model, part)
			n, err := s.Resume(t.Context(), connect(t, strings.Replace(addresses, workers[index].Address, replica.Address, 1)))
			if err != nil {
				t.Fatal(err)
			}
			defer n.Abandon()
			if n.Attempt() != 2 || !slices.Equal(n.Tokens(), tokens[:n.Length()]) {
				t.Errorf("attempt %d holds %v", n.Attempt(), n.Tokens())
			}
			tokens = append(tokens, generate(t, n, tokens[n.Length():], uint32(140-len(tokens)))...)
			if !slices.Equal(tokens[100:], whole) {
				t.Errorf("with a loss in between %v, without %v", tokens[100:], whole)
			}
		})
	}
}

// The caches survive a broken link for as long as was agreed, so that the next attempt prefills nothing.
func TestResumeFindsLingeringCaches(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=4", "0:2", "2:4")
	r := connect(t, addresses)
	s := openSession(t, r, func(o *session.Options) { o.Linger = 30 * time.Second })
	if err := s.Prefill(t.Context(), prompt(100)); err != nil {
		t.Fatal(err)
	}
	n, err := s.Resume(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Abandon()
	if n.Length() != 100 || !slices.Equal(n.Tokens(), prompt(100)) {
		t.Errorf("the second attempt found %d tokens", n.Length())
	}
}

func TestSessionsSideBySideDoNotMeet(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=4,script=step slow 500us", "0:2", "2:4")
	r := connect(t, addresses)
	var group sync.WaitGroup
	results := make([][]uint32, 4)
	for i := range results {
		s := openSession(t, r, nil)
		group.Go(func() {
			var err error
			if results[i], err = try(t.Context(), s, prompt(10+30*i), 40); err == nil {
				_, err = s.Close(t.Context(), false)
			}
			if err != nil {
				t.Errorf("session %d: %v", i, err)
			}
		})
	}
	group.Wait()
	for i, got := range results {
		s := openSession(t, r, nil)
		if want := generate(t, s, prompt(10+30*i), 40); !slices.Equal(got, want) {
			t.Errorf("session %d beside others: %v, alone %v", i, got, want)
		}
		if _, err := s.Close(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManySessionsOneAfterAnother(t *testing.T) {
	_, addresses := startRoute(t, "fake:layers=4", "0:2", "2:4")
	r := connect(t, addresses)
	for i := range 100 {
		s := openSession(t, r, func(o *session.Options) { o.ContextTokens = 64 })
		generate(t, s, prompt(5), 3)
		if i%2 == 0 { // a driver that says goodbye, and one that does not
			if _, err := s.Close(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			continue
		}
		s.Abandon()
	}
	metrics, err := r.Head().Metrics(t.Context())
	if err != nil || metrics.GetSessionsOpened() != 100 || metrics.GetImpossibleTransitions() != 0 {
		t.Errorf("metrics %v, %v", metrics, err)
	}
}

func TestEngineFaultsReachTheDriver(t *testing.T) {
	for script, want := range map[string]workerpb.ErrorCode{
		"step 3 nan":                       workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT,
		"step 3 poison":                    workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT,
		"step 3 fail ENGINE_OUT_OF_MEMORY": workerpb.ErrorCode_ERROR_CODE_ENGINE_OUT_OF_MEMORY,
		"step 3 lost":                      workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT,
	} {
		t.Run(script, func(t *testing.T) {
			head := startWorker(t, "fake:layers=4", "0:2")
			middle := startWorker(t, "fake:layers=4,script="+script, "2:3")
			tail := startWorker(t, "fake:layers=4", "3:4")
			r := connect(t, head.Address+","+middle.Address+","+tail.Address)
			s := openSession(t, r, nil)
			run, err := s.Generate(t.Context(), session.Generation{Tokens: prompt(5), MaxTokens: 20})
			if err != nil {
				t.Fatal(err)
			}
			_, err = rest(t.Context(), run)
			f := fault.Of(err)
			if f.Code != want || f.Subject.GetIndex() != 1 {
				t.Fatalf("error %+v, want %s of hop 1", f, fault.Name(want))
			}
		})
	}
}
