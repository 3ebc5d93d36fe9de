package dial_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers health checks at listener.
func serve(t *testing.T, listener net.Listener, options ...grpc.ServerOption) {
	t.Helper()
	g := grpc.NewServer(options...)
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(listener)
	}()
	t.Cleanup(func() { g.Stop(); <-served })
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func open(t *testing.T, address string, change func(*dial.Options)) *dial.Conn {
	t.Helper()
	o := dial.Default()
	o.Backoff = 5 * time.Millisecond
	if change != nil {
		change(&o)
	}
	conn, err := dial.Open(address, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func check(ctx context.Context, conn *dial.Conn) error {
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

func TestConnectWaitsForTheDoor(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	address := listener.Addr().String()
	_ = listener.Close()
	refused := make(chan struct{}, 1)
	conn := open(t, address, func(o *dial.Options) {
		o.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				select {
				case refused <- struct{}{}:
				default:
				}
			}
			return c, err
		}
	})
	connected := make(chan error, 1)
	go func() { connected <- conn.Connect(t.Context()) }()
	<-refused // it has knocked in vain once
	serve(t, listen(t, address))
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	if err := check(t.Context(), conn); err != nil {
		t.Error(err)
	}
}

func TestNobodyThere(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	address := listener.Addr().String()
	_ = listener.Close()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	f := fault.Of(open(t, address, nil).Connect(ctx))
	if f.Code != workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE || !strings.Contains(f.Message, address) || !strings.Contains(f.Message, "refused") {
		t.Errorf("error %+v", f)
	}
}

func TestTransportSecurity(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	listener := listen(t, "127.0.0.1:0")
	serve(t, listener, grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})))
	roots := x509.NewCertPool()
	roots.AddCert(certificate)

	trusting := open(t, listener.Addr().String(), func(o *dial.Options) { o.TLS = &tls.Config{RootCAs: roots} })
	if err := check(t.Context(), trusting); err != nil {
		t.Errorf("with the right root: %v", err)
	}
	stranger := open(t, listener.Addr().String(), func(o *dial.Options) { o.TLS = &tls.Config{RootCAs: x509.NewCertPool()} })
	if err := check(t.Context(), stranger); err == nil {
		t.Error("a certificate that nobody signed is believed")
	} else if f := stranger.Unreachable(); !strings.Contains(f.Message, "no TLS") || !strings.Contains(f.Message, "unknown authority") {
		t.Errorf("error %+v", f)
	}
	plain := open(t, listener.Addr().String(), nil)
	if err := check(t.Context(), plain); err == nil {
		t.Error("a connection without TLS is taken")
	} else if f := plain.Unreachable(); !strings.Contains(f.Message, "no gRPC") {
		t.Errorf("error %+v", f)
	}
}
