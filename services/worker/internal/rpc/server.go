// Package rpc is the gRPC edge of a worker: the services of contracts/proto/dgr/worker/v1, grpc.health.v1 and reflection.
//
// It takes requests in, checks who asks and that nothing in them is unknown, and hands them to the room that knows the
// answer. It decides nothing about sessions (package live and session) or the shard (package shard).
//
// A Session stream has three goroutines: one reads and never stops reading, one writes, and the handler sees to their end.
package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/quota"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// Shard is what the services need of the worker's shard; *shard.Shard is one. Of these only Load and Unload wait for the
// engine.
type Shard interface {
	Status() shard.Status
	Watch() (shard.Status, <-chan struct{})
	Load(ctx context.Context, order shard.Order, progress func(shard.Status)) error
	Unload(ctx context.Context) error
	Drain(budget time.Duration) (shard.Status, error)
}

// Store turns the name of a LoadShard into an order. A name is never a path.
type Store interface {
	Order(name string) (shard.Order, error)
}

// Options are what the services need to know. Required are all that have no usual value.
type Options struct {
	WorkerID                   string
	Build                      *workerpb.Build
	Shard                      Shard
	Directory                  *live.Directory
	Store                      Store // nil: LoadShard is refused
	Revisions                  session.Revisions
	Limits                     session.Limits
	Sessions                   uint32 // at once
	Context                    uint32 // longest of a session, tokens
	BatchTokens                uint32
	WindowBytes                uint64 // sum of all windows
	KeptBytes                  uint64 // of kept prefixes
	OutgoingBytes, OutputBytes uint64 // of what waits to be sent to all peers; of one step's payload
	MessageBytes               uint32
	Drain                      time.Duration // where Drain is asked for without a budget
	Keepalive                  time.Duration
	SendWait                   time.Duration // how long a stream that is over may take to send what is left; 0: 5 s
	TLS                        *tls.Config   // nil: none
	Quotas                     *quota.Quotas // of principals; nil: the usual ones
	MetadataBytes              uint32        // greatest metadata of a call; 0: 16 KiB
	Streams                    uint32        // calls that one connection may have under way; 0: 1024
	RightsChecked              time.Duration // rights of streams that run are looked at so often; 0: 5 s
	Handshake                  time.Duration // how long a connection may take to stand, TLS included, and a stream to its open; 0: 10 s
	Guard                      *auth.Guard   // nil: everybody may do everything
	Reflection                 bool          // served to those who may observe; without a guard it always is
	Log                        *slog.Logger
}

// Server is the services of one worker.
type Server struct {
	options Options
	grpc    *grpc.Server
	health  *health.Server
	end     context.CancelFunc
	watched chan struct{} // closed when the health watcher has ended
}

// New makes the services and registers them; serve with GRPC().Serve, end with Close.
func New(options Options, more ...grpc.ServerOption) *Server {
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	options.SendWait = cmp.Or(options.SendWait, 5*time.Second)
	options.Handshake = cmp.Or(options.Handshake, 10*time.Second)
	options.MetadataBytes = cmp.Or(options.MetadataBytes, 16<<10)
	options.Streams = cmp.Or(options.Streams, 1024)
	options.RightsChecked = cmp.Or(options.RightsChecked, 5*time.Second)
	if options.Quotas == nil {
		options.Quotas = quota.New(quota.Default())
	}
	if options.TLS != nil {
		more = append([]grpc.ServerOption{grpc.Creds(credentials.NewTLS(options.TLS))}, more...)
	}
	s := &Server{options: options, health: health.NewServer(), watched: make(chan struct{})}
	size := int(options.MessageBytes) + 64<<10 // what a message holds beside its payload
	s.grpc = grpc.NewServer(append([]grpc.ServerOption{
		grpc.MaxConcurrentStreams(options.Streams), grpc.MaxHeaderListSize(options.MetadataBytes), grpc.MaxRecvMsgSize(size), grpc.MaxSendMsgSize(size),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: options.Keepalive, Timeout: options.Keepalive / 2, MaxConnectionIdle: options.Limits.Idle,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: options.pingInterval(), PermitWithoutStream: true}),
		grpc.ConnectionTimeout(options.Handshake), grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream),
	}, more...)...)
	workerpb.RegisterWorkerServiceServer(s.grpc, &workerService{server: s})
	workerpb.RegisterShardServiceServer(s.grpc, &shardService{server: s})
	workerpb.RegisterTextServiceServer(s.grpc, &textService{server: s})
	workerpb.RegisterRingServiceServer(s.grpc, &ringService{server: s})
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	if options.Guard == nil || options.Reflection {
		reflection.Register(s.grpc)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	go s.watch(ctx)
	return s
}

// pingInterval is the least that a caller may leave between pings.
func (o Options) pingInterval() time.Duration { return o.Keepalive / 4 }

// GRPC is the server with all services on it.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// Close stops serving: streams and calls that run are cut off.
func (s *Server) Close() {
	s.end()
	<-s.watched
	s.health.Shutdown()
	s.grpc.Stop()
}

// watch keeps grpc.health.v1 true.
func (s *Server) watch(ctx context.Context) {
	defer close(s.watched)
	for {
		status, changed := s.options.Shard.Watch()
		serving := grpc_health_v1.HealthCheckResponse_NOT_SERVING
		if status.Ready {
			serving = grpc_health_v1.HealthCheckResponse_SERVING
		}
		for _, name := range []string{"", workerpb.WorkerService_ServiceDesc.ServiceName, workerpb.TextService_ServiceDesc.ServiceName} {
			s.health.SetServingStatus(name, serving)
		}
		s.health.SetServingStatus(workerpb.ShardService_ServiceDesc.ServiceName, grpc_health_v1.HealthCheckResponse_SERVING) // it loads what is not there
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
