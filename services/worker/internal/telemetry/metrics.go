package telemetry

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const namespace = "dgr_worker"

// Metrics are the worker's counters and gauges. All methods may be called from any goroutine and return at once.
type Metrics struct {
	registry *prometheus.Registry

	shardState    *prometheus.GaugeVec
	impossible    *prometheus.CounterVec
	transitions   *prometheus.CounterVec
	restarts      prometheus.Counter
	probes        prometheus.Histogram
	probeFailures *prometheus.CounterVec

	opened       prometheus.Counter
	closed       *prometheus.CounterVec
	errors       *prometheus.CounterVec
	batchTime    prometheus.Histogram
	batchRows    prometheus.Histogram
	batchShared  prometheus.Counter
	queued       prometheus.Gauge
	dials        *prometheus.CounterVec
	roundTrip    prometheus.Histogram
	ringDials    *prometheus.CounterVec
	rungFirst    prometheus.Counter
	engineSource atomic.Pointer[func() engine.Metrics]
}

// Build says what runs, for dgr_worker_build_info.
type Build struct{ Version, Engine, EngineVersion, WorkerID string }

// NewMetrics makes all metrics, with those of the Go runtime and the process beside them.
func NewMetrics(build Build) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := m.gauges("build_info", "Constant 1; the labels say what runs.", "version", "engine", "engine_version", "worker_id")
	info.WithLabelValues(build.Version, build.Engine, build.EngineVersion, build.WorkerID).Set(1)
	m.shardMetrics()
	m.sessionMetrics()
	m.registry.MustRegister(&engineCollector{m})
	return m
}

func (m *Metrics) shardMetrics() {
	m.shardState = m.gauges("shard_state", "1 for the present state of the shard, 0 for the others.", "state")
	m.impossible = m.counters("impossible_transitions_total", "Events that a lifecycle table calls impossible; each is a defect.", "table", "state", "event")
	m.transitions = m.counters("transitions_total", "Events of the lifecycle tables, by the state in which they came.", "table", "state", "event")
	m.restarts = m.counter("engine_restarts_total", "Engines that were lost and made again.")
	m.probes = m.histogram("probe_seconds", "Time of probe steps that passed.", fine)
	m.probeFailures = m.counters("probe_failures_total", "Probe steps that failed, by error code.", "code")
	for _, s := range tables.ShardStates() {
		m.shardState.WithLabelValues(s.String())
	}
}

func (m *Metrics) sessionMetrics() {
	m.opened = m.counter("sessions_opened_total", "Sessions that were opened.")
	m.closed = m.counters("sessions_closed_total", "Sessions that ended, by reason.", "reason")
	m.errors = m.counters("errors_total", "Errors that this worker raised, by code.", "code")
	m.batchTime = m.histogram("batch_seconds", "Time of native calls.", fine)
	m.batchRows = m.histogram("batch_rows", "Tokens in native calls.", prometheus.ExponentialBuckets(1, 2, 12))
	m.batchShared = m.counter("batch_shared_rows_total", "Tokens that ran in one native call with another session's.")
	m.queued = m.newGauge("queued_steps", "Steps that wait for the engine now.")
	m.dials = m.counters("downstream_dials_total", "Attempts to reach a next hop, by OK or the error's code.", "outcome")
	m.ringDials = m.counters("ring_dials_total", "Attempts to reach a head by the ring, by OK or the error's code.", "outcome")
	m.rungFirst = m.counter("ring_first_tokens_total", "Tokens that reached this head by the ring before they did by the chain.")
	m.roundTrip = m.histogram("downstream_round_trip_seconds", "Measured round trips to next hops.", fine)
}

// fine are the buckets for one native call or round trip, 0.1 ms to 3 s.
var fine = prometheus.ExponentialBuckets(0.0001, 2, 16)

// Gatherer is where a collector's request is answered from.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Gauge adds a gauge that is read when a collector asks; read must not wait.
func (m *Metrics) Gauge(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, read))
}

// Counter adds a counter that is read when a collector asks; read must not wait, and never fall.
func (m *Metrics) Counter(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, read))
}

// Engine reports the counters of the present engine; nil: there is none. They begin anew with every engine.
func (m *Metrics) Engine(read func() engine.Metrics) {
	if read == nil {
		m.engineSource.Store(nil)
		return
	}
	m.engineSource.Store(&read)
}

// ShardState notes the present state.
func (m *Metrics) ShardState(now tables.ShardState) {
	for _, s := range tables.ShardStates() {
		value := 0.0
		if s == now {
			value = 1
		}
		m.shardState.WithLabelValues(s.String()).Set(value)
	}
}

// ShardImpossible counts an event of the shard's table.
func (m *Metrics) ShardImpossible(state tables.ShardState, event tables.ShardEvent) {
	m.Impossible("shard", state.String(), event.String())
}

// Transition counts an event of a lifecycle table, whatever the table says of it.
func (m *Metrics) Transition(table, state, event string) {
	m.transitions.WithLabelValues(table, state, event).Inc()
}

// Impossible counts an event that a table calls impossible.
func (m *Metrics) Impossible(table, state, event string) {
	m.impossible.WithLabelValues(table, state, event).Inc()
}

// ShardRestart counts a lost engine.
func (m *Metrics) ShardRestart() { m.restarts.Inc() }

// ShardProbe notes the outcome of a probe.
func (m *Metrics) ShardProbe(took time.Duration, err error) {
	if err != nil {
		m.probeFailures.WithLabelValues(string(engine.CodeOf(err))).Inc()
		return
	}
	m.probes.Observe(took.Seconds())
}

// SessionOpened counts an Opened.
func (m *Metrics) SessionOpened() { m.opened.Inc() }

// SessionClosed counts the end of a session; reason is as in Closed, with or without the enum's prefix.
func (m *Metrics) SessionClosed(reason string) {
	m.closed.WithLabelValues(strings.TrimPrefix(reason, "CLOSE_REASON_")).Inc()
}

// Error counts an error that this worker raised.
func (m *Metrics) Error(code string) { m.errors.WithLabelValues(code).Inc() }

// Batch notes one native call with steps of so many sessions.
func (m *Metrics) Batch(sessions, rows int, took time.Duration) {
	m.batchTime.Observe(took.Seconds())
	m.batchRows.Observe(float64(rows))
	if sessions > 1 {
		m.batchShared.Add(float64(rows))
	}
}

// Queued notes how many steps wait for the engine.
func (m *Metrics) Queued(steps int) { m.queued.Set(float64(steps)) }

// Dial counts an attempt to reach a next hop. outcome is OK or the error's code.
func (m *Metrics) Dial(outcome string) { m.dials.WithLabelValues(outcome).Inc() }

// RoundTrip notes a measured round trip to a next hop.
func (m *Metrics) RoundTrip(d time.Duration) { m.roundTrip.Observe(d.Seconds()) }

// RingDial counts an attempt to reach a head by the ring. outcome is OK or the error's code.
func (m *Metrics) RingDial(outcome string) { m.ringDials.WithLabelValues(outcome).Inc() }

// RungFirst counts a token that the ring brought before the chain did.
func (m *Metrics) RungFirst() { m.rungFirst.Inc() }
