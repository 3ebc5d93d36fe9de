package admin

import (
	"math"
	"net/http"
	"strconv"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
)

// guarded asks the guard about every request but those of an orchestrator, which has nothing to show: to look takes observe,
// to change anything admin.
func guarded(guard *auth.Guard) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			what := auth.Admin
			switch {
			case r.URL.Path == "/livez" || r.URL.Path == "/readyz":
				next.ServeHTTP(w, r)
				return
			case r.Method == http.MethodGet || r.Method == http.MethodHead:
				what = auth.Observe
			}
			if _, err := guard.Allow(r.Context(), auth.PeerOfRequest(r), what); err != nil {
				refuse(w, fault.Of(err))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// refuse answers one who may not.
func refuse(w http.ResponseWriter, f *fault.Error) {
	status := http.StatusForbidden
	switch f.Code {
	case workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED:
		w.Header().Set("WWW-Authenticate", "Bearer")
		status = http.StatusUnauthorized
	case workerpb.ErrorCode_ERROR_CODE_AUTHORITY_DOWN:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(f.RetryAfter.Seconds()))))
		status = http.StatusServiceUnavailable
	}
	fail(w, status, f)
}
