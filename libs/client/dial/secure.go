package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/distributed-gguf-runtime/dgr/libs/client/reload"
)

// Files say by which files workers are believed and how this side proves itself; "" is none. They are read again when they
// change, so that the next connection, or with a token the next call, goes by what they hold then.
type Files struct {
	CA    string // PEM of the CA whose workers are believed; "" with Cert or Token: those that the system trusts
	Cert  string // PEM of the own certificate
	Key   string // PEM of its key; with Cert and never without
	Token string // a bearer token, alone in its file
}

// None says whether no file is named: then there is no transport security.
func (f Files) None() bool { return f == Files{} }

// Secure reads the files and sets TLS and Credentials of o.
//
// Errors: a file that cannot be read or holds something else; none repeats what a file holds.
func (f Files) Secure(o *Options, log *slog.Logger) error {
	if f.None() {
		return nil
	}
	if (f.Cert == "") != (f.Key == "") {
		return errors.New("a certificate and its key go together; give both or neither")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		roots, err := reload.Open(log, func(contents [][]byte) (*x509.CertPool, error) { return pool(contents[0]) }, f.CA)
		if err != nil {
			return fmt.Errorf("the CA %s cannot be used: %w", f.CA, err)
		}
		o.roots = roots.Get
	}
	if f.Cert != "" {
		pair, err := reload.Open(log, func(contents [][]byte) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(contents[0], contents[1])
			return &pair, err
		}, f.Cert, f.Key)
		if err != nil {
			return fmt.Errorf("the certificate %s with the key %s cannot be used: %w", f.Cert, f.Key, err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get(), nil }
	}
	o.TLS = c
	if f.Token == "" {
		return nil
	}
	token, err := reload.Open(log, func(contents [][]byte) (string, error) { return parseToken(contents[0]) }, f.Token)
	if err != nil {
		return fmt.Errorf("the token file %s cannot be used: %w", f.Token, err)
	}
	o.Credentials = bearer{token}
	return nil
}

// Expect returns o for a worker that must present identity, one of the SANs of its certificate (URI, DNS name, e-mail or IP
// address), or, where identity is "", the name or address host.
//
// Errors: an identity without TLS.
func (o Options) Expect(host, identity string) (Options, error) {
	if o.TLS == nil && identity != "" {
		return o, fmt.Errorf("it must present %s, and there is no CA to believe it by", identity)
	}
	o.host, o.identity = host, identity
	return o, nil
}

// TLSFor is the TLS of a connection to HOST:PORT; nil if there is none.
func (o Options) TLSFor(address string) *tls.Config {
	if o.TLS == nil {
		return nil
	}
	c := o.TLS.Clone()
	if c.ServerName == "" {
		if c.ServerName = o.host; c.ServerName == "" {
			c.ServerName, _, _ = net.SplitHostPort(address)
		}
	}
	if o.roots == nil && o.identity == "" {
		return c
	}
	// tls.Config has no place for roots that change, nor for a name that is no host's; verified does what it would do.
	roots, name, identity := o.roots, c.ServerName, o.identity
	if roots == nil {
		roots = func() *x509.CertPool { return o.TLS.RootCAs }
	}
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(s tls.ConnectionState) error { return verified(s.PeerCertificates, roots(), name, identity) }
	return c
}

// verified checks chain, time, use and name of what a worker presented.
func verified(presented []*x509.Certificate, roots *x509.CertPool, name, identity string) error {
	if len(presented) == 0 {
		return errors.New("it presented no certificate")
	}
	leaf, between := presented[0], x509.NewCertPool()
	for _, c := range presented[1:] {
		between.AddCert(c)
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: between} // for servers, where nothing else is said
	if identity == "" {
		options.DNSName = name
	}
	if _, err := leaf.Verify(options); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: presented, Err: err}
	}
	switch {
	case identity == "" && name == "":
		return errors.New("there is no name to hold its certificate against")
	case identity != "" && !presents(leaf, identity):
		return fmt.Errorf("its certificate does not name %s", identity)
	}
	return nil
}

// presents says whether identity is one of the SANs.
func presents(leaf *x509.Certificate, identity string) bool {
	for _, uri := range leaf.URIs {
		if uri.String() == identity {
			return true
		}
	}
	for _, ip := range leaf.IPAddresses {
		if ip.String() == identity {
			return true
		}
	}
	return slices.Contains(leaf.EmailAddresses, identity) ||
		slices.ContainsFunc(leaf.DNSNames, func(name string) bool { return strings.EqualFold(name, identity) })
}

func pool(pem []byte) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, errors.New("there is no certificate in PEM in it")
	}
	return p, nil
}

// parseToken reads a token that stands alone in a file.
func parseToken(content []byte) (string, error) {
	token := strings.TrimSpace(string(content))
	outside := func(r rune) bool { return r <= ' ' || r > '~' }
	if token == "" || len(token) > 4096 || strings.ContainsFunc(token, outside) {
		return "", errors.New("there must be one token of at most 4096 visible ASCII characters in it, and nothing else")
	}
	return token, nil
}

// bearer sends the token with every call, over TLS alone.
type bearer struct{ token *reload.Value[string] }

// GetRequestMetadata is as gRPC asks for it.
func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	info, _ := credentials.RequestInfoFromContext(ctx)
	if err := credentials.CheckSecurityLevel(info.AuthInfo, credentials.PrivacyAndIntegrity); err != nil {
		return nil, fmt.Errorf("a token is not sent without TLS: %w", err)
	}
	return map[string]string{"authorization": "Bearer " + b.token.Get()}, nil
}

// RequireTransportSecurity is as gRPC asks for it.
func (bearer) RequireTransportSecurity() bool { return true }
