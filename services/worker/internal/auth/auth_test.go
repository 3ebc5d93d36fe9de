package auth_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Codes that a guard gives; passed is none.
const (
	passed  = workerpb.ErrorCode_ERROR_CODE_UNSPECIFIED
	unknown = workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED
	denied  = workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED
	down    = workerpb.ErrorCode_ERROR_CODE_AUTHORITY_DOWN
)

// logged is a log and what it said.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func guard(t *testing.T, o auth.Options) (*auth.Guard, *logged) {
	t.Helper()
	log := &logged{}
	o.Log = log.logger()
	g, err := auth.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return g, log
}

// expect checks what the guard says to a peer.
func expect(t *testing.T, g *auth.Guard, name string, p auth.Peer, what auth.Operation, want workerpb.ErrorCode) auth.Principal {
	t.Helper()
	who, err := g.Allow(t.Context(), p, what)
	if want == passed && err != nil || want != passed && !errors.Is(err, fault.Code(want)) || err != nil && who != "" {
		t.Errorf("%s for %s: %q, %v; want %v", name, what, who, err, want)
	}
	return who
}

// showing is a peer with the certificate of a pair.
func showing(t *testing.T, pair certtest.Pair) auth.Peer {
	t.Helper()
	own, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return auth.Peer{Address: "10.0.0.9:4711", Certificates: []*x509.Certificate{leaf}}
}

func bearing(token string) auth.Peer {
	return auth.Peer{Address: "10.0.0.9:4711", Authorization: "Bearer " + token}
}

func hashOf(token string) string {
	hash := sha256.Sum256([]byte(token))
	return hex.EncodeToString(hash[:])
}

func put(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNamesOfCertificatesMayWhatIsListed(t *testing.T) {
	folder := t.TempDir()
	ca, other := certtest.NewCA(t, folder, "ca"), certtest.NewCA(t, folder, "other")
	g, _ := guard(t, auth.Options{ClientCA: ca.File, Allow: []string{
		"gateway.example=infer+text+observe", "spiffe://fleet/worker-1=chain", "10.0.0.7=admin", "subject:CN=operator=all", "subject://x=all",
	}})
	for name, tt := range map[string]struct {
		peer auth.Peer
		who  auth.Principal
		may  []auth.Operation // of none: PERMISSION_DENIED for all
		want workerpb.ErrorCode
	}{
		"a DNS name":           {showing(t, ca.Issue(t, folder, "a", "x.example", "gateway.example")), "tls:gateway.example", []auth.Operation{auth.Infer, auth.Text, auth.Observe}, 0},
		"a URI":                {showing(t, ca.Issue(t, folder, "b", "spiffe://fleet/worker-1")), "tls:spiffe://fleet/worker-1", []auth.Operation{auth.Chain}, 0},
		"an address":           {showing(t, ca.Issue(t, folder, "c", "10.0.0.7")), "tls:10.0.0.7", []auth.Operation{auth.Admin}, 0},
		"a subject":            {showing(t, ca.Issue(t, folder, "operator", "y.example")), "tls:subject:CN=operator", []auth.Operation{auth.Infer, auth.Chain, auth.Delegate, auth.Text, auth.Observe, auth.Admin}, 0},
		"one not listed":       {showing(t, ca.Issue(t, folder, "d", "gateway.example.org")), "", nil, 0},
		"a SAN like a subject": {showing(t, ca.Issue(t, folder, "g", "subject://x", "subject:CN=operator")), "", nil, 0},
		"of another CA":        {showing(t, other.Issue(t, folder, "e", "gateway.example")), "", nil, unknown},
		"one that is over":     {showing(t, ca.IssueUntil(t, folder, "f", time.Now().Add(-time.Minute), "gateway.example")), "", nil, unknown},
		"none":                 {auth.Peer{}, "", nil, unknown},
		"a token instead":      {bearing("x"), "", nil, unknown},
	} {
		for _, what := range []auth.Operation{auth.Infer, auth.Chain, auth.Delegate, auth.Text, auth.Observe, auth.Admin, "invented"} {
			want := tt.want
			if want == 0 {
				want = denied
			}
			for _, may := range tt.may {
				if may == what {
					want = passed
				}
			}
			if who := expect(t, g, name, tt.peer, what, want); want == passed && who != tt.who {
				t.Errorf("%s is %s, want %s", name, who, tt.who)
			}
		}
	}
}

func TestListAndCAAreReadAgain(t *testing.T) {
	folder := t.TempDir()
	ca, other := certtest.NewCA(t, folder, "ca"), certtest.NewCA(t, folder, "other")
	list := put(t, filepath.Join(folder, "allow"), "# who may what\na.example: infer, text\n*: observe\n")
	g, log := guard(t, auth.Options{ClientCA: ca.File, AllowFile: list})
	a, b := showing(t, ca.Issue(t, folder, "a", "a.example")), showing(t, other.Issue(t, folder, "b", "b.example"))
	expect(t, g, "a", a, auth.Infer, passed)
	expect(t, g, "a", a, auth.Observe, denied) // * is for those who have no entry
	expect(t, g, "b", b, auth.Observe, unknown)

	put(t, list, "a.example: chain\nb.example: infer\n")
	expect(t, g, "a", a, auth.Infer, denied)
	expect(t, g, "a", a, auth.Chain, passed)
	put(t, list, "a.example: everything\n")
	expect(t, g, "a", a, auth.Chain, passed)
	if text := log.String(); !strings.Contains(text, "cannot be used") || !strings.Contains(text, "line 1") {
		t.Errorf("a broken list is not told: %s", text)
	}
	moved, err := os.ReadFile(other.File)
	if err != nil {
		t.Fatal(err)
	}
	put(t, ca.File, string(moved))
	expect(t, g, "a, after its CA was replaced", a, auth.Chain, unknown)
	expect(t, g, "b, after its CA came", b, auth.Infer, passed)
}

func TestTokens(t *testing.T) {
	const secret, next = "correct-horse-battery", "staple-of-another-kind"
	path := put(t, filepath.Join(t.TempDir(), "tokens"), "driver: "+hashOf(secret)+": infer observe\n")
	g, log := guard(t, auth.Options{TokenFile: path})
	if who := expect(t, g, "the right one", bearing(secret), auth.Infer, passed); who != "token:driver" {
		t.Errorf("it is %s", who)
	}
	lower := bearing(secret)
	lower.Authorization = "bearer  " + secret
	expect(t, g, "in other letters", lower, auth.Observe, passed)
	expect(t, g, "the right one", bearing(secret), auth.Admin, denied)
	expect(t, g, "the wrong one", bearing(next), auth.Infer, unknown)
	expect(t, g, "the hash", bearing(hashOf(secret)), auth.Infer, unknown)
	expect(t, g, "none", auth.Peer{}, auth.Infer, unknown)
	expect(t, g, "an empty one", auth.Peer{Authorization: "Bearer "}, auth.Infer, unknown)
	expect(t, g, "another scheme", auth.Peer{Authorization: "Basic " + secret}, auth.Infer, unknown)
	expect(t, g, "two", auth.Peer{Authorization: "Bearer " + secret + ", Bearer " + secret}, auth.Infer, unknown)

	put(t, path, "driver: "+hashOf(next)+": infer\n")
	expect(t, g, "the old one", bearing(secret), auth.Infer, unknown)
	expect(t, g, "the new one", bearing(next), auth.Infer, passed)
	for _, broken := range []string{"driver: " + next + ": infer\n", "driver: " + hashOf(next) + ": " + next + "\n", next, "*: " + hashOf(next) + ": infer\n",
		"driver: " + hashOf(next) + ": infer\ndriver: " + hashOf(secret) + ": admin\n"} {
		put(t, path, broken)
		expect(t, g, "after a broken file", bearing(next), auth.Infer, passed)
	}
	text := log.String()
	if strings.Count(text, "cannot be used") == 0 || strings.Count(text, "refused") != 8 {
		t.Errorf("the log says %s", text)
	}
	for _, word := range []string{secret, next, hashOf(secret), hashOf(next)} {
		if strings.Contains(text, word) {
			t.Errorf("the log holds %q: %s", word, text)
		}
	}
}

func TestATokenFileThatOthersReadIsTold(t *testing.T) {
	path := put(t, filepath.Join(t.TempDir(), "tokens"), "a: "+hashOf("x")+": infer\n")
	if _, log := guard(t, auth.Options{TokenFile: path}); strings.Contains(log.String(), "chmod") {
		t.Error(log)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, log := guard(t, auth.Options{TokenFile: path}); !strings.Contains(log.String(), "chmod") || !strings.Contains(log.String(), path) {
		t.Errorf("the log says %s", log)
	}
}

// Who shows a token is judged by it, also if a certificate would do.
func TestTokensBesideCertificates(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "ca")
	path := put(t, filepath.Join(folder, "tokens"), "driver: "+hashOf("x")+": infer\n")
	g, _ := guard(t, auth.Options{ClientCA: ca.File, Allow: []string{"a.example=chain", "token:driver=admin"}, TokenFile: path})
	a := showing(t, ca.Issue(t, folder, "a", "a.example"))
	expect(t, g, "a certificate", a, auth.Chain, passed)
	expect(t, g, "a token", bearing("x"), auth.Infer, passed)
	expect(t, g, "a token", bearing("x"), auth.Admin, denied)
	a.Authorization = "Bearer wrong"
	expect(t, g, "a certificate and a wrong token", a, auth.Chain, unknown)
}

func TestNothingAskedIsNoGuard(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "ca")
	for name, o := range map[string]auth.Options{"nothing": {}, "a CA alone": {ClientCA: ca.File}} {
		if g, _ := guard(t, o); g != nil {
			t.Errorf("%s makes a guard", name)
		}
	}
	for name, o := range map[string]auth.Options{
		"no such token file": {TokenFile: filepath.Join(folder, "none")}, "no such list": {ClientCA: ca.File, AllowFile: filepath.Join(folder, "none")},
		"no such CA": {ClientCA: filepath.Join(folder, "none"), Allow: []string{"a=infer"}}, "a bad entry": {ClientCA: ca.File, Allow: []string{"a=steal"}},
	} {
		o.Log = slog.New(slog.DiscardHandler)
		if g, err := auth.New(o); err == nil || g != nil {
			t.Errorf("%s: %v, %v", name, g, err)
		}
	}
	_, err := auth.ParseAllow([]string{"a=infer", "b", "c=", "=infer", "d=infer+steal"})
	for _, entry := range []string{"b", "c=", "=infer", "d=infer+steal"} {
		if err == nil || !strings.Contains(err.Error(), "\""+entry+"\"") {
			t.Errorf("%q is not named in %v", entry, err)
		}
	}
}
