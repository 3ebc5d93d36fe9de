// Package admin is the HTTP port of a worker for operators, orchestrators and metrics collectors, as
// contracts/openapi/worker-admin.v1.yaml describes it.
//
// It shows what other rooms know and passes on what an operator asks for; it decides nothing. No handler waits for the
// engine, so that a stuck one does not silence the port.
package admin

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/distributed-gguf-runtime/dgr/gen/workeradmin"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// Bounds of one request, and of the end.
const (
	headerBound = 5 * time.Second
	readBound   = 10 * time.Second
	writeBound  = 30 * time.Second
	idleBound   = time.Minute
	endBound    = 2 * time.Second
	headerBytes = 16 << 10
	bodyBytes   = 4 << 10
)

// Shard is what the port shows and drains. None of its methods waits for the engine.
type Shard interface {
	Status() shard.Status
	Drain(budget time.Duration) (shard.Status, error)
}

// Session is one session as the port shows it.
type Session struct {
	ID            [16]byte
	State         string // name in the session table
	Attempt       uint64
	ContextTokens uint32
	CacheLength   uint32
	Opened        time.Time
	Active        time.Time // its last step, or Opened
	Downstream    string    // HOST:PORT; empty: none
}

// Options are what the port shows.
type Options struct {
	WorkerID   string
	Shard      Shard
	Capability func() *workerpb.Capability
	Sessions   func() []Session
	Metrics    prometheus.Gatherer
	TLS        *tls.Config // nil: none
	Guard      *auth.Guard // nil: everybody may do everything
	Log        *slog.Logger
}

// Server is the admin port.
type Server struct {
	http *http.Server
	log  *slog.Logger
}

// New makes the port; Serve runs it.
func New(options Options) *Server {
	handler := workeradmin.NewStrictHandlerWithOptions(&answers{options, time.Now()}, nil, workeradmin.StrictHTTPServerOptions{
		RequestErrorHandlerFunc: func(w http.ResponseWriter, _ *http.Request, err error) {
			fail(w, http.StatusBadRequest, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "%w", err))
		},
		ResponseErrorHandlerFunc: func(w http.ResponseWriter, r *http.Request, err error) {
			options.Log.Error("an admin request failed", "path", r.URL.Path, "cause", err)
			fail(w, http.StatusInternalServerError, fault.New(workerpb.ErrorCode_ERROR_CODE_INTERNAL, "%w", err))
		},
	})
	router := chi.NewRouter()
	router.NotFound(func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "there is no %s here; see worker-admin.v1.yaml", r.URL.Path))
	})
	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusMethodNotAllowed, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "%s does not take %s", r.URL.Path, r.Method))
	})
	if options.Guard != nil {
		router.Use(guarded(options.Guard))
	}
	router.Use(strictBody)
	workeradmin.HandlerFromMux(handler, router)
	foreign := http.NewCrossOriginProtection() // a page in the operator's browser must not drain a worker on loopback
	return &Server{log: options.Log, http: &http.Server{
		Handler: foreign.Handler(router), TLSConfig: options.TLS, ReadHeaderTimeout: headerBound, ReadTimeout: readBound, WriteTimeout: writeBound,
		IdleTimeout: idleBound, MaxHeaderBytes: headerBytes, ErrorLog: slog.NewLogLogger(options.Log.Handler(), slog.LevelWarn),
	}}
}

// Serve answers on l until ctx ends, then lets requests that run end within a bound. It closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ended := make(chan error, 1)
	go func() {
		if s.http.TLSConfig != nil {
			ended <- s.http.ServeTLS(l, "", "")
			return
		}
		ended <- s.http.Serve(l)
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
	defer cancel()
	if err := s.http.Shutdown(bounded); err != nil {
		s.log.Warn("admin requests were cut off", "cause", s.http.Close())
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// fail answers with one error.
func fail(w http.ResponseWriter, status int, f *fault.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(errorOf(f)) // the peer hung up: nobody is left to tell
}
