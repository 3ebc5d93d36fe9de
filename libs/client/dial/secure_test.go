package dial_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
)

// door serves health checks over TLS with a certificate of pair, and tells what each caller showed.
func door(t *testing.T, pair certtest.Pair, clients *certtest.CA) (string, <-chan shown) {
	t.Helper()
	own, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(clients.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	callers := make(chan shown, 8)
	listener := listen(t, "127.0.0.1:0")
	serve(t, listener, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: roots, ClientAuth: tls.VerifyClientCertIfGiven})),
		grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			callers <- seen(ctx)
			return handle(ctx, r)
		}))
	return listener.Addr().String(), callers
}

// shown is the subject and the token of a caller.
type shown struct{ subject, token string }

func seen(ctx context.Context) shown {
	var s shown
	if tokens := metadata.ValueFromIncomingContext(ctx, "authorization"); len(tokens) == 1 {
		s.token = tokens[0]
	}
	if p, ok := peer.FromContext(ctx); ok {
		if tlsInfo, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(tlsInfo.State.PeerCertificates) > 0 {
			s.subject = tlsInfo.State.PeerCertificates[0].Subject.CommonName
		}
	}
	return s
}

// secured are options by files.
func secured(t *testing.T, f dial.Files, log *slog.Logger) dial.Options {
	t.Helper()
	o := dial.Default()
	if err := f.Secure(&o, log); err != nil {
		t.Fatal(err)
	}
	return o
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFilesProveBothSides(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "ca")
	address, callers := door(t, ca.Issue(t, folder, "server", "127.0.0.1", "spiffe://fleet/worker-2"), ca)
	own := ca.Issue(t, folder, "driver", "driver.example")
	token := filepath.Join(folder, "token")
	put(t, token, "s3cret-1\n")
	var log bytes.Buffer
	o := secured(t, dial.Files{CA: ca.File, Cert: own.Cert, Key: own.Key, Token: token}, slog.New(slog.NewTextHandler(&log, nil)))
	with := func(o dial.Options) func(*dial.Options) { return func(p *dial.Options) { *p = o } }
	conn := open(t, address, with(o))
	if err := check(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if got := <-callers; got != (shown{"driver", "Bearer s3cret-1"}) {
		t.Errorf("it showed %+v", got)
	}

	// What changed counts: the token at the next call, the certificate at the next connection. What is broken does not.
	put(t, token, "s3cret-2")
	ca.Issue(t, folder, "driver", "driver.example")
	put(t, own.Cert, "broken")
	if err := check(t.Context(), open(t, address, with(o))); err != nil {
		t.Fatal(err)
	}
	if got := <-callers; got != (shown{"driver", "Bearer s3cret-2"}) {
		t.Errorf("with a new token it showed %+v", got)
	}
	if text := log.String(); !strings.Contains(text, own.Cert) || strings.Contains(text, "s3cret") || strings.Contains(text, "broken") {
		t.Errorf("the log says %s", text)
	}

	for name, tt := range map[string]struct {
		host, identity string
		says           string // "" if it is believed
	}{
		"its address":            {"127.0.0.1", "", ""},
		"its identity":           {"elsewhere.example", "spiffe://fleet/worker-2", ""},
		"another name":           {"elsewhere.example", "", "elsewhere.example"},
		"another's identity":     {"127.0.0.1", "spiffe://fleet/worker-3", "does not name spiffe://fleet/worker-3"},
		"a part of its identity": {"127.0.0.1", "worker-2", "does not name worker-2"},
	} {
		t.Run(name, func(t *testing.T) {
			expecting, err := o.Expect(tt.host, tt.identity)
			if err != nil {
				t.Fatal(err)
			}
			conn := open(t, address, with(expecting))
			err = check(t.Context(), conn)
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(conn.Unreachable().Message, tt.says) {
				t.Errorf("%v; %v", err, conn.Unreachable())
			}
		})
	}

	other := certtest.NewCA(t, folder, "other")
	bytesOf, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	put(t, ca.File, string(bytesOf))
	stranger := open(t, address, with(o))
	if err := check(t.Context(), stranger); err == nil || !strings.Contains(stranger.Unreachable().Message, "unknown authority") {
		t.Errorf("after its CA was replaced: %v", err)
	}
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "ca")
	a, b := ca.Issue(t, folder, "a"), ca.Issue(t, folder, "b")
	two, empty := filepath.Join(folder, "two"), filepath.Join(folder, "empty")
	put(t, two, "sec ret")
	put(t, empty, "\n")
	for name, f := range map[string]dial.Files{
		"no such CA": {CA: filepath.Join(folder, "none")}, "a CA that is a key": {CA: a.Key}, "a certificate alone": {Cert: a.Cert},
		"a key alone": {Key: a.Key}, "another's key": {Cert: a.Cert, Key: b.Key}, "two tokens": {Token: two}, "no token": {Token: empty},
		"a folder": {CA: folder},
	} {
		o := dial.Default()
		if err := f.Secure(&o, slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "ret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := dial.Default().Expect("h", "spiffe://x"); err == nil {
		t.Error("an identity is expected without TLS")
	}
}

// A token is not sent where others can read it.
func TestTokenNeedsTLS(t *testing.T) {
	folder := t.TempDir()
	token := filepath.Join(folder, "token")
	put(t, token, "s3cret")
	o := secured(t, dial.Files{Token: token}, slog.New(slog.DiscardHandler))
	o.TLS = nil
	if _, err := dial.Open(net.JoinHostPort("127.0.0.1", "1"), o); err == nil {
		t.Error("a connection without TLS takes a token")
	}
}
