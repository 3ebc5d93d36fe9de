package admin

import (
	"bytes"
	"context"
	"encoding/hex"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workeradmin"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// answers is the generated server's logic.
type answers struct {
	Options
	began time.Time
}

func (a *answers) GetLivez(context.Context, workeradmin.GetLivezRequestObject) (workeradmin.GetLivezResponseObject, error) {
	return workeradmin.GetLivez200JSONResponse{Alive: true, WorkerId: a.WorkerID, UptimeSeconds: time.Since(a.began).Seconds()}, nil
}

func (a *answers) GetReadyz(context.Context, workeradmin.GetReadyzRequestObject) (workeradmin.GetReadyzResponseObject, error) {
	s := a.Shard.Status()
	r := workeradmin.Readiness{Ready: s.Ready, State: stateOf(s.State), WorkerId: a.WorkerID, Instance: instanceOf(s.Instance)}
	if s.Probed {
		r.ProbeAgeSeconds, r.ProbeTookSeconds = seconds(s.ProbeAge), seconds(s.ProbeTook)
	}
	if s.State == tables.ShardLoading {
		r.Progress = progressOf(s.Progress)
	}
	if s.State == tables.ShardDraining {
		r.DrainLeftSeconds = seconds(s.DrainLeft)
	}
	if s.Ready {
		return workeradmin.GetReadyz200JSONResponse(r), nil
	}
	e := errorOf(s.Err)
	r.Error = &e
	return workeradmin.GetReadyz503JSONResponse(r), nil
}

func (a *answers) GetCapability(context.Context, workeradmin.GetCapabilityRequestObject) (workeradmin.GetCapabilityResponseObject, error) {
	c := capabilityOf(a.Capability())
	if l := a.Shard.Status().Loaded; l != nil {
		c.Shard.WeightsBytes, c.Shard.CacheBytes = count(l.Info.Memory.Weights), count(l.Info.Memory.Cache)
	}
	return workeradmin.GetCapability200JSONResponse(c), nil
}

func (a *answers) ListSessions(context.Context, workeradmin.ListSessionsRequestObject) (workeradmin.ListSessionsResponseObject, error) {
	sessions := a.Sessions()
	slices.SortFunc(sessions, func(x, y Session) int { return bytes.Compare(x.ID[:], y.ID[:]) })
	list := workeradmin.SessionList{Sessions: make([]workeradmin.Session, len(sessions))}
	for i, s := range sessions {
		list.Sessions[i] = workeradmin.Session{
			Id: hex.EncodeToString(s.ID[:]), State: workeradmin.SessionState(s.State), Attempt: int64(s.Attempt),
			ContextTokens: int64(s.ContextTokens), CacheLength: int64(s.CacheLength),
			AgeSeconds: time.Since(s.Opened).Seconds(), IdleSeconds: time.Since(s.Active).Seconds(), Downstream: text(s.Downstream),
		}
	}
	return workeradmin.ListSessions200JSONResponse(list), nil
}

func (a *answers) Drain(_ context.Context, r workeradmin.DrainRequestObject) (workeradmin.DrainResponseObject, error) {
	budget := time.Duration(-1) // as configured
	if r.Body != nil && r.Body.BudgetSeconds != nil {
		s := *r.Body.BudgetSeconds
		if s < 0 || s > math.MaxInt32 {
			return workeradmin.Drain400JSONResponse(errorOf(fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED,
				"budget_seconds is %v; give 0 or more", s))), nil
		}
		budget = time.Duration(s * float64(time.Second))
	}
	status, err := a.Shard.Drain(budget)
	if err != nil && status.State != tables.ShardUnloaded {
		return workeradmin.Drain409JSONResponse(errorOf(fault.Of(err))), nil
	}
	return workeradmin.Drain202JSONResponse{
		State: stateOf(status.State), LeftSeconds: status.DrainLeft.Seconds(), Sessions: int64(len(a.Sessions())),
	}, nil
}

// metrics is the answer in Prometheus' text format.
type metrics []byte

func (m metrics) VisitGetMetricsResponse(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_, err := w.Write(m)
	return err
}

func (a *answers) GetMetrics(context.Context, workeradmin.GetMetricsRequestObject) (workeradmin.GetMetricsResponseObject, error) {
	families, err := a.Metrics.Gather()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	encoder := expfmt.NewEncoder(&out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return nil, err
		}
	}
	return metrics(out.Bytes()), nil
}

// errorOf is an error as the port shows it.
func errorOf(f *fault.Error) workeradmin.Error {
	e := workeradmin.Error{
		Code: fault.Name(f.Code), Message: f.Message, Scope: strings.TrimPrefix(f.Scope.String(), "ERROR_SCOPE_"),
		Recovery: strings.TrimPrefix(f.Recovery.String(), "RECOVERY_"),
	}
	if f.RetryAfter > 0 {
		e.RetryAfterSeconds = seconds(f.RetryAfter)
	}
	return e
}

func progressOf(p engine.LoadProgress) *workeradmin.LoadProgress {
	names := map[engine.LoadPhase]workeradmin.LoadProgressPhase{
		engine.LoadValidating: workeradmin.LoadProgressPhaseVALIDATING, engine.LoadVerifying: workeradmin.LoadProgressPhaseVERIFYING,
		engine.LoadReading: workeradmin.LoadProgressPhaseREADING, engine.LoadProbing: workeradmin.LoadProgressPhasePROBING,
		engine.LoadReady: workeradmin.LoadProgressPhaseREADY,
	}
	return &workeradmin.LoadProgress{Phase: names[p.Phase], DoneBytes: int64(p.Done), TotalBytes: int64(p.Total)}
}

func stateOf(s tables.ShardState) workeradmin.ShardState { return workeradmin.ShardState(s.String()) }

func instanceOf(i [16]byte) *string {
	if i == [16]byte{} {
		return nil
	}
	s := hex.EncodeToString(i[:])
	return &s
}

func seconds(d time.Duration) *float64 {
	s := d.Seconds()
	return &s
}

func count(n uint64) *int64 {
	i := int64(min(n, math.MaxInt64))
	return &i
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
