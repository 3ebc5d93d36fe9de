package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	routes "github.com/distributed-gguf-runtime/dgr/libs/client/route"
	"github.com/distributed-gguf-runtime/dgr/libs/client/session"
	client "github.com/distributed-gguf-runtime/dgr/libs/client/worker"
	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
)

// reached says how each code is reached from outside: by a case against one worker, a route of three or a worker with
// narrow limits, or by a worker that is made for it.
var reached = map[string]struct {
	one, three, narrow string // id of the case
	raise              func(t *testing.T) error
}{
	"UNSUPPORTED_REVISION":     {one: "revision.judged-first"},
	"UNSUPPORTED_FEATURE":      {one: "open.need.unknown"},
	"MALFORMED":                {one: "strict.no-kind"},
	"LIFECYCLE_VIOLATION":      {one: "order.before-open.step"},
	"SESSION_UNKNOWN":          {three: "ring.hello-unknown"},
	"SHARD_NOT_READY":          {one: "lifecycle.unload"},
	"SHARD_MISMATCH":           {one: "open.other-fingerprint"},
	"CACHE_MISMATCH":           {one: "revision.each"},
	"CONTEXT_OVERFLOW":         {one: "open.context-too-long"},
	"NO_CAPACITY":              {one: "open.capacity"},
	"WINDOW_EXCEEDED":          {one: "flow.window-exceeded"},
	"DEADLINE_EXCEEDED":        {one: "time.expired-in-queue"},
	"CANCELLED":                {one: "fence.cancel-queued"},
	"DRAINING":                 {one: "lifecycle.unload"},
	"DOWNSTREAM_UNREACHABLE":   {three: "peer.unreachable"},
	"DOWNSTREAM_LOST":          {three: "peer.lost"},
	"ENGINE_FAULT":             {raise: scripted("step 2+ lost")},
	"ENGINE_OUT_OF_MEMORY":     {raise: scripted("step 2+ fail ENGINE_OUT_OF_MEMORY")},
	"NUMERIC_FAULT":            {raise: scripted("step 2+ nan")},
	"UNSUPPORTED_ARCHITECTURE": {raise: loading("UNSUPPORTED_ARCHITECTURE")},
	"BAD_MODEL_FILE":           {raise: loading("BAD_MODEL_FILE")},
	"UNAUTHENTICATED":          {raise: unknownCaller},
	"PERMISSION_DENIED":        {one: "attempt.wrong-key"},
	"INTERNAL":                 {three: "peer.token-out-of-order"},
	"PREDECESSOR_FAILED":       {one: "fence.predecessor-failed"},
	"SUPERSEDED":               {one: "attempt.supersedes"},
	"STALE_ATTEMPT":            {one: "attempt.same"},
	"ROUTE_REFUSED":            {three: "open.dial.link-local"},
	"ROUTE_INVALID":            {one: "revision.each"},
	"SLOW_CONSUMER":            {one: "flow.slow-consumer"},
	"INVALID_GRAMMAR":          {raise: scripted("step 2+ fail INVALID_GRAMMAR")},
	"NO_TEMPLATE":              {narrow: "text.no-template"},
	"TOKEN_OUT_OF_RANGE":       {one: "revision.each"},
	"LOAD_IN_PROGRESS":         {one: "shard.load.path"},
	"AUTHORITY_DOWN":           {raise: nobodyToAsk},
	"QUOTA_EXCEEDED":           {narrow: "limits.sessions"},
}

// Every code of the taxonomy comes from a worker to a caller outside, with all that an error must have.
func TestEveryCodeIsReachedFromOutside(t *testing.T) {
	t.Parallel()
	one, three, narrow := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, row := range tables.Errors() {
		how, ok := reached[row.Name]
		if !ok {
			t.Errorf("nothing reaches %s from outside: name a case or a worker that does", row.Name)
		}
		one[how.one], three[how.three], narrow[how.narrow] = how.one != "", how.three != "", how.narrow != ""
	}
	for name := range reached {
		if !strings.Contains(fmt.Sprint(workerpb.ErrorCode_value), "ERROR_CODE_"+name+":") {
			t.Errorf("%s is no code", name)
		}
	}
	model := conformance.FakeModel(0)
	alone := errorsOf(t, one, route{store: model, fails: true}, start(t, "--model", model))
	chained := errorsOf(t, three, route{peer: true}, start(t, "--model", model, "--layers", "0:2"), start(t, "--model", model, "--layers", "2:4"), start(t, "--model", model, "--layers", "4:"))
	bounded := errorsOf(t, narrow, route{}, start(t, "--model", "fake", "--principal-sessions", "2"))
	for name, how := range reached {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var came []*workerpb.ShardError
			if how.raise != nil {
				f := fault.Of(how.raise(t))
				if f == nil || f.Inferred || !errors.Is(f, fault.Code(workerpb.ErrorCode_value["ERROR_CODE_"+name])) {
					t.Fatalf("%v came", f)
				}
				came = append(came, f.Proto())
			}
			came = append(came, alone[how.one]...)
			came = append(came, chained[how.three]...)
			came = append(came, bounded[how.narrow]...)
			whole(t, name, came)
		})
	}
}

// errorsOf runs some cases and returns what errors came in each.
func errorsOf(t *testing.T, ids map[string]bool, r route, addresses ...string) map[string][]*workerpb.ShardError {
	t.Helper()
	var names []string
	for id, wanted := range ids {
		if wanted {
			names = append(names, regexp.QuoteMeta(id))
		}
	}
	only := regexp.MustCompile("^(" + strings.Join(names, "|") + ")$")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	found := map[string][]*workerpb.ShardError{}
	report := conformance.Run(ctx, targetAt(t, r, addresses...), conformance.Options{Only: only, Limit: 30 * time.Second})
	for _, o := range report.Outcomes {
		if len(o.Faults) > 0 || o.Skip != "" {
			t.Errorf("%s: %v %s", o.Case.ID, o.Faults, o.Skip)
		}
		found[o.Case.ID] = o.Errors
	}
	if len(report.Outcomes) != len(names) {
		t.Errorf("%d cases ran of %v", len(report.Outcomes), names)
	}
	return found
}

// whole looks for the code among what came, and at what the error has.
func whole(t *testing.T, name string, came []*workerpb.ShardError) {
	t.Helper()
	for _, e := range came {
		if fault.Name(e.GetCode()) != name {
			continue
		}
		row := tables.ErrorByCode(e.GetCode())
		switch {
		case e.GetOrigin().GetWorkerId() == "" || e.GetSubject() == nil && name != "CANCELLED": // no hop is at fault there
			t.Errorf("origin %v, subject %v", e.GetOrigin(), e.GetSubject())
		case e.GetScope() == 0 || e.GetRecovery() == 0:
			t.Errorf("scope %v, recovery %v", e.GetScope(), e.GetRecovery())
		case status.Code(fault.FromProto(e)) != row.GRPC:
			t.Errorf("its status is %v, the table says %v", status.Code(fault.FromProto(e)), row.GRPC)
		}
		return
	}
	t.Errorf("it did not come; these did: %v", came)
}

// scripted is the failure of a step of a worker whose engine fails by a script from the second step on.
func scripted(script string) func(*testing.T) error {
	return func(t *testing.T) error {
		w, err := client.Open(start(t, "--model", "fake:script="+script), dial.Default())
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		r, err := routes.Discover(t.Context(), []*client.Client{w})
		if err != nil {
			t.Fatal(err)
		}
		s, err := session.Open(t.Context(), r, session.Default())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Abandon()
		if err := s.Prefill(t.Context(), []uint32{40}); err != nil {
			t.Fatal(err)
		}
		return s.Prefill(t.Context(), []uint32{41})
	}
}

// loading is the failure of a load.
func loading(code string) func(*testing.T) error {
	return func(t *testing.T) error {
		shard := workerpb.NewShardServiceClient(connect(t, start(t, "--model", "fake")))
		if _, err := shard.UnloadShard(t.Context(), &workerpb.UnloadShardRequest{}); err != nil {
			t.Fatal(err)
		}
		stream, err := shard.LoadShard(t.Context(), &workerpb.LoadShardRequest{Model: "fake:script=load fail " + code, First: proto.Uint32(0)})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			t.Fatal("it is loaded")
		}
		return err
	}
}

// unknownCaller brings no token to a worker that asks for one.
func unknownCaller(t *testing.T) error {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "fleet")
	own := ca.Issue(t, folder, "w", "w.example", "127.0.0.1")
	tokens := filepath.Join(folder, "tokens")
	if err := os.WriteFile(tokens, []byte("somebody: "+strings.Repeat("ab", 32)+": all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := dial.Default()
	if err := (dial.Files{CA: ca.File}).Secure(&o, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	conn, err := dial.Open(start(t, "--model", "fake", "--tls-cert", own.Cert, "--tls-key", own.Key, "--token-file", tokens), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_, err = workerpb.NewWorkerServiceClient(conn).GetCapability(t.Context(), &workerpb.GetCapabilityRequest{})
	return err
}

// nobodyToAsk is a worker whose authority does not answer.
func nobodyToAsk(t *testing.T) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = workerpb.NewWorkerServiceClient(connect(t, start(t, "--model", "fake", "--authz-address", address, "--authz-timeout", "300ms"))).
		GetCapability(t.Context(), &workerpb.GetCapabilityRequest{})
	return err
}

func connect(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
