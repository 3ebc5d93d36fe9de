package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (m *Metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) newGauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(g)
	return g
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	m.registry.MustRegister(h)
	return h
}

// engineMetric is one figure of engine.Metrics.
type engineMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(engine.Metrics) float64
}

var engineMetrics = []engineMetric{
	engineCounter("engine_batches_total", "Native calls of the present engine.", func(m engine.Metrics) float64 { return float64(m.Batches) }),
	engineCounter("engine_tokens_total", "Tokens that the present engine evaluated, undone ones included.", func(m engine.Metrics) float64 { return float64(m.Rows) }),
	engineCounter("engine_sampled_total", "Tokens that the present engine sampled.", func(m engine.Metrics) float64 { return float64(m.Sampled) }),
	engineCounter("engine_cancelled_steps_total", "Steps that were cancelled in the present engine.", func(m engine.Metrics) float64 { return float64(m.Cancelled) }),
	engineCounter("engine_failed_steps_total", "Steps that failed in the present engine.", func(m engine.Metrics) float64 { return float64(m.Failed) }),
	engineCounter("engine_compute_seconds_total", "Time in native code of the present engine.", func(m engine.Metrics) float64 { return m.Compute.Seconds() }),
	engineGauge("engine_sessions", "Sessions with room in the present engine.", func(m engine.Metrics) float64 { return float64(m.SessionsOpen) }),
	engineGauge("engine_cache_reserved_tokens", "Tokens of cache that sessions have reserved.", func(m engine.Metrics) float64 { return float64(m.CacheReserved) }),
}

func engineCounter(name, help string, read func(engine.Metrics) float64) engineMetric {
	return engineMetric{prometheus.NewDesc(namespace+"_"+name, help, nil, nil), prometheus.CounterValue, read}
}

func engineGauge(name, help string, read func(engine.Metrics) float64) engineMetric {
	return engineMetric{prometheus.NewDesc(namespace+"_"+name, help, nil, nil), prometheus.GaugeValue, read}
}

// engineCollector reads the present engine's metrics when asked.
type engineCollector struct{ metrics *Metrics }

func (c *engineCollector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range engineMetrics {
		out <- m.desc
	}
}

func (c *engineCollector) Collect(out chan<- prometheus.Metric) {
	read := c.metrics.engineSource.Load()
	if read == nil {
		return
	}
	now := (*read)()
	for _, m := range engineMetrics {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, m.read(now))
	}
}
