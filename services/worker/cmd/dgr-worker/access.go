package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/config"
)

// access is what stands at the two ports.
type access struct {
	guard     *auth.Guard     // nil: everybody may do everything
	authority *auth.Authority // nil: none
	grpc      *tls.Config     // nil: none
	http      *tls.Config
}

// newAccess reads the files that the configuration names.
func newAccess(cfg config.Access, log *slog.Logger) (a access, err error) {
	if cfg.Cert != "" {
		if a.grpc, err = auth.ServerTLS(log, cfg.Cert, cfg.Key, cfg.ClientCA, cfg.ByCertificateOnly(), "h2"); err != nil {
			return access{}, err
		}
		// An orchestrator that asks livez has no certificate.
		if a.http, err = auth.ServerTLS(log, cfg.Cert, cfg.Key, cfg.ClientCA, false, "h2", "http/1.1"); err != nil {
			return access{}, err
		}
	}
	if cfg.Authority != "" {
		if a.authority, err = newAuthority(cfg, log); err != nil {
			return access{}, err
		}
	}
	a.guard, err = auth.New(auth.Options{
		ClientCA: cfg.ClientCA, Allow: cfg.Allow, AllowFile: cfg.AllowFile, TokenFile: cfg.TokenFile, Authority: a.authority, Log: log,
	})
	if err != nil {
		a.close()
		return access{}, err
	}
	return a, nil
}

func newAuthority(cfg config.Access, log *slog.Logger) (*auth.Authority, error) {
	o := auth.AuthorityOptions{Address: cfg.Authority, Timeout: cfg.AuthorityTimeout, Keep: cfg.AuthorityKeep}
	if cfg.AuthorityCA != "" {
		var d dial.Options
		if err := (dial.Files{CA: cfg.AuthorityCA, Cert: cfg.Cert, Key: cfg.Key}).Secure(&d, log); err != nil {
			return nil, fmt.Errorf("the authority %s cannot be asked over TLS: %w", cfg.Authority, err)
		}
		o.TLS = d.TLSFor(cfg.Authority)
	}
	return auth.NewAuthority(o)
}

// close hangs up at the authority.
func (a access) close() {
	if a.authority != nil {
		_ = a.authority.Close() // nobody asks any more
	}
}

// chainFiles are how the worker proves itself to next hops, and believes them.
func chainFiles(cfg config.Access) dial.Files {
	f := dial.Files{CA: cfg.ChainCA, Cert: cfg.ChainCert, Key: cfg.ChainKey, Token: cfg.ChainTokenFile}
	if f.CA != "" && f.Cert == "" {
		f.Cert, f.Key = cfg.Cert, cfg.Key
	}
	return f
}
