package auth_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authz "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
)

// office is a server of Envoy's API that answers as the test wants.
type office struct {
	authz.UnimplementedAuthorizationServer
	mu     sync.Mutex
	answer func(context.Context, *authz.CheckRequest) (*authz.CheckResponse, error)
	asked  []*authz.CheckRequest
}

func (o *office) Check(ctx context.Context, r *authz.CheckRequest) (*authz.CheckResponse, error) {
	o.mu.Lock()
	o.asked = append(o.asked, r)
	answer := o.answer
	o.mu.Unlock()
	return answer(ctx, r)
}

func (o *office) says(answer func(context.Context, *authz.CheckRequest) (*authz.CheckResponse, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

func (o *office) questions() []*authz.CheckRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

// open opens the office at address until the end of the test, or until it is closed.
func (o *office) open(t *testing.T, address string) (at string, close func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	authz.RegisterAuthorizationServer(s, o)
	served := make(chan struct{})
	go func() {
		defer func() { served <- struct{}{} }()
		_ = s.Serve(l) // it ends with Stop
	}()
	close = sync.OnceFunc(func() { s.Stop(); <-served })
	t.Cleanup(close)
	return l.Addr().String(), close
}

func authority(t *testing.T, o auth.AuthorityOptions) *auth.Authority {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	a, err := auth.NewAuthority(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func answers(code codes.Code) func(context.Context, *authz.CheckRequest) (*authz.CheckResponse, error) {
	return func(context.Context, *authz.CheckRequest) (*authz.CheckResponse, error) {
		return &authz.CheckResponse{Status: &rpcstatus.Status{Code: int32(code)}}, nil
	}
}

func TestOnlyAnOKOfTheAuthorityAllows(t *testing.T) {
	o := &office{}
	address, _ := o.open(t, "127.0.0.1:0")
	g, log := guard(t, auth.Options{Authority: authority(t, auth.AuthorityOptions{Address: address})})
	deniedHTTP := func(code envoytype.StatusCode) *authz.CheckResponse_DeniedResponse {
		return &authz.CheckResponse_DeniedResponse{DeniedResponse: &authz.DeniedHttpResponse{Status: &envoytype.HttpStatus{Code: code}, Body: "s3cret"}}
	}
	ok := &rpcstatus.Status{}
	for name, tt := range map[string]struct {
		response *authz.CheckResponse
		err      error
		want     workerpb.ErrorCode
	}{
		"yes":                         {&authz.CheckResponse{Status: ok}, nil, passed},
		"yes with words":              {&authz.CheckResponse{Status: ok, HttpResponse: &authz.CheckResponse_OkResponse{OkResponse: &authz.OkHttpResponse{}}}, nil, passed},
		"no":                          {&authz.CheckResponse{Status: &rpcstatus.Status{Code: int32(codes.PermissionDenied)}}, nil, denied},
		"no, in a code of its own":    {&authz.CheckResponse{Status: &rpcstatus.Status{Code: 4711}}, nil, denied},
		"no, by HTTP":                 {&authz.CheckResponse{Status: &rpcstatus.Status{Code: int32(codes.PermissionDenied)}, HttpResponse: deniedHTTP(envoytype.StatusCode_Forbidden)}, nil, denied},
		"who is that":                 {&authz.CheckResponse{Status: &rpcstatus.Status{Code: int32(codes.Unauthenticated)}}, nil, unknown},
		"who is that, by HTTP":        {&authz.CheckResponse{Status: &rpcstatus.Status{Code: int32(codes.PermissionDenied)}, HttpResponse: deniedHTTP(envoytype.StatusCode_Unauthorized)}, nil, unknown},
		"nothing in the answer":       {&authz.CheckResponse{}, nil, down},
		"yes and no at once":          {&authz.CheckResponse{Status: ok, HttpResponse: deniedHTTP(envoytype.StatusCode_Forbidden)}, nil, denied},
		"yes and an error at once":    {&authz.CheckResponse{Status: ok, HttpResponse: &authz.CheckResponse_ErrorResponse{ErrorResponse: &authz.DeniedHttpResponse{}}}, nil, down},
		"an error":                    {nil, status.Error(codes.Internal, "s3cret"), down},
		"an error that looks like no": {nil, status.Error(codes.PermissionDenied, "s3cret"), down},
	} {
		o.says(func(context.Context, *authz.CheckRequest) (*authz.CheckResponse, error) { return tt.response, tt.err })
		expect(t, g, name, bearing("my-token"), auth.Infer, tt.want)
	}
	if text := log.String(); strings.Contains(text, "s3cret") || strings.Contains(text, "my-token") || !strings.Contains(text, "AUTHORITY_DOWN") {
		t.Errorf("the log says %s", text)
	}
}

func TestTheAuthorityIsAskedAsEnvoyAsks(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "ca")
	o := &office{answer: answers(codes.OK)}
	address, _ := o.open(t, "127.0.0.1:0")
	g, _ := guard(t, auth.Options{ClientCA: ca.File, Authority: authority(t, auth.AuthorityOptions{Address: address})})
	p := showing(t, ca.Issue(t, folder, "a", "spiffe://fleet/a"))
	p.Path, p.OnBehalfOf, p.Authorization = "/dgr.worker.v1.WorkerService/Session", "customer-7", "Bearer mine"
	if who := expect(t, g, "a", p, auth.Delegate, passed); who != "tls:spiffe://fleet/a" {
		t.Errorf("it is %s", who)
	}
	a := o.questions()[0].GetAttributes()
	source, http := a.GetSource(), a.GetRequest().GetHttp()
	certificate, err := url.PathUnescape(source.GetCertificate())
	if err != nil || !strings.HasPrefix(certificate, "-----BEGIN CERTIFICATE-----\n") || strings.ContainsAny(source.GetCertificate(), "+ \n") {
		t.Errorf("the certificate is %q", source.GetCertificate())
	}
	got := fmt.Sprint(source.GetPrincipal(), source.GetAddress().GetSocketAddress().GetAddress(), source.GetAddress().GetSocketAddress().GetPortValue(),
		http.GetPath(), http.GetMethod(), http.GetHeaders(), a.GetContextExtensions())
	want := fmt.Sprint("spiffe://fleet/a", "10.0.0.9", 4711, "/dgr.worker.v1.WorkerService/Session", "POST", map[string]string{"authorization": "Bearer mine"},
		map[string]string{"operation": "delegate", "principal": "tls:spiffe://fleet/a", "on_behalf_of": "customer-7"})
	if got != want {
		t.Errorf("asked\n%s, want\n%s", got, want)
	}
	stranger := certtest.NewCA(t, folder, "other")
	expect(t, g, "a certificate of nobody", showing(t, stranger.Issue(t, folder, "b", "spiffe://fleet/a")), auth.Infer, unknown)
	if n := len(o.questions()); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
}

func TestNobodyPassesWhileTheAuthorityIsAway(t *testing.T) {
	o := &office{answer: answers(codes.OK)}
	address, closeOffice := o.open(t, "127.0.0.1:0")
	a := authority(t, auth.AuthorityOptions{Address: address, Timeout: 200 * time.Millisecond})
	g, _ := guard(t, auth.Options{Authority: a})
	expect(t, g, "while it is there", bearing("x"), auth.Infer, passed)

	released := make(chan struct{})
	o.says(func(ctx context.Context, _ *authz.CheckRequest) (*authz.CheckResponse, error) {
		<-ctx.Done() // of the caller, who has waited enough
		close(released)
		return nil, ctx.Err()
	})
	began := time.Now()
	expect(t, g, "while it is slow", bearing("x"), auth.Infer, down)
	<-released
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	closeOffice()
	_, err := g.Allow(t.Context(), bearing("x"), auth.Infer)
	if f := fault.Of(err); f.Code != down || f.Recovery != workerpb.Recovery_RECOVERY_RETRY_SAME || f.RetryAfter == 0 {
		t.Errorf("while it is away: %+v", f)
	}

	patient, _ := guard(t, auth.Options{Authority: authority(t, auth.AuthorityOptions{Address: address})})
	said := make(chan error, 1)
	go func() {
		_, err := patient.Allow(t.Context(), bearing("x"), auth.Infer)
		said <- err
	}()
	o.says(answers(codes.OK))
	o.open(t, address)
	if err := <-said; err != nil {
		t.Errorf("once it is back: %v", err)
	}
}

func TestAYesIsRememberedAndNothingElse(t *testing.T) {
	const many = 100
	o := &office{answer: answers(codes.OK)}
	address, _ := o.open(t, "127.0.0.1:0")
	a := authority(t, auth.AuthorityOptions{Address: address, Keep: time.Hour, Room: many})
	g, _ := guard(t, auth.Options{Authority: a})
	expect(t, g, "first", bearing("x"), auth.Infer, passed)
	o.says(answers(codes.PermissionDenied))
	again := bearing("x")
	again.Address = "10.0.0.9:999" // another connection of the same
	expect(t, g, "again", again, auth.Infer, passed)
	expect(t, g, "another operation", bearing("x"), auth.Admin, denied)
	expect(t, g, "another token", bearing("y"), auth.Infer, denied)
	elsewhere := bearing("x")
	elsewhere.Address = "10.0.0.8:4711"
	expect(t, g, "another host", elsewhere, auth.Infer, denied)
	if n := len(o.questions()); n != 4 {
		t.Errorf("it was asked %d times", n)
	}
	o.says(answers(codes.OK))
	expect(t, g, "what was denied before", bearing("y"), auth.Infer, passed)
	for i := range many {
		expect(t, g, "one of many", bearing(fmt.Sprint(i)), auth.Infer, passed)
	}
	o.says(answers(codes.PermissionDenied))
	expect(t, g, "the last", bearing(fmt.Sprint(many-1)), auth.Infer, passed)
	forgotten := 0
	for i := range many {
		if _, err := g.Allow(t.Context(), bearing(fmt.Sprint(i)), auth.Infer); err != nil {
			forgotten++
		}
	}
	for _, token := range []string{"x", "y"} {
		if _, err := g.Allow(t.Context(), bearing(token), auth.Infer); err != nil {
			forgotten++
		}
	}
	if forgotten != 2 {
		t.Errorf("%d of %d are forgotten, want 2", forgotten, many+2)
	}
}

// The lists come first; the authority is asked about what they allow.
func TestListsAndAuthorityMustBothAllow(t *testing.T) {
	o := &office{answer: answers(codes.OK)}
	address, _ := o.open(t, "127.0.0.1:0")
	path := put(t, filepath.Join(t.TempDir(), "tokens"), "a: "+hashOf("x")+": infer\n")
	g, _ := guard(t, auth.Options{TokenFile: path, Authority: authority(t, auth.AuthorityOptions{Address: address})})
	expect(t, g, "both", bearing("x"), auth.Infer, passed)
	expect(t, g, "not listed", bearing("x"), auth.Admin, denied)
	expect(t, g, "not known", bearing("y"), auth.Infer, unknown)
	if n := len(o.questions()); n != 1 {
		t.Errorf("it was asked %d times", n)
	}
	o.says(answers(codes.PermissionDenied))
	expect(t, g, "listed", bearing("x"), auth.Infer, denied)
}
