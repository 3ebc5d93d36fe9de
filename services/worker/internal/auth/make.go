package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/client/reload"
)

// Options say who is known, and by what. Paths are of files, "" is none; all files are read again when they change.
type Options struct {
	ClientCA  string   // PEM; certificates of peers are of this CA
	Allow     []string // as NewCertificates
	AllowFile string
	TokenFile string
	Authority *Authority // nil: none; asked for whatever the lists above allow, and for everything if there are none
	Log       *slog.Logger
}

// New makes the guard of the options; nil if they ask for none.
func New(o Options) (*Guard, error) {
	listed := len(o.Allow) > 0 || o.AllowFile != ""
	var known either
	if o.TokenFile != "" {
		tokens, err := NewTokens(o.Log, o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("the token file %s cannot be used: %w", o.TokenFile, err)
		}
		known.tokens = tokens
	}
	if o.ClientCA != "" && (listed || o.Authority != nil) {
		certificates, err := NewCertificates(o.Log, o.ClientCA, o.Allow, o.AllowFile)
		if err != nil {
			return nil, fmt.Errorf("the client CA %s and its list of names cannot be used: %w", o.ClientCA, err)
		}
		known.certificates = certificates
	}
	guard := &Guard{Authenticator: known, Authorizer: known, Log: o.Log}
	switch {
	case o.Authority == nil && known == either{}:
		return nil, nil
	case o.Authority == nil:
	case o.TokenFile == "" && !listed:
		guard.Authenticator, guard.Authorizer = introduced{known.certificates}, o.Authority
	default:
		guard.Authorizer = both{known, o.Authority}
	}
	return guard, nil
}

// either knows a peer by its token if it shows one, else by its certificate.
type either struct {
	tokens       *Tokens       // nil: tokens are not looked at
	certificates *Certificates // nil: nor certificates
}

func (e either) Authenticate(ctx context.Context, p Peer) (Principal, error) {
	switch {
	case e.tokens != nil && (p.Authorization != "" || e.certificates == nil):
		return e.tokens.Authenticate(ctx, p)
	case e.certificates != nil:
		return e.certificates.Authenticate(ctx, p)
	}
	return "", errors.New("nobody is known here")
}

func (e either) Authorize(ctx context.Context, who Principal, p Peer, what Operation) error {
	switch {
	case e.tokens != nil && strings.HasPrefix(string(who), byToken):
		return e.tokens.Authorize(ctx, who, p, what)
	case e.certificates != nil && strings.HasPrefix(string(who), byTLS):
		return e.certificates.Authorize(ctx, who, p, what)
	}
	return errors.New("nobody is listed here")
}

// introduced names who shows a certificate and leaves the rest to the authority.
type introduced struct{ certificates *Certificates }

func (i introduced) Authenticate(ctx context.Context, p Peer) (Principal, error) {
	if i.certificates == nil || len(p.Certificates) == 0 {
		return "", nil
	}
	return i.certificates.Authenticate(ctx, p)
}

// both allows what both do; the second is asked only then.
type both struct{ first, second Authorizer }

func (b both) Authorize(ctx context.Context, who Principal, p Peer, what Operation) error {
	if err := b.first.Authorize(ctx, who, p, what); err != nil {
		return err
	}
	return b.second.Authorize(ctx, who, p, what)
}

// openPool reads the certificates of a CA.
func openPool(log *slog.Logger, path string) (*reload.Value[*x509.CertPool], error) {
	return reload.Open(log, func(contents [][]byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(contents[0]) {
			return nil, errors.New("there is no certificate in PEM in it")
		}
		return pool, nil
	}, path)
}

// ServerTLS is the TLS of a door: certificate and key, and, unless "", the CA of client certificates, all from PEM files that
// are read again when they change. A client without a certificate gets no further than the handshake if required is set;
// else a Guard has to know it in another way. protocols are those of ALPN.
func ServerTLS(log *slog.Logger, certificate, key, clientCA string, required bool, protocols ...string) (*tls.Config, error) {
	own, err := reload.Open(log, func(contents [][]byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		return &pair, err
	}, certificate, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate %s with the key %s cannot be used: %w", certificate, key, err)
	}
	var roots *reload.Value[*x509.CertPool]
	if clientCA != "" {
		if roots, err = openPool(log, clientCA); err != nil {
			return nil, fmt.Errorf("the client CA %s cannot be used: %w", clientCA, err)
		}
	}
	now := func() *tls.Config {
		// No tickets: a resumed session would keep what the files no longer say.
		c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*own.Get()}, NextProtos: protocols, SessionTicketsDisabled: true}
		if roots != nil {
			c.ClientCAs, c.ClientAuth = roots.Get(), tls.VerifyClientCertIfGiven
			if required {
				c.ClientAuth = tls.RequireAndVerifyClientCert
			}
		}
		return c
	}
	c := now()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return now(), nil }
	return c, nil
}
