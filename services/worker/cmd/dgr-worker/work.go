package main

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/admin"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/config"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/rpc"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/telemetry"
)

// Bounds of the end, beside the drain itself.
const (
	streamsBound = 2 * time.Second  // for streams to take their last message
	closeBound   = 15 * time.Second // for the engine to come to rest
)

// worker is one running worker.
type worker struct {
	cfg     config.Config
	log     *slog.Logger
	access  access
	shard   *shard.Shard
	dialer  *chain.Dialer
	rpc     *rpc.Server
	admin   *admin.Server
	address net.Listener
	port    net.Listener // of the admin
	end     ending
}

// work runs a worker from its configuration to its end.
func work(ctx context.Context, p process, cfg config.Config) error {
	log := telemetry.NewLogger(p.stderr, cfg.LogLevel, cfg.LogFormat)
	slog.SetDefault(log)
	if cores := runtime.NumCPU(); int(cfg.Threads) > cores {
		log.Warn("there are more compute threads than cores; they will wait for each other", "threads", cfg.Threads, "cores", cores)
	}
	address, err := listen("listen", cfg.Listen)
	if err != nil {
		return err
	}
	defer address.Close()
	port, err := listen("admin", cfg.Admin)
	if err != nil {
		return err
	}
	defer port.Close()
	if cfg.WorkerID == "" {
		cfg.WorkerID = nameOf(address)
	}
	source := sourceOf(cfg, p)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var stdin io.Reader
	if cfg.ExitWithStdin {
		stdin = p.stdin
	}
	w := &worker{cfg: cfg, log: log.With("worker", cfg.WorkerID), address: address, port: port, end: watchEnd(ctx, p.signals, stdin)}
	if err := w.build(source); err != nil {
		return err
	}
	return w.run(ctx, p, source)
}

// sourceOf is where models come from, and with them engines.
func sourceOf(cfg config.Config, p process) shard.Source {
	if cfg.Engine == "fake" {
		return &shard.Imaginary{}
	}
	return shard.Files{Engines: engines(cfg, p)}
}

// build makes the rooms and joins them.
func (w *worker) build(source shard.Source) (err error) {
	able := able(w.cfg)
	metrics := telemetry.NewMetrics(telemetry.Build{Version: version, Engine: able.Name, EngineVersion: able.Version, WorkerID: w.cfg.WorkerID})
	if w.access, err = newAccess(w.cfg.Access, w.log); err != nil {
		return usage{err}
	}
	options := directoryOptions(w.cfg, w.address.Addr(), metrics, w.log)
	if w.dialer, err = newDialer(w.cfg, options, metrics, w.log); err != nil {
		w.access.close()
		return err
	}
	options.Dialer = w.dialer
	directory := live.New(options)
	w.shard = shard.New(shard.Options{
		Residents: residents{directory, metrics}, Log: w.log, Observer: metrics, Drain: w.cfg.Drain,
		ProbeInterval: w.cfg.ProbeInterval, ProbeTimeout: w.cfg.ProbeTimeout, Request: requestOf(w.cfg),
		Deterministic: w.cfg.Deterministic,
	})
	watch(metrics, w.shard, directory)
	w.rpc = newServer(w.cfg, able, w.shard, directory, source, w.access, w.log)
	w.admin = admin.New(admin.Options{
		WorkerID: w.cfg.WorkerID, Shard: w.shard, Capability: w.rpc.Capability, Sessions: list(directory),
		Metrics: metrics.Gatherer(), TLS: w.access.http, Guard: w.access.guard, Log: w.log,
	})
	return nil
}

func requestOf(cfg config.Config) engine.LoadRequest {
	return engine.LoadRequest{
		ContextLimit: cfg.Context, Sessions: cfg.Sessions, BatchTokens: cfg.Batch, MicroBatch: cfg.MicroBatch, Threads: cfg.Threads,
		CacheType: cfg.CacheType, FlashAttention: cfg.FlashAttention, MemoryMap: cfg.MemoryMap, ShortWindow: cfg.ShortWindow,
	}
}

// run serves, loads, announces, and waits for the end, which it then carries out.
func (w *worker) run(ctx context.Context, p process, source shard.Source) error {
	ports, closePorts := context.WithCancel(ctx)
	failed := make(chan error, 2)
	var servers sync.WaitGroup
	servers.Go(func() { failed <- w.rpc.GRPC().Serve(w.address) })
	servers.Go(func() { failed <- w.admin.Serve(ports, w.port) })
	w.log.Debug("listening", "address", w.address.Addr().String(), "admin", w.port.Addr().String())

	err := w.serve(p, source, failed)
	if w.end.now.Err() == nil {
		w.stopStreams()
	}
	closePorts()
	err = errors.Join(err, w.close(ctx))
	servers.Wait() // both ends are bounded
	return err
}

// serve loads and waits until the end is asked for and every session has ended.
func (w *worker) serve(p process, source shard.Source, failed <-chan error) error {
	if w.cfg.Model != "" {
		asked, err := w.load(p, source)
		if err != nil || asked {
			return err
		}
	}
	var served [16]byte // instance that was last told of
	for {
		status, changed := w.shard.Watch()
		if status.Ready && status.Instance != served {
			first := served == [16]byte{}
			served = status.Instance
			if err := w.announce(p, status.Loaded, first); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case patience := <-w.end.asked:
			return w.drain(patience)
		case err := <-failed:
			return err
		}
	}
}

// announce tells logs, and the first time a parent if asked for, that the worker serves.
func (w *worker) announce(p process, l *shard.Loaded, first bool) error {
	address, port := w.address.Addr().String(), w.port.Addr().String()
	w.log.Info("ready", "address", address, "admin", port, "model", l.Model, "layers", l.Info.Layers.String(), "of", l.Info.NLayer,
		"architecture", l.Info.Architecture, "weights", l.Info.Memory.Weights, "instance", hex.EncodeToString(l.Instance[:]))
	if !first || !w.cfg.Announce {
		return nil
	}
	return announce(p.stdout, w.cfg.WorkerID, address, port, l)
}

// load loads what the configuration names. It is true if the end was asked for meanwhile.
func (w *worker) load(p process, source shard.Source) (bool, error) {
	ctx, stop := context.WithCancel(w.end.now)
	defer stop()
	shown := newLoading(w.log.With("admin", w.port.Addr().String()), p.stderr)
	defer shown.clear()
	order := shard.Order{Source: source, Model: w.cfg.Model, Layers: w.cfg.Layers}
	done := make(chan error, 1)
	go func() { done <- w.shard.Load(ctx, order, nil) }()
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return false, err
		case <-tick.C:
			shown.show(w.shard.Status())
		case <-w.end.asked:
			stop()
			<-done
			return true, nil
		}
	}
}

// drain lets sessions end and waits for it. A shard that serves nothing has nothing to drain.
func (w *worker) drain(patience time.Duration) error {
	w.log.Info("draining")
	if status, err := w.shard.Drain(patience); err != nil {
		w.log.Info("nothing to drain", "state", status.State.String())
		return nil
	}
	if err := w.shard.Unloaded(w.end.now); err != nil {
		return context.Cause(w.end.now)
	}
	return nil
}

// stopStreams lets gRPC streams take their last message.
func (w *worker) stopStreams() {
	stopped := make(chan struct{})
	go func() {
		w.rpc.GRPC().GracefulStop()
		close(stopped)
	}()
	timer := time.NewTimer(streamsBound)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-w.end.now.Done():
	case <-timer.C:
	}
}

// close gives everything up.
func (w *worker) close(ctx context.Context) error {
	w.rpc.Close()
	ctx, cancel := context.WithTimeout(ctx, closeBound)
	defer cancel()
	if w.end.now.Err() != nil {
		cancel() // nobody waits any more
	}
	err := w.shard.Close(ctx)
	w.dialer.Close()
	w.access.close()
	if w.end.now.Err() != nil {
		return nil // the reason has been told
	}
	return err
}
