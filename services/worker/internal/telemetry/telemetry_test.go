package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func TestLogKeepsSecrets(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := NewLogger(&out, slog.LevelInfo, format)
		log.Debug("below the level")
		log.With("session_key", "s3cret").WithGroup("open").Info("opened", "session_key", "s3cret", "session", "abc",
			slog.Group("peer", slog.String("authorization", "Bearer s3cret")))
		text := out.String()
		if strings.Contains(text, "s3cret") || !strings.Contains(text, "abc") || strings.Contains(text, "below") {
			t.Errorf("%s: %s", format, text)
		}
		if format == "json" && !json.Valid(out.Bytes()) {
			t.Errorf("no JSON: %s", text)
		}
	}
}

func TestMetricsHaveTheirValues(t *testing.T) {
	m := NewMetrics(Build{Version: "1", Engine: "fake", EngineVersion: "2", WorkerID: "w"})
	m.ShardState(tables.ShardLoading)
	m.ShardState(tables.ShardReady)
	m.ShardImpossible(tables.ShardReady, tables.ShardEventLoaded)
	m.ShardRestart()
	m.ShardProbe(time.Millisecond, nil)
	m.ShardProbe(0, engine.Errorf(engine.NumericFault, "NaN"))
	m.SessionOpened()
	m.SessionClosed("CLOSE_REASON_REQUESTED")
	m.Error("NO_CAPACITY")
	m.Batch(2, 7, time.Millisecond)
	m.Batch(1, 1, time.Millisecond)
	m.Queued(3)
	m.Counter("sent_bytes_total", "Payload sent.", func() float64 { return 4096 })
	m.Dial("OK")
	m.RoundTrip(time.Millisecond)
	m.Gauge("sessions", "Sessions now.", func() float64 { return 5 })
	m.Engine(func() engine.Metrics { return engine.Metrics{Batches: 11, Compute: 2 * time.Second, SessionsOpen: 4} })

	want := `
# HELP dgr_worker_batch_shared_rows_total Tokens that ran in one native call with another session's.
# TYPE dgr_worker_batch_shared_rows_total counter
dgr_worker_batch_shared_rows_total 7
# HELP dgr_worker_engine_compute_seconds_total Time in native code of the present engine.
# TYPE dgr_worker_engine_compute_seconds_total counter
dgr_worker_engine_compute_seconds_total 2
# HELP dgr_worker_engine_sessions Sessions with room in the present engine.
# TYPE dgr_worker_engine_sessions gauge
dgr_worker_engine_sessions 4
# HELP dgr_worker_errors_total Errors that this worker raised, by code.
# TYPE dgr_worker_errors_total counter
dgr_worker_errors_total{code="NO_CAPACITY"} 1
# HELP dgr_worker_impossible_transitions_total Events that a lifecycle table calls impossible; each is a defect.
# TYPE dgr_worker_impossible_transitions_total counter
dgr_worker_impossible_transitions_total{event="Loaded",state="READY",table="shard"} 1
# HELP dgr_worker_probe_failures_total Probe steps that failed, by error code.
# TYPE dgr_worker_probe_failures_total counter
dgr_worker_probe_failures_total{code="NUMERIC_FAULT"} 1
# HELP dgr_worker_sent_bytes_total Payload sent.
# TYPE dgr_worker_sent_bytes_total counter
dgr_worker_sent_bytes_total 4096
# HELP dgr_worker_sessions Sessions now.
# TYPE dgr_worker_sessions gauge
dgr_worker_sessions 5
# HELP dgr_worker_sessions_closed_total Sessions that ended, by reason.
# TYPE dgr_worker_sessions_closed_total counter
dgr_worker_sessions_closed_total{reason="REQUESTED"} 1
# HELP dgr_worker_shard_state 1 for the present state of the shard, 0 for the others.
# TYPE dgr_worker_shard_state gauge
dgr_worker_shard_state{state="DRAINING"} 0
dgr_worker_shard_state{state="FAILED"} 0
dgr_worker_shard_state{state="LOADING"} 0
dgr_worker_shard_state{state="READY"} 1
dgr_worker_shard_state{state="UNLOADED"} 0
`
	names := []string{"dgr_worker_shard_state", "dgr_worker_impossible_transitions_total", "dgr_worker_probe_failures_total",
		"dgr_worker_errors_total", "dgr_worker_sessions_closed_total", "dgr_worker_sent_bytes_total", "dgr_worker_sessions",
		"dgr_worker_batch_shared_rows_total", "dgr_worker_engine_compute_seconds_total", "dgr_worker_engine_sessions"}
	if err := testutil.GatherAndCompare(m.Gatherer(), strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	m.Engine(nil)
	if n, err := testutil.GatherAndCount(m.Gatherer(), "dgr_worker_engine_batches_total"); err != nil || n != 0 {
		t.Errorf("%d series of an engine that is gone, %v", n, err)
	}
	problems, err := testutil.GatherAndLint(m.Gatherer())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, namespace) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
