package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/libs/native/llama"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/admin"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain/outbox"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/config"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/quota"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/rpc"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/telemetry"
)

// messageHead is the part of a message's limit that is left for what stands beside a frame.
const messageHead = 64 << 10

// residents are the sessions of the shard; metrics follow the engine that they settle on.
type residents struct {
	*live.Directory
	metrics *telemetry.Metrics
}

// Settle is the directory's.
func (r residents) Settle(l shard.Loaded) {
	r.metrics.Engine(l.Engine.Metrics)
	r.Directory.Settle(l)
}

// Evict is the directory's.
func (r residents) Evict(ctx context.Context, why *fault.Error) {
	r.Directory.Evict(ctx, why)
	r.metrics.Engine(nil)
}

// newDialer makes what reaches next hops. config has checked the entries.
func newDialer(cfg config.Config, d live.Options, metrics *telemetry.Metrics, log *slog.Logger) (*chain.Dialer, error) {
	policy, err := chain.ParsePolicy(cfg.ChainAllow)
	if err != nil {
		return nil, err
	}
	o := dial.Default()
	o.MessageBytes, o.Keepalive = int(cfg.MessageBytes)+messageHead, cfg.Keepalive
	if err := chainFiles(cfg.Access).Secure(&o, log); err != nil {
		return nil, usage{fmt.Errorf("next hops cannot be dialled: %w", err)}
	}
	return chain.New(chain.Options{Policy: policy, Dial: o, Outgoing: int(d.Stream()), Buffered: d.Buffered, Observer: metrics}), nil
}

func directoryOptions(cfg config.Config, at net.Addr, metrics *telemetry.Metrics, log *slog.Logger) live.Options {
	return live.Options{
		WorkerID: cfg.WorkerID, Revisions: session.Spoken(), Limits: limitsOf(cfg), WindowBytes: cfg.WindowWorkerBytes,
		OutgoingBytes: cfg.OutgoingBytes, KeptBytes: cfg.KeptBytes, Sessions: cfg.Sessions, Buffered: &outbox.Gauge{}, Quotas: quota.New(cfg.Principal),
		BatchTokens: int(cfg.Batch), Deterministic: cfg.Deterministic, Chained: len(cfg.ChainAllow) > 0,
		Ring: ringOf(cfg, at), Log: log, Observer: metrics,
	}
}

// ringOf is where tails are told to reach this worker, which listens at an address; "": nowhere.
func ringOf(cfg config.Config, at net.Addr) string {
	host, port, err := net.SplitHostPort(cfg.RingAdvertise)
	if err != nil {
		return "" // it is empty; config has checked any other
	}
	if tcp, ok := at.(*net.TCPAddr); ok && port == "0" {
		port = strconv.Itoa(tcp.Port)
	}
	return net.JoinHostPort(host, port)
}

func limitsOf(cfg config.Config) session.Limits {
	l := session.DefaultLimits(cfg.Batch)
	l.FrameBytes = cfg.MessageBytes - messageHead
	l.WindowSteps, l.WindowBytes = cfg.WindowSteps, cfg.WindowBytes
	l.MaxWindowSteps, l.MaxWindowBytes = cfg.WindowMaxSteps, cfg.WindowMaxBytes
	l.MaxLinger, l.Idle, l.OpenBudget = cfg.Linger, cfg.Idle, cfg.OpenBudget
	return l
}

func newServer(cfg config.Config, able engine.Capabilities, s *shard.Shard, directory *live.Directory, source shard.Source, a access, log *slog.Logger) *rpc.Server {
	o := rpc.Options{
		WorkerID: cfg.WorkerID, Build: &workerpb.Build{Version: version, Pin: able.Pin, Patches: able.Patches}, Shard: s, Directory: directory, Revisions: session.Spoken(), Limits: limitsOf(cfg),
		Sessions: cfg.Sessions, Context: cfg.Context, BatchTokens: cfg.Batch, WindowBytes: cfg.WindowWorkerBytes, KeptBytes: cfg.KeptBytes,
		OutgoingBytes: cfg.OutgoingBytes, OutputBytes: directory.Options().Payload(), MessageBytes: cfg.MessageBytes, Drain: cfg.Drain, Keepalive: cfg.Keepalive, Log: log,
		TLS: a.grpc, Guard: a.guard, Reflection: cfg.Access.Reflection, RightsChecked: cfg.Access.Checked,
		Quotas: directory.Options().Quotas, MetadataBytes: cfg.MetadataBytes, Streams: cfg.Streams, Handshake: cfg.Handshake,
	}
	switch {
	case cfg.Engine == "fake":
		o.Store = imaginary{source}
	case cfg.Store != "":
		o.Store = store{shard.Store{Folder: cfg.Store}, source}
	}
	return rpc.New(o)
}

// able asks an engine that holds nothing what it is. Where there is none the load is going to say why.
func able(cfg config.Config) engine.Capabilities {
	factory := llama.New
	if cfg.Engine == "fake" {
		factory = fake.Factory(fake.Default())
	}
	e, _, err := factory()
	if err != nil {
		return engine.Capabilities{}
	}
	defer e.Close() // it holds nothing
	return e.Capabilities()
}

// store gives LoadShard the models of a folder.
type store struct {
	shard.Store
	source shard.Source
}

// Order is what a name of the store means.
func (s store) Order(name string) (shard.Order, error) {
	path, err := s.Path(name)
	return shard.Order{Source: s.source, Model: path}, err
}

// imaginary gives LoadShard every model of the fake engine, which has no files.
type imaginary struct{ source shard.Source }

// Order is the model that the name describes.
func (i imaginary) Order(name string) (shard.Order, error) {
	return shard.Order{Source: i.source, Model: name}, nil
}

// list is the sessions as the admin port shows them.
func list(directory *live.Directory) func() []admin.Session {
	return func() []admin.Session {
		all := directory.List()
		out := make([]admin.Session, len(all))
		for i, s := range all {
			out[i] = admin.Session{
				ID: s.ID, State: s.State, Attempt: s.Attempt, ContextTokens: s.ContextTokens, CacheLength: s.CacheLength,
				Opened: s.Opened, Active: s.Active, Downstream: s.Downstream,
			}
		}
		return out
	}
}

// watch adds what shard and directory know to the metrics.
func watch(metrics *telemetry.Metrics, s *shard.Shard, d *live.Directory) {
	metrics.Gauge("ready", "1 while new sessions are taken and the last probe passed not long ago.", func() float64 {
		if s.Status().Ready {
			return 1
		}
		return 0
	})
	metrics.Gauge("kept_prefixes", "Kept prefixes now.", func() float64 { return float64(d.Prefixes().Kept) })
	metrics.Gauge("kept_prefix_bytes", "Bytes of the tokens of kept prefixes now.", func() float64 { return float64(d.Prefixes().Bytes) })
	metrics.Counter("prefix_hits_total", "Openings that adopted a kept prefix.", func() float64 { return float64(d.Prefixes().Hits) })
	metrics.Counter("prefix_misses_total", "Openings that offered prefixes and adopted none.", func() float64 { return float64(d.Prefixes().Misses) })
	metrics.Gauge("sessions", "Sessions now, lingering ones included.", func() float64 { return float64(d.Sessions()) })
	metrics.Gauge("buffered_bytes", "What is buffered for peers: steps and frames that came, and all that waits to be sent.", func() float64 {
		return float64(d.Buffered().Now())
	})
	metrics.Gauge("buffered_bytes_most", "The most that was buffered for peers since the start.", func() float64 { return float64(d.Buffered().Most()) })
	count := func(name, help string, read func(*workerpb.Usage) float64) {
		metrics.Counter(name, help, func() float64 { return read(d.Metrics().GetTotal()) })
	}
	count("tokens_evaluated_total", "Tokens evaluated in attempts that have ended, undone ones included.", func(u *workerpb.Usage) float64 { return float64(u.GetTokensEvaluated()) })
	count("tokens_sampled_total", "Tokens sampled in attempts that have ended.", func(u *workerpb.Usage) float64 { return float64(u.GetTokensSampled()) })
	count("received_bytes_total", "Payload received in attempts that have ended.", func(u *workerpb.Usage) float64 { return float64(u.GetBytesIn()) })
	count("sent_bytes_total", "Payload sent in attempts that have ended.", func(u *workerpb.Usage) float64 { return float64(u.GetBytesOut()) })
	count("compute_seconds_total", "Native compute of attempts that have ended.", func(u *workerpb.Usage) float64 { return u.GetCompute().AsDuration().Seconds() })
}
