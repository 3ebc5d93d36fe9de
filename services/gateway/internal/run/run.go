// Package run is `dgr run`: a prompt over a route of workers, streamed as text. Tokens come from the head worker's
// TextService, so that no model file is needed here.
//
// What must stay out: starting workers (package up), chat, and retries.
package run

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
	"github.com/distributed-gguf-runtime/dgr/libs/client/worker"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
)

// discovery bounds how long the workers may take to say what they hold, stopping how long they may take to end a run that
// nobody wants any more.
const (
	discovery = 10 * time.Second
	stopping  = 2 * time.Second
)

// Options say what to generate and where.
type Options struct {
	Route        []string // HOST:PORT of every worker, in any order
	Prompt       string
	Special      bool     // read special tokens written in the prompt
	MaxTokens    uint32   // ≥ 1
	Stop         []string // texts that end the answer and are no part of it
	Context      uint32   // tokens to reserve; 0: what is needed
	Temperature  float32  // 0 is greedy
	TopK         uint32   // 0 is off
	TopP         float32  // 1 is off
	MinP         float32  // 0 is off
	Typical      float32  // 1 is off
	Repeat       float32  // repetition penalty; 1 is off
	Seed         *uint64  // nil: drawn
	TokenTimeout time.Duration
	Dial         dial.Options
}

// Default is greedy.
func Default() Options {
	return Options{MaxTokens: 64, TopP: 1, Typical: 1, Repeat: 1, TokenTimeout: 30 * time.Second, Dial: dial.Default()}
}

// Report is what was generated and how fast. It is also the form of --json.
type Report struct {
	Text         string  `json:"text"`
	Finish       string  `json:"finish"` // LENGTH, END_OF_GENERATION, STOP_TOKEN, STOP_STRING or CANCELLED
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"`
	Seed         *uint64 `json:"seed,omitempty"` // where something was drawn
	Prefill      Speed   `json:"prefill"`        // from the first chunk sent to the first token
	Decode       Speed   `json:"decode"`         // from the first token to the last
	Hops         []Hop   `json:"hops"`
}

// Speed is tokens over time.
type Speed struct {
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"tokens_per_second"` // 0: too few to say
}

func speed(tokens int, took time.Duration) Speed {
	s := Speed{Tokens: tokens, Seconds: took.Seconds()}
	if tokens > 0 && took > 0 {
		s.Rate = float64(tokens) / took.Seconds()
	}
	return s
}

// Hop is one worker's part.
type Hop struct {
	fail.Hop
	ComputeMS float64 `json:"compute_ms_per_token"` // of decode
}

// Generate runs the prompt and gives text to emit as it comes. It leaves no session behind. A context that ends stops the
// run; the text so far stands.
//
// Errors: all of the route and of the session, with the hop that they are about; emit's error.
func Generate(ctx context.Context, o Options, emit func(string) error) (*Report, error) {
	workers := make([]*worker.Client, 0, len(o.Route))
	defer func() {
		for _, w := range workers {
			_ = w.Close() // nothing runs over it any more
		}
	}()
	for _, address := range o.Route {
		w, err := worker.Open(address, o.Dial)
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	asking, stop := context.WithTimeout(ctx, discovery)
	defer stop()
	r, err := route.Discover(asking, workers)
	if err != nil {
		return nil, locateByAddress(err, o.Route)
	}
	tokens, err := r.Head().Tokenize(asking, r.Fingerprint, o.Prompt, true, o.Special)
	if err != nil {
		return nil, fail.Locate(err, r)
	}
	if len(tokens) == 0 {
		return nil, fail.Usagef("the prompt is empty and the model puts nothing before it; give a prompt with -p")
	}
	report, err := generate(ctx, r, o, tokens, emit)
	return report, fail.Locate(err, r)
}

// locateByAddress says which address an error of the discovery is about: before a route exists, places are those of the list.
func locateByAddress(err error, addresses []string) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Subject != nil && int(f.Subject.GetIndex()) < len(addresses) && !f.Inferred {
		return fmt.Errorf("worker at %s: %w", addresses[f.Subject.GetIndex()], err)
	}
	return err
}

func generate(ctx context.Context, r *route.Route, o Options, tokens []uint32, emit func(string) error) (*Report, error) {
	so := session.Default()
	so.TokenBudget = o.TokenTimeout
	need := uint64(len(tokens)) + uint64(o.MaxTokens) - 1
	if so.ContextTokens = o.Context; o.Context == 0 {
		so.ContextTokens = uint32(min(need, uint64(r.ContextLimit)))
	}
	if need > uint64(so.ContextTokens) {
		return nil, fault.New(workerpb.ErrorCode_ERROR_CODE_CONTEXT_OVERFLOW, "the prompt has %d tokens and -n asks for %d; there is room for %d",
			len(tokens), o.MaxTokens, so.ContextTokens)
	}
	s, err := session.Open(ctx, r, so)
	if err != nil {
		return nil, err
	}
	defer s.Abandon()
	sampling, seed, err := o.sampling()
	if err != nil {
		return nil, err
	}
	run, err := s.Generate(ctx, session.Generation{Tokens: tokens, Sampling: sampling, MaxTokens: o.MaxTokens})
	if err != nil {
		return nil, err
	}
	report := &Report{PromptTokens: len(tokens), Seed: seed}
	if err := report.take(ctx, run, o.Stop, emit); err != nil {
		return nil, err
	}
	report.conclude(r, run)
	// The answer is complete; whether the hops say goodbye in time changes nothing of it.
	_, _ = s.Close(context.WithoutCancel(ctx), false)
	if ctx.Err() != nil {
		return report, fault.FromContext(ctx, "the rest of the text")
	}
	return report, nil
}

// take streams the run's tokens.
func (r *Report) take(ctx context.Context, run *session.Run, stops []string, emit func(string) error) error {
	text := assembler{stops: stops}
	var first, last time.Time
	say := func(s string) error {
		r.Text += s
		if s == "" {
			return nil
		}
		return emit(s)
	}
	taking := ctx
	for {
		t, err := run.Next(taking)
		switch {
		case errors.Is(err, io.EOF):
			r.Prefill = speed(r.PromptTokens, elapsed(run.Begun(), first))
			r.Decode = speed(max(r.Tokens-1, 0), elapsed(first, last))
			if text.stopped {
				r.Finish = "STOP_STRING"
			}
			return say(text.end())
		case err != nil && ctx.Err() != nil && taking == ctx:
			run.Stop() // and take what is in flight
			bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), stopping)
			defer stop()
			taking = bounded
			continue
		case err != nil:
			return err
		}
		if last = t.At; r.Tokens == 0 {
			first = t.At
		}
		r.Tokens++
		if err := say(text.add(t.Bytes)); err != nil {
			return fmt.Errorf("the text cannot be written: %w", err)
		}
		if text.stopped {
			run.Stop()
		}
	}
}

func elapsed(from, to time.Time) time.Duration {
	if to.Before(from) {
		return 0
	}
	return to.Sub(from)
}

// conclude adds what is known at the end.
func (r *Report) conclude(over *route.Route, run *session.Run) {
	result, _ := run.Result()
	if r.Finish == "" {
		r.Finish = finish(result.Finish)
	}
	for i := range over.Hops {
		hop := Hop{Hop: fail.HopOf(over, uint32(i))}
		for _, timing := range result.Timing {
			if int(timing.GetHop()) == i && len(timing.GetShapes()) > 0 {
				hop.ComputeMS = timing.GetCompute().AsDuration().Seconds() * 1000 / float64(len(timing.GetShapes()))
			}
		}
		r.Hops = append(r.Hops, hop)
	}
}

func finish(f workerpb.Finish) string {
	switch f {
	case workerpb.Finish_FINISH_LENGTH:
		return "LENGTH"
	case workerpb.Finish_FINISH_STOP_TOKEN:
		return "STOP_TOKEN"
	case workerpb.Finish_FINISH_END_OF_GENERATION:
		return "END_OF_GENERATION"
	case workerpb.Finish_FINISH_CANCELLED:
		return "CANCELLED"
	}
	return f.String()
}

// sampling is the contract's form; the seed is nil where nothing is drawn.
func (o Options) sampling() (*workerpb.Sampling, *uint64, error) {
	s := &workerpb.Sampling{Temperature: proto.Float32(o.Temperature)}
	if o.Repeat != 1 {
		s.RepeatPenalty, s.PenaltyWindow = proto.Float32(o.Repeat), proto.Uint32(64)
	}
	if o.Temperature == 0 {
		return s, nil, nil
	}
	seed := o.Seed
	if seed == nil {
		var drawn [8]byte
		if _, err := rand.Read(drawn[:]); err != nil {
			return nil, nil, fmt.Errorf("no random seed: %w", err)
		}
		// 53 bits, so that a reader of the JSON gets the same number.
		seed = proto.Uint64(binary.LittleEndian.Uint64(drawn[:]) >> 11)
	}
	s.Seed = seed
	if o.TopK > 0 {
		s.TopK = proto.Uint32(o.TopK)
	}
	if o.TopP < 1 {
		s.TopP = proto.Float32(o.TopP)
	}
	if o.MinP > 0 {
		s.MinP = proto.Float32(o.MinP)
	}
	if o.Typical < 1 {
		s.Typical = proto.Float32(o.Typical)
	}
	return s, seed, nil
}
