package enginetest

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// shard is a loaded engine that the test closes.
type shard struct {
	engine.ShardEngine
	text engine.TextEngine
	info engine.ShardInfo
}

// fresh makes an engine in New.
func fresh(t *testing.T, factory engine.Factory) *shard {
	t.Helper()
	e, text, err := factory()
	if err != nil {
		t.Fatalf("the factory failed: %v", err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &shard{ShardEngine: e, text: text}
}

func (s suite) request(layers engine.LayerRange) engine.LoadRequest {
	r := s.Request
	r.Paths = slices.Clone(r.Paths)
	r.Layers = layers
	return r
}

func (s suite) load(t *testing.T, layers engine.LayerRange) *shard {
	t.Helper()
	return s.loadFrom(t, s.Factory, layers)
}

func (s suite) loadFrom(t *testing.T, factory engine.Factory, layers engine.LayerRange) *shard {
	t.Helper()
	sh := fresh(t, factory)
	info, err := sh.Load(t.Context(), s.request(layers), nil)
	if err != nil {
		t.Fatalf("Load of layers %s: %v", layers, err)
	}
	sh.info = info
	return sh
}

// chain is the shards of a whole model, in order.
type chain []*shard

// loadChain cuts the model at cuts.
func (s suite) loadChain(t *testing.T, nLayer uint32, cuts ...uint32) chain {
	t.Helper()
	var c chain
	first := uint32(0)
	for _, end := range append(slices.Clone(cuts), nLayer) {
		c = append(c, s.load(t, engine.LayerRange{First: first, End: end}))
		first = end
	}
	return c
}

func sessionID(n byte) engine.SessionID { return engine.SessionID{0: 0xd6, 15: n} }

func (sh *shard) open(t *testing.T, n byte, contextTokens uint32) engine.SessionID {
	t.Helper()
	id := sessionID(n)
	if err := sh.Open(t.Context(), id, contextTokens); err != nil {
		t.Fatalf("Open of session %d: %v", n, err)
	}
	return id
}

func (c chain) open(t *testing.T, n byte, contextTokens uint32) engine.SessionID {
	t.Helper()
	for _, sh := range c {
		sh.open(t, n, contextTokens)
	}
	return sessionID(n)
}

// batch runs a batch that must be good as a whole.
func (sh *shard) batch(t *testing.T, steps ...engine.Step) []engine.StepResult {
	t.Helper()
	results, err := sh.Step(t.Context(), steps)
	if err != nil {
		t.Fatalf("Step of a good batch: %v", err)
	}
	if len(results) != len(steps) {
		t.Fatalf("%d results for %d steps", len(results), len(steps))
	}
	for i := range results {
		checkState(t, results[i].Cache)
	}
	return results
}

// one runs a step alone that must succeed.
func (sh *shard) one(t *testing.T, step engine.Step) engine.StepResult {
	t.Helper()
	result := sh.batch(t, step)[0]
	if result.Err != nil {
		t.Fatalf("a good step at %d with %d tokens failed: %v", step.Start, len(step.Tokens), result.Err)
	}
	if want := step.Start + engine.Pos(len(step.Tokens)); result.Cache.Length != want {
		t.Fatalf("the cache has %d tokens after a good step, want %d", result.Cache.Length, want)
	}
	return result
}

// refused runs a step alone that must fail with code and change nothing.
func (sh *shard) refused(t *testing.T, step engine.Step, code engine.Code, length engine.Pos) {
	t.Helper()
	result := sh.batch(t, step)[0]
	wantCode(t, result.Err, code)
	if result.Cache.Length != length {
		t.Errorf("the cache has %d tokens after a refused step, want %d", result.Cache.Length, length)
	}
	if len(result.Boundary.Data) != 0 || len(result.Logits.Data) != 0 || result.Sample != nil {
		t.Error("a refused step has output")
	}
}

// run sends a step through the chain. The result is the tail's.
func (c chain) run(t *testing.T, step engine.Step) engine.StepResult {
	t.Helper()
	var result engine.StepResult
	for _, sh := range c {
		result = sh.one(t, step)
		step.Boundary = result.Boundary
	}
	return result
}

// step is a step with a fitting boundary: none at the head, else one that follows from the tokens.
func (sh *shard) step(session engine.SessionID, start engine.Pos, tokens []engine.TokenID, want engine.Want) engine.Step {
	s := engine.Step{Session: session, Start: start, Tokens: tokens, Want: want}
	if want == engine.WantSample {
		s.Sampling = greedy()
	}
	if in := sh.info.BoundaryIn; in != nil {
		s.Boundary = engine.Rows{N: uint32(len(tokens)), Width: in.Width}
		for i, token := range tokens {
			for j := range in.Width {
				value := float32((uint32(token)*31+uint32(start)+uint32(i)*7+j*13)%256)/128 - 1
				s.Boundary.Data = binary.LittleEndian.AppendUint32(s.Boundary.Data, math.Float32bits(value))
			}
		}
	}
	return s
}

func greedy() *engine.Sampling {
	return &engine.Sampling{TopP: 1, RepeatPenalty: 1}
}

// tokens are n ids below vocab that follow from seed.
func (sh *shard) tokens(seed uint32, n int) []engine.TokenID {
	ids := make([]engine.TokenID, n)
	state := seed*2654435761 + 12345
	for i := range ids {
		state = state*1664525 + 1013904223
		ids[i] = engine.TokenID((state >> 8) % sh.info.Vocab)
	}
	return ids
}

// floats reads rows.
func floats(rows engine.Rows) []float32 {
	values := make([]float32, len(rows.Data)/4)
	for i := range values {
		values[i] = math.Float32frombits(binary.LittleEndian.Uint32(rows.Data[4*i:]))
	}
	return values
}

// checkRows checks shape and finiteness.
func checkRows(t *testing.T, what string, rows engine.Rows, n, width uint32) {
	t.Helper()
	if rows.N != n || rows.Width != width || uint64(len(rows.Data)) != 4*uint64(n)*uint64(width) {
		t.Fatalf("%s is %d × %d in %d bytes, want %d × %d float32", what, rows.N, rows.Width, len(rows.Data), n, width)
	}
	for i, value := range floats(rows) {
		if math.IsNaN(float64(value)) || math.IsInf(float64(value), 0) {
			t.Fatalf("%s holds %v at %d", what, value, i)
		}
	}
}

// checkState checks what every CacheState promises by itself.
func checkState(t *testing.T, state engine.CacheState) {
	t.Helper()
	if len(state.Reach) == 0 {
		if state.Length != 0 {
			t.Fatalf("a cache of %d tokens has no reach", state.Length)
		}
		return // the zero value, of an unknown session
	}
	if state.Reach[0].From != 0 {
		t.Errorf("the reach %v does not hold 0", state.Reach)
	}
	next := engine.Pos(0)
	for i, span := range state.Reach {
		if span.From > span.To || span.To > state.Length || i > 0 && span.From <= next {
			t.Errorf("the reach %v of a cache of %d tokens is not ascending, disjoint and within it", state.Reach, state.Length)
		}
		next = span.To
	}
}

func holds(reach []engine.Span, length engine.Pos) bool {
	return slices.ContainsFunc(reach, func(s engine.Span) bool { return s.From <= length && length <= s.To })
}

// wantCode checks that err is an *engine.Error with one of the codes.
func wantCode(t *testing.T, err error, codes ...engine.Code) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %v", codes)
		return
	}
	var e *engine.Error
	if !errors.As(err, &e) {
		t.Errorf("error %v (%T) is no *engine.Error", err, err)
		return
	}
	if !slices.Contains(codes, e.Code) {
		t.Errorf("error %v, want %v", err, codes)
	}
	if e.Message == "" {
		t.Errorf("the error %s has no sentence", e.Code)
	}
}

// sameBits compares two blocks of rows to the bit.
func sameBits(t *testing.T, what string, got, want engine.Rows) {
	t.Helper()
	if got.N != want.N || got.Width != want.Width {
		t.Errorf("%s is %d × %d, want %d × %d", what, got.N, got.Width, want.N, want.Width)
		return
	}
	if !slices.Equal(got.Data, want.Data) {
		g, w := floats(got), floats(want)
		for i := range g {
			if math.Float32bits(g[i]) != math.Float32bits(w[i]) {
				t.Errorf("%s differs first at value %d (row %d): %v, want %v", what, i, i/int(got.Width), g[i], w[i])
				return
			}
		}
	}
}

// near compares within the target's tolerance.
func (s suite) near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s has %d values, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if diff := math.Abs(float64(got[i]) - float64(want[i])); !(diff <= s.Tolerance) {
			t.Errorf("%s at %d is %v, want %v within %v", what, i, got[i], want[i], s.Tolerance)
			return
		}
	}
}

// within runs f and fails when it takes longer than the suite's patience.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	await(t, what, done)
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		t.Fatalf("%s did not end within %v", what, patience)
	}
}

// outcome is what a Step in another goroutine returned.
type outcome struct {
	results []engine.StepResult
	err     error
}

// start runs a batch in a goroutine of its own and returns once the engine has begun to compute it.
func (sh *shard) start(ctx context.Context, t *testing.T, steps ...engine.Step) <-chan outcome {
	t.Helper()
	rows := sh.Metrics().Rows
	done := make(chan outcome, 1)
	go func() {
		results, err := sh.Step(ctx, steps)
		done <- outcome{results, err}
	}()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for sh.Metrics().Rows == rows {
		select {
		case <-tick.C:
		case o := <-done:
			done <- o
			return done
		}
		if time.Now().After(deadline) {
			t.Fatal("the engine did not begin the batch")
		}
	}
	return done
}

func (sh *shard) finish(t *testing.T, done <-chan outcome) outcome {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case o := <-done:
		return o
	case <-timer.C:
		t.Fatalf("the batch did not end within %v", patience)
		return outcome{}
	}
}
