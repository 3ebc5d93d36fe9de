package live

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A defect in the code of a session ends that session with INTERNAL, frees what it held, and nothing else.
func TestPanicEndsOneSession(t *testing.T) {
	e, text, err := fake.Factory(fake.Default())()
	if err != nil {
		t.Fatal(err)
	}
	info, err := e.Load(t.Context(), engine.LoadRequest{
		Paths: []string{"fake"}, ContextLimit: 64, Sessions: 2, BatchTokens: 16, MicroBatch: 16, Threads: 1, CacheType: "f32",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	d := New(Options{
		WorkerID: "w", Revisions: session.Revisions{Min: 1, Max: 1}, Limits: session.DefaultLimits(16), WindowBytes: 1 << 30, BatchTokens: 16,
		Log: slog.New(slog.NewTextHandler(io.Writer(&log), nil)),
	})
	d.Settle(shard.Loaded{Engine: e, Text: text, Info: info})
	residence := d.residence()
	var all []*Session
	for n := range byte(2) {
		s, fault := d.find(residence, engine.SessionID{n}, make([]byte, 32), "")
		if fault != nil {
			t.Fatal(fault)
		}
		s.upstream = d.Stream()
		all = append(all, s)
	}
	broken, whole := all[0], all[1]
	up := broken.upstream
	broken.mu.Lock()
	broken.do(func(time.Time) []session.Effect { panic("boom") })
	broken.mu.Unlock()
	if f := fault.Of(up.Status()); f == nil || f.Code != workerpb.ErrorCode_ERROR_CODE_INTERNAL {
		t.Errorf("its stream ends with %v", up.Status())
	}
	if !broken.over || whole.over || d.Sessions() != 1 || !strings.Contains(log.String(), "boom") {
		t.Errorf("over %v, other over %v, %d sessions, log %s", broken.over, whole.over, d.Sessions(), log.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	d.Evict(ctx, fault.New(workerpb.ErrorCode_ERROR_CODE_DRAINING, ""))
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
