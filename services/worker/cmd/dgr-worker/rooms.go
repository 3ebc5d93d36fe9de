package main

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/admin"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/config"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/telemetry"
)

type rooms struct {
	cfg config.Config
}

func newRooms(cfg config.Config, _ *telemetry.Metrics, _ *slog.Logger) *rooms {
	return &rooms{cfg: cfg}
}

func (r *rooms) Settle(shard.Loaded)                 {}
func (r *rooms) Drain(time.Duration)                 {}
func (r *rooms) Empty(context.Context) error         { return nil }
func (r *rooms) Evict(context.Context, *fault.Error) {}
func (r *rooms) Sessions() int                       { return 0 }

func (r *rooms) server(*shard.Shard, shard.Source) *grpc.Server { return grpc.NewServer() }
func (r *rooms) capability() *workerpb.Capability {
	return &workerpb.Capability{WorkerId: r.cfg.WorkerID}
}
func (r *rooms) list() []admin.Session { return nil }
func (r *rooms) close()                {}
