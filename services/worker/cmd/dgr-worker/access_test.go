package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authz "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// fleet is a CA and the folder of what it issued.
type fleet struct {
	t      *testing.T
	folder string
	ca     *certtest.CA
}

func newFleet(t *testing.T) fleet {
	t.Helper()
	folder := t.TempDir()
	return fleet{t, folder, certtest.NewCA(t, folder, "fleet")}
}

// member is a certificate for this machine and the names.
func (f fleet) member(name string, sans ...string) certtest.Pair {
	return f.ca.Issue(f.t, f.folder, name, append(sans, "127.0.0.1")...)
}

// file writes a file of the fleet.
func (f fleet) file(name, text string) string {
	f.t.Helper()
	path := filepath.Join(f.folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// as are the options of a caller.
func (f fleet) as(files dial.Files) dial.Options {
	f.t.Helper()
	o := dial.Default()
	if err := files.Secure(&o, slog.New(slog.DiscardHandler)); err != nil {
		f.t.Fatal(err)
	}
	return o
}

// worker starts a worker with the certificate w<i>.example over the layers.
func (f fleet) worker(i int, layers string, more ...string) *launched {
	f.t.Helper()
	own := f.member(fmt.Sprintf("w%d", i), fmt.Sprintf("w%d.example", i))
	return start(f.t, nil, faked(append([]string{"--layers", layers, "--tls-cert", own.Cert, "--tls-key", own.Key, "--log-level", "debug"}, more...)...)...)
}

func hashOf(token string) string {
	hash := sha256.Sum256([]byte(token))
	return hex.EncodeToString(hash[:])
}

// quiet fails the test if a log holds a word that could be used again, or any key.
func quiet(t *testing.T, workers []*launched, words ...string) {
	t.Helper()
	for i, c := range workers {
		for _, word := range append(words, "PRIVATE KEY", "Bearer") {
			if strings.Contains(c.stderr.String(), word) {
				t.Errorf("the log of worker %d holds %q", i, word)
			}
		}
	}
}

// Three workers that know each other by certificates say what one says that knows nobody.
func TestARouteOverMutualTLS(t *testing.T) {
	const n = 24
	want, err := take(t, generate(t, open(t, start(t, nil, faked()...).ready()), n), n)
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t)
	var workers []*launched
	for i, layers := range []string{"0:2", "2:4", "4:"} {
		workers = append(workers, f.worker(i, layers, "--tls-client-ca", f.ca.File,
			"--tls-allow", fmt.Sprintf("driver.example=infer+observe+text,w%d.example=chain", i-1),
			"--chain-ca", f.ca.File, "--chain-allow", fmt.Sprintf("127.0.0.1:*=w%d.example", i+1)))
	}
	var at []announcement
	for _, c := range workers {
		at = append(at, c.ready())
	}
	driver := f.member("driver", "driver.example")
	s, err := openWith(t, f.as(dial.Files{CA: f.ca.File, Cert: driver.Cert, Key: driver.Key}), at...)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := take(t, generate(t, s, n), n); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}

	if _, err := openWith(t, dial.Default(), at...); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE)) {
		t.Errorf("without TLS: %v", err)
	}
	if _, err := openWith(t, f.as(dial.Files{CA: f.ca.File}), at...); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE)) {
		t.Errorf("without a certificate: %v", err)
	}
	stranger := f.member("stranger", "stranger.example")
	if _, err := openWith(t, f.as(dial.Files{CA: f.ca.File, Cert: stranger.Cert, Key: stranger.Key}), at...); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)) {
		t.Errorf("with a name that is not listed: %v", err)
	}
	quiet(t, workers)
}

// A hop that is not who it must be is not spoken to, and one that may not chain is not served.
func TestHopsMustBeWhoTheyAre(t *testing.T) {
	f := newFleet(t)
	driver := f.member("driver", "driver.example")
	o := f.as(dial.Files{CA: f.ca.File, Cert: driver.Cert, Key: driver.Key})
	for name, tt := range map[string]struct {
		identity, allow string
		want            workerpb.ErrorCode
	}{
		"another identity": {"w7.example", "w0.example=chain", workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE},
		"no chaining":      {"w1.example", "w0.example=infer+observe", workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED},
	} {
		t.Run(name, func(t *testing.T) {
			head := f.worker(0, "0:2", "--tls-client-ca", f.ca.File, "--tls-allow", "driver.example=all", "--chain-ca", f.ca.File,
				"--chain-allow", "127.0.0.1:*="+tt.identity)
			tail := f.worker(1, "2:", "--tls-client-ca", f.ca.File, "--tls-allow", "driver.example=all,"+tt.allow)
			_, err := openWith(t, o, head.ready(), tail.ready())
			var e *fault.Error
			if !errors.As(err, &e) || e.Code != tt.want || e.Subject.GetIndex() != 1 {
				t.Errorf("%v about %v; want %v about hop 1", err, e.Subject, tt.want)
			}
		})
	}
}

// With tokens each hop shows its own; that of the caller goes no further than the head.
func TestARouteByTokens(t *testing.T) {
	f := newFleet(t)
	const driver, hop = "token-of-the-driver", "token-of-the-head"
	head := f.worker(0, "0:2", "--token-file", f.file("head", "driver: "+hashOf(driver)+": infer, observe, text\n"),
		"--chain-ca", f.ca.File, "--chain-token-file", f.file("hop", hop+"\n"), "--chain-allow", "127.0.0.1:*")
	tails := f.file("tail", "head: "+hashOf(hop)+": chain\ndriver: "+hashOf(driver)+": observe\n")
	tail := f.worker(1, "2:", "--token-file", tails)
	at := []announcement{head.ready(), tail.ready()}
	o := f.as(dial.Files{CA: f.ca.File, Token: f.file("driver", driver)})
	s, err := openWith(t, o, at...)
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := take(t, generate(t, s, 8), 9); !errors.Is(err, io.EOF) || len(ids) != 8 {
		t.Errorf("%d tokens, then %v", len(ids), err)
	}
	// The tail lets the driver chain and the head not: were the driver's token passed on, this would open.
	f.file("tail", "head: "+hashOf(hop)+": observe\ndriver: "+hashOf(driver)+": observe chain\n")
	if _, err := openWith(t, o, at...); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)) {
		t.Errorf("the driver's token came to the tail: %v", err)
	}
	wrong := f.as(dial.Files{CA: f.ca.File, Token: f.file("wrong", "token-of-nobody")})
	if _, err := openWith(t, wrong, at...); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED)) {
		t.Errorf("a wrong token: %v", err)
	}
	if _, err := openWith(t, f.as(dial.Files{CA: f.ca.File}), at...); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED)) {
		t.Errorf("no token: %v", err)
	}
	tail.says("code=PERMISSION_DENIED")
	quiet(t, []*launched{head, tail}, driver, hop, "token-of-nobody", hashOf(driver), hashOf(hop))
}

// A new certificate is shown without a restart, also on the admin port; a broken one is not.
func TestCertificatesAreReadAgain(t *testing.T) {
	f := newFleet(t)
	c := f.worker(0, "0:", "--tls-client-ca", f.ca.File, "--tls-allow", "driver.example=all")
	a := c.ready()
	driver := f.member("driver", "driver.example")
	own, err := tls.LoadX509KeyPair(driver.Cert, driver.Key)
	if err != nil {
		t.Fatal(err)
	}
	shown := func(address string) string {
		t.Helper()
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{own}, NextProtos: []string{"h2"}}}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := shown(a.Address)
	f.member("w0", "w0.example")
	second := shown(a.Address)
	if second == first || shown(a.Admin) != second {
		t.Errorf("it shows %s, on the admin port %s, before %s", second, shown(a.Admin), first)
	}
	f.file("w0.pem", "no certificate")
	if got := shown(a.Address); got != second {
		t.Errorf("with a broken file it shows %s", got)
	}
	c.says("cannot be used; what they held before stays")
}

// The admin port asks as the other one does; an orchestrator needs nothing.
func TestAdminPortAsksWhoComes(t *testing.T) {
	f := newFleet(t)
	const look, rule = "token-that-looks", "token-that-rules"
	c := f.worker(0, "0:", "--token-file", f.file("tokens", "look: "+hashOf(look)+": observe\nrule: "+hashOf(rule)+": admin\n"))
	a := c.ready()
	transport := &http.Transport{TLSClientConfig: f.as(dial.Files{CA: f.ca.File}).TLSFor(a.Admin), DisableKeepAlives: true, ForceAttemptHTTP2: true}
	ask := func(method, path, token string) int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, "https://"+a.Admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.ProtoMajor != 2 {
			t.Errorf("%s speaks %s", path, response.Proto)
		}
		return response.StatusCode
	}
	for _, tt := range []struct {
		method, path, token string
		want                int
	}{
		{"GET", "/livez", "", 200}, {"GET", "/readyz", "", 200}, {"GET", "/readyz", "wrong", 200},
		{"GET", "/metrics", "", 401}, {"GET", "/v1/sessions", "wrong", 401}, {"GET", "/v1/capability", rule, 403},
		{"GET", "/metrics", look, 200}, {"GET", "/v1/sessions", look, 200}, {"POST", "/v1/drain", "", 401},
		{"POST", "/v1/drain", look, 403}, {"GET", "/nothing", "", 401}, {"POST", "/v1/drain", rule, 202},
	} {
		if got := ask(tt.method, tt.path, tt.token); got != tt.want {
			t.Errorf("%s %s with %q: %d, want %d", tt.method, tt.path, tt.token, got, tt.want)
		}
	}
	quiet(t, []*launched{c}, look, rule, hashOf(look))
}

// Reflection is not served where callers must prove who they are, unless asked for, and then to those who may observe.
func TestReflectionIsOffWhereCallersAreAsked(t *testing.T) {
	f := newFleet(t)
	const token = "token-that-looks"
	tokens := f.file("tokens", "look: "+hashOf(token)+": observe\n")
	reflects := func(o dial.Options, more ...string) error {
		t.Helper()
		conn, err := dial.Open(f.worker(0, "0:", append(more, "--token-file", tokens)...).ready().Address, o)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	looking, nobody := f.as(dial.Files{CA: f.ca.File, Token: f.file("look", token)}), f.as(dial.Files{CA: f.ca.File})
	if err := reflects(looking); err == nil {
		t.Error("it is served unasked")
	}
	if err := reflects(looking, "--reflection"); err != nil {
		t.Errorf("asked for: %v", err)
	}
	if err := reflects(nobody, "--reflection"); !errors.Is(fault.FromStatus(err), fault.Code(workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED)) {
		t.Errorf("to nobody: %v", err)
	}
}

// A session's key is in no log and no error, whatever is wrong with the request that holds it.
func TestSessionKeysAreNotTold(t *testing.T) {
	c := start(t, nil, faked("--log-level", "debug")...)
	conn, err := dial.Open(c.ready().Address, dial.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := workerpb.NewWorkerServiceClient(conn)
	id, key := bytes.Repeat([]byte{7}, 16), bytes.Repeat([]byte("k"), 32)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var said []string
	for _, open := range []*workerpb.Open{
		{SessionId: id, SessionKey: key, Attempt: 1}, {SessionId: id, SessionKey: append(key, 'k'), Attempt: 1}, {SessionId: key, SessionKey: key},
	} {
		stream, err := client.Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: open}}); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if err == nil {
			t.Error("an open that lacks almost everything is taken")
		}
		said = append(said, fmt.Sprint(err))
	}
	for _, k := range [][]byte{key, key[:31]} {
		_, err := client.CancelSession(ctx, &workerpb.CancelSessionRequest{SessionId: id, SessionKey: k})
		said = append(said, fmt.Sprint(err))
	}
	said = append(said, c.stderr.String())
	for _, text := range said {
		for _, form := range []string{"kkkk", "6b6b6b", "6B6B6B", "a2tr", "107 107", "107,107"} {
			if strings.Contains(text, form) {
				t.Errorf("%q holds the key", text)
			}
		}
	}
}

// verdict is a server of Envoy's ext_authz API that allows the operations it holds.
type verdict struct {
	authz.UnimplementedAuthorizationServer
	mu  sync.Mutex
	may []string
}

func (v *verdict) Check(_ context.Context, r *authz.CheckRequest) (*authz.CheckResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	code := codes.PermissionDenied
	if slices.Contains(v.may, r.GetAttributes().GetContextExtensions()["operation"]) && r.GetAttributes().GetRequest().GetHttp().GetHeaders()["authorization"] == "Bearer of-the-authority" {
		code = codes.OK
	}
	return &authz.CheckResponse{Status: &rpcstatus.Status{Code: int32(code)}}, nil
}

func (v *verdict) allow(operations ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.may = operations
}

// The authority decides by what it is told; while it is away nobody passes, and the worker stays alive and ready.
func TestAnAuthorityDecides(t *testing.T) {
	f := newFleet(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v, server, served := &verdict{}, grpc.NewServer(), make(chan struct{})
	authz.RegisterAuthorizationServer(server, v)
	go func() {
		defer close(served)
		_ = server.Serve(l) // it ends with Stop
	}()
	defer func() { server.Stop(); <-served }()
	c := f.worker(0, "0:", "--authz-address", l.Addr().String(), "--authz-timeout", "500ms")
	a := c.ready()
	o := f.as(dial.Files{CA: f.ca.File, Token: f.file("token", "of-the-authority")})
	for _, tt := range []struct {
		may  []string
		want error
	}{
		{[]string{"observe", "infer"}, nil},
		{[]string{"observe", "chain", "admin", "text", "delegate"}, fault.Code(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)},
		{[]string{"infer"}, fault.Code(workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)},
	} {
		v.allow(tt.may...)
		if _, err := openWith(t, o, a); !errors.Is(err, tt.want) {
			t.Errorf("allowed to %v: %v, want %v", tt.may, err, tt.want)
		}
	}
	server.Stop()
	if _, err := openWith(t, o, a); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_AUTHORITY_DOWN)) {
		t.Errorf("while it is away: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: o.TLSFor(a.Admin), DisableKeepAlives: true}
	for path, want := range map[string]int{"/readyz": http.StatusOK, "/metrics": http.StatusServiceUnavailable} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+a.Admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s while it is away: %d, want %d", path, response.StatusCode, want)
		}
	}
	quiet(t, []*launched{c}, "of-the-authority")
}

// Files that cannot be used are faults of the configuration.
func TestFilesOfAccessThatCannotBeUsed(t *testing.T) {
	f := newFleet(t)
	own := f.member("w", "w.example")
	f.file("tokens", "this holds-a-secret\n")
	secure := []string{"--tls-cert", own.Cert, "--tls-key", own.Key}
	for name, args := range map[string][]string{
		"fleet.pem": {"--tls-cert", f.ca.File, "--tls-key", own.Key, "--tls-client-ca", f.ca.File, "--tls-allow", "a=all"},
		"none":      append(secure, "--tls-client-ca", filepath.Join(f.folder, "none"), "--tls-allow", "a=all"),
		"tokens":    append(secure, "--token-file", filepath.Join(f.folder, "tokens")),
		"missing":   {"--chain-ca", filepath.Join(f.folder, "missing"), "--chain-allow", "127.0.0.1:*"},
	} {
		c := start(t, nil, faked(args...)...)
		c.fails(exitUsage, name)
		quiet(t, []*launched{c}, "holds-a-secret")
	}
}
