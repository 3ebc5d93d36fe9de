//go:build llama && cgo

package llama

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// during is a context that calls do once, when a batch is the running one and native code has not begun yet: that is when
// Step asks for its end.
type during struct {
	context.Context
	engine *loaded
	done   chan struct{}
	do     func(*during)
}

// whileRunning makes a context whose do is called in the middle of Step, on its goroutine.
func (l *loaded) whileRunning(t *testing.T, do func(*during)) *during {
	return &during{Context: t.Context(), engine: l, done: make(chan struct{}), do: do}
}

func (d *during) Done() <-chan struct{} {
	d.engine.mu.Lock()
	active := d.engine.running.active
	d.engine.mu.Unlock()
	if do := d.do; active && do != nil {
		d.do = nil
		do(d)
	}
	return d.done
}

func (d *during) Err() error {
	select {
	case <-d.done:
		return context.Canceled
	default:
		return nil
	}
}

func (d *during) cancel() { close(d.done) }

// wasStopped says whether the last batch was asked to stop in native code.
func (l *loaded) wasStopped() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running.stopped
}

// TestCancelOnTheWay: a batch stops in native code when all its steps are cancelled, and only then.
func TestCancelOnTheWay(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 3, 192)
	a := engine.Step{Session: id(1), Tokens: tokens(1, 48, 256), Want: engine.WantLogitsLast}
	b := engine.Step{Session: id(2), Tokens: tokens(2, 48, 256), Want: engine.WantLogitsLast}
	alone := l.run(t, engine.Step{Session: id(3), Tokens: b.Tokens, Want: engine.WantLogitsLast})[0]

	results, err := l.Step(l.whileRunning(t, func(*during) { l.Cancel(id(1)); l.Cancel(id(1)); l.Cancel(id(9)) }), []engine.Step{a, b})
	if err != nil || results[1].Err != nil || l.wasStopped() {
		t.Fatalf("the other step of a batch: %v, %v; stopped: %t", err, results[1].Err, l.wasStopped())
	}
	wantCode(t, results[0].Err, engine.Cancelled)
	if results[0].Cache.Length != 0 || len(results[0].Logits.Data) != 0 || results[1].Cache.Length != 48 || len(results[1].Logits.Data) == 0 {
		t.Errorf("a cancelled step beside another: %+v, %+v", results[0], results[1].Cache)
	}
	if _, err := l.Truncate(t.Context(), id(2), 0); err != nil {
		t.Fatal(err)
	}

	rows := l.Metrics().Rows
	for name, cancel := range map[string]func(*during){
		"every session":      func(*during) { l.Cancel(id(1)); l.Cancel(id(2)); l.Cancel(id(2)) },
		"end of the context": (*during).cancel,
	} {
		results, err := l.Step(l.whileRunning(t, cancel), []engine.Step{a, b})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, r := range results {
			wantCode(t, r.Err, engine.Cancelled)
			if r.Cache.Length != 0 {
				t.Errorf("%s: a cancelled step left %d tokens", name, r.Cache.Length)
			}
		}
		if !l.wasStopped() {
			t.Errorf("%s: native code was not asked to stop", name)
		}
	}
	if got := l.Metrics(); got.Cancelled != 5 || got.Failed != 0 || got.Rows <= rows {
		t.Errorf("metrics %+v", got)
	}
	after := l.run(t, engine.Step{Session: id(2), Tokens: b.Tokens, Want: engine.WantLogitsLast})[0]
	sameBits(t, "logits after cancels", after.Logits, alone.Logits)
}

// TestLateCancel: the end of a context after its batch has no effect on the next batch.
func TestLateCancel(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 1, 64)
	first := l.whileRunning(t, func(*during) {})
	if _, err := l.Step(first, []engine.Step{{Session: id(1), Tokens: tokens(1, 4, 256)}}); err != nil {
		t.Fatal(err)
	}
	results, err := l.Step(l.whileRunning(t, func(*during) { first.cancel() }), []engine.Step{{Session: id(1), Start: 4, Tokens: tokens(2, 4, 256)}})
	if err != nil || results[0].Err != nil {
		t.Errorf("a batch after one whose context ended late: %v, %v", err, results[0].Err)
	}
}

// TestObserversDoNotWait: what may be called from any goroutine answers in the middle of a batch, and Close ends the batch.
func TestObserversDoNotWait(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 1, 192)
	closed := make(chan error, 1)
	results, err := l.Step(l.whileRunning(t, func(*during) { // here a call that waits for the batch would wait for ever
		l.Capabilities()
		l.Metrics()
		l.Cancel(id(9))
		if _, err := l.Health(t.Context(), false); err != nil {
			t.Error(err)
		}
		if _, err := l.text.Tokenize(t.Context(), "in the middle of a batch", true, true); err != nil {
			t.Error(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if _, err := l.Health(ctx, true); engine.CodeOf(err) != engine.Cancelled {
			t.Errorf("a deep probe whose context ends: %v", err)
		}
		go func() { closed <- l.Close() }()
		for l.check(stateClosed) != nil {
			runtime.Gosched()
		}
	}), []engine.Step{{Session: id(1), Tokens: tokens(1, 96, 256)}})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, results[0].Err, engine.Cancelled)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	_, err = l.text.Tokenize(t.Context(), "closed", true, true)
	wantCode(t, err, engine.LifecycleViolation)
}

// poison writes NaN over the row of a token in the token embedding.
func poison(t *testing.T, path string, token uint64) {
	t.Helper()
	file, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tensor := range file.Tensors {
		if tensor.Name != "token_embd.weight" {
			continue
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		width := tensor.Dims[0]
		row := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN()))), int(width))
		if _, err := f.WriteAt(row, int64(tensor.Offset+4*width*token)); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no token embedding")
}

// TestNumericFault: NaN out of the layers undoes its step alone, and its slot goes to nobody else before it is zeroed.
func TestNumericFault(t *testing.T) {
	for _, flash := range []bool{true, false} {
		model := spec(t, "llama")
		model.Tied = false
		path := writeModel(t, model)
		poison(t, path, 5)
		req := request(path)
		req.Sessions, req.FlashAttention = 2, flash
		l := load(t, req, 0, 0)
		l.open(t, 2, 64)
		good := engine.Step{Session: id(2), Tokens: []engine.TokenID{7, 8, 9}, Want: engine.WantLogitsLast}
		want := l.run(t, good)[0].Logits
		if _, err := l.Truncate(t.Context(), id(2), 0); err != nil {
			t.Fatal(err)
		}

		bad := engine.Step{Session: id(1), Tokens: []engine.TokenID{6, 5, 6, 6, 6}, Want: engine.WantLogitsAll}
		results, err := l.Step(t.Context(), []engine.Step{bad, good})
		if err != nil || results[1].Err != nil {
			t.Fatalf("the step beside a numeric fault: %v, %+v", err, results)
		}
		wantCode(t, results[0].Err, engine.NumericFault)
		if results[0].Cache.Length != 0 || len(results[0].Logits.Data) != 0 {
			t.Errorf("a numeric fault left %+v", results[0])
		}
		if err := l.Release(t.Context(), id(1)); err != nil {
			t.Fatal(err)
		}
		wantCode(t, l.Open(t.Context(), id(3), 64), engine.NoCapacity)
		if err := l.Release(t.Context(), id(2)); err != nil {
			t.Fatal(err)
		}
		for n := byte(4); n < 6; n++ { // both slots, the poisoned one too
			if err := l.Open(t.Context(), id(n), 64); err != nil {
				t.Fatal(err)
			}
			good.Session = id(n)
			sameBits(t, "logits in a slot that met NaN", l.run(t, good)[0].Logits, want)
		}
	}
}

// TestBrokenWeights: a shard whose first step is NaN is a bad file.
func TestBrokenWeights(t *testing.T) {
	path := writeModel(t, spec(t, "llama"))
	poison(t, path, 0)
	e, _, _ := New()
	defer e.Close()
	_, err := e.Load(t.Context(), request(path), nil)
	wantCode(t, err, engine.BadModelFile)
	if _, err := e.Load(t.Context(), request(writeModel(t, spec(t, "llama"))), nil); err != nil {
		t.Errorf("a load after a failed one: %v", err)
	}
}

// TestLoadStops: the end of the context stops a load wherever it is, and the engine can load again.
func TestLoadStops(t *testing.T) {
	path := writeModel(t, spec(t, "llama"))
	for _, mmap := range []bool{true, false} {
		for phase := engine.LoadValidating; phase <= engine.LoadProbing; phase++ {
			if phase == engine.LoadVerifying {
				continue // not done here
			}
			ctx, stop := context.WithCancel(t.Context())
			e, _, _ := New()
			req := request(path)
			req.MemoryMap = mmap
			_, err := e.Load(ctx, req, func(p engine.LoadProgress) {
				if p.Phase == phase {
					stop()
				}
			})
			stop()
			wantCode(t, err, engine.Cancelled)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the cause is lost: %v", err)
			}
			if _, err := e.Load(t.Context(), req, nil); err != nil {
				t.Errorf("a load after a stopped one: %v", err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestUnalignedBoundary: a boundary may begin at any byte of memory.
func TestUnalignedBoundary(t *testing.T) {
	c := loadChain(t, request(writeModel(t, spec(t, "llama"))), 0, 2, 4)
	c.open(t, 1, 64)
	step := engine.Step{Session: id(1), Tokens: tokens(1, 9, 256), Want: engine.WantLogitsAll}
	step.Boundary = c[0].run(t, step)[0].Boundary
	want := c[1].run(t, step)[0].Logits
	if _, err := c[1].Truncate(t.Context(), id(1), 0); err != nil {
		t.Fatal(err)
	}
	step.Boundary.Data = append(make([]byte, 1, 1+len(step.Boundary.Data)), step.Boundary.Data...)[1:]
	sameBits(t, "logits from an unaligned boundary", c[1].run(t, step)[0].Logits, want)
}

// TestComputeAddsUp: what the results say of time is what the metrics count.
func TestComputeAddsUp(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 2, 64)
	results := l.run(t, engine.Step{Session: id(2), Tokens: tokens(1, 30, 256)}, engine.Step{Session: id(1), Tokens: tokens(1, 10, 256)})
	m := l.Metrics()
	if sum := results[0].Compute + results[1].Compute; sum <= 0 || sum > m.Compute || m.Compute-sum > 1000 {
		t.Errorf("results say %v, metrics %v", sum, m.Compute)
	}
	if m.Rows != 40 || m.Batches != 1 || m.SessionsOpen != 2 || m.CacheReserved != 128 {
		t.Errorf("metrics %+v", m)
	}
}

// TestLog: what llama.cpp says reaches the logger at level debug, and nothing else does.
func TestLog(t *testing.T) {
	path := writeModel(t, spec(t, "llama"))
	for level, want := range map[slog.Level]bool{slog.LevelDebug: true, slog.LevelInfo: false} {
		var out bytes.Buffer
		e := newEngine(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
		if _, err := e.Load(t.Context(), request(path), nil); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "general.architecture"); got != want {
			t.Errorf("level %s: the log speaks of the header: %t, want %t", level, got, want)
		}
	}
}

// TestForbiddenTokens: when biases forbid every token the step is undone.
func TestForbiddenTokens(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 1, 64)
	s := &engine.Sampling{TopP: 1, RepeatPenalty: 1}
	for token := range l.info.Vocab {
		s.LogitBias = append(s.LogitBias, engine.LogitBias{Token: engine.TokenID(token), Bias: float32(math.Inf(-1))})
	}
	step := engine.Step{Session: id(1), Tokens: tokens(1, 3, 256), Want: engine.WantSample, Sampling: s}
	results, err := l.Step(t.Context(), []engine.Step{step})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, results[0].Err, engine.Malformed)
	if results[0].Cache.Length != 0 {
		t.Errorf("the step left %d tokens", results[0].Cache.Length)
	}
	s.LogitBias = s.LogitBias[:10]
	l.run(t, step)
}

// TestLibrary: the engine says which llama.cpp it is, as the pin has it.
func TestLibrary(t *testing.T) {
	e, _, _ := New()
	defer e.Close()
	c := e.Capabilities()
	if c.Name != "llama.cpp" || c.Version == "" || len(c.Devices) != 1 || c.Devices[0].MemoryFree == 0 || c.Shard != nil {
		t.Errorf("capabilities %+v", c)
	}
	if len(c.Pin) == 0 {
		t.Skip("this library was built by hand and does not know its pin")
	}
	pin, err := os.ReadFile("../pin.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Pin) != 20 || len(c.Patches) != 32 || !bytes.Contains(pin, []byte(hex.EncodeToString(c.Pin))) {
		t.Errorf("pin %x, patches %x; pin.json: %s", c.Pin, c.Patches, pin)
	}
}

// TestTextOfAFailedLoad: a load that failed leaves the text engine as it was.
func TestTextOfAFailedLoad(t *testing.T) {
	path := writeModel(t, spec(t, "llama"))
	poison(t, path, 0)
	e, text, _ := New()
	defer e.Close()
	_, err := e.Load(t.Context(), request(path), nil)
	wantCode(t, err, engine.BadModelFile)
	_, err = text.Tokenize(t.Context(), "text", true, true)
	wantCode(t, err, engine.LifecycleViolation)
}
