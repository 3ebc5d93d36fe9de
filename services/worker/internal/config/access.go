package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/auth"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain"
)

// Access is who may do what on the worker, and how the worker proves itself to next hops. Files are paths; empty is none.
type Access struct {
	Cert, Key  string        // PEM, of both ports
	ClientCA   string        // PEM; who has a certificate of it can be known by its names
	Allow      []string      // NAME=OPERATIONS
	AllowFile  string        // lines NAME: OPERATIONS
	TokenFile  string        // lines NAME: SHA-256: OPERATIONS
	Checked    time.Duration // rights of streams that run are looked at so often
	Reflection bool          // served although peers must prove who they are

	Authority        string // HOST:PORT or unix:PATH of an ext_authz server
	AuthorityCA      string
	AuthorityTimeout time.Duration
	AuthorityKeep    time.Duration

	ChainCA        string // whose next hops are believed; empty: they are dialled without TLS
	ChainCert      string // empty: Cert and Key
	ChainKey       string
	ChainTokenFile string
}

// Authenticated says whether peers must prove who they are.
func (a Access) Authenticated() bool {
	return a.TokenFile != "" || a.Authority != "" || a.ClientCA != "" && (len(a.Allow) > 0 || a.AllowFile != "")
}

// Secured says whether a port that others can reach is safe: they prove who they are, and nobody listens in.
func (a Access) Secured() bool { return a.Cert != "" && a.Key != "" && a.Authenticated() }

// ByCertificateOnly says whether a peer without a certificate can have no business here.
func (a Access) ByCertificateOnly() bool {
	return a.ClientCA != "" && a.Authenticated() && a.TokenFile == "" && a.Authority == ""
}

func accessOptions() []option {
	path := func(key, usage string, field func(*Config) *string) option {
		return option{key: key, group: groupAccess, kind: "PATH", usage: usage, value: func(c *Config) value { return (*text)(field(c)) }}
	}
	span := func(key, usage string, field func(*Config) *time.Duration, least, most time.Duration) option {
		return option{key: key, group: groupAccess, kind: "TIME", usage: usage,
			value: func(c *Config) value { return (*duration)(field(c)) },
			legal: func(c Config) string { return within(*field(&c), least, most) }}
	}
	return []option{
		path("tls.cert", "certificate of both ports, PEM; all files here are read again when they change", func(c *Config) *string { return &c.Access.Cert }),
		path("tls.key", "its key, PEM", func(c *Config) *string { return &c.Access.Key }),
		path("tls.client_ca", "CA of client certificates, PEM", func(c *Config) *string { return &c.Access.ClientCA }),
		{key: "tls.allow", group: groupAccess, kind: "LIST", usage: "what names in client certificates may do, as gateway.example=infer+text+observe,spiffe://fleet/w1=chain; operations are infer, chain, delegate, text, observe, admin and all",
			value: func(c *Config) value { return (*list)(&c.Access.Allow) }, legal: func(c Config) string { return namesFault(c.Access.Allow) }},
		path("tls.allow_file", "the same as lines NAME: OPERATIONS", func(c *Config) *string { return &c.Access.AllowFile }),
		path("token_file", "bearer tokens, as lines NAME: SHA-256 in hex: OPERATIONS", func(c *Config) *string { return &c.Access.TokenFile }),
		{key: "authz.address", group: groupAccess, kind: "HOST:PORT", usage: "server of Envoy's ext_authz API that is asked for every operation, or unix:PATH; nobody passes while it is down",
			value: func(c *Config) value { return (*text)(&c.Access.Authority) }, legal: func(c Config) string { return authorityFault(c.Access.Authority) }},
		path("authz.ca", "CA of that server, PEM; it is asked over TLS then, with the certificate of tls.cert", func(c *Config) *string { return &c.Access.AuthorityCA }),
		span("authz.timeout", "an answer that takes longer is none", func(c *Config) *time.Duration { return &c.Access.AuthorityTimeout }, 10*time.Millisecond, time.Minute),
		span("authz.keep", "a yes counts for so long without asking again", func(c *Config) *time.Duration { return &c.Access.AuthorityKeep }, 0, 10*time.Minute),
		span("rights_checked", "rights of calls and sessions that run are looked at this often; who has lost them is cut off", func(c *Config) *time.Duration { return &c.Access.Checked }, 100*time.Millisecond, time.Hour),
		{key: "reflection", group: groupAccess, usage: "serve gRPC reflection also where peers must prove who they are, to those who may observe",
			value: func(c *Config) value { return (*toggle)(&c.Access.Reflection) }},
		path("chain.ca", "CA of next hops, PEM; they are dialled over TLS then", func(c *Config) *string { return &c.Access.ChainCA }),
		path("chain.cert", "certificate that the worker shows to next hops, PEM; that of tls.cert if empty", func(c *Config) *string { return &c.Access.ChainCert }),
		path("chain.key", "its key, PEM", func(c *Config) *string { return &c.Access.ChainKey }),
		path("chain.token_file", "bearer token that the worker shows to next hops, alone in its file", func(c *Config) *string { return &c.Access.ChainTokenFile }),
	}
}

// namesFault returns "" or what would be legal in tls.allow.
func namesFault(entries []string) string {
	if _, err := auth.ParseAllow(entries); err != nil {
		return "NAME=OPERATIONS with commas between (" + strings.ReplaceAll(err.Error(), "\n", "; ") + ")"
	}
	return ""
}

// authorityFault returns "" or what would be legal in authz.address.
func authorityFault(address string) string {
	if address == "" || strings.HasPrefix(address, "unix:") && address != "unix:" {
		return ""
	}
	return unless(addressFault(address) == "", "HOST:PORT or unix:PATH, as 127.0.0.1:9191")
}

// conflictsOfAccess are the violations that options of access commit together.
func (c Config) conflictsOfAccess() Faults {
	a := c.Access
	policy, _ := chain.ParsePolicy(c.ChainAllow) // its faults are told elsewhere
	var faults Faults
	needs := func(given bool, key string, there bool, other, why string) {
		if given && !there {
			faults = append(faults, fmt.Sprintf("%s needs %s (%s): %s", c.name(key), "--"+flagName(other), envName(other), why))
		}
	}
	const pair = "a certificate and its key go together"
	needs(a.Cert != "", "tls.cert", a.Key != "", "tls.key", pair)
	needs(a.Key != "", "tls.key", a.Cert != "", "tls.cert", pair)
	needs(a.ClientCA != "", "tls.client_ca", a.Cert != "", "tls.cert", "clients show certificates over TLS only")
	needs(a.ClientCA != "", "tls.client_ca", len(a.Allow) > 0 || a.AllowFile != "" || a.Authority != "", "tls.allow", "without a list or an authority no certificate is good for anything")
	needs(len(a.Allow) > 0, "tls.allow", a.ClientCA != "", "tls.client_ca", "names are believed in certificates of that CA only")
	needs(a.AllowFile != "", "tls.allow_file", a.ClientCA != "", "tls.client_ca", "names are believed in certificates of that CA only")
	needs(a.TokenFile != "", "token_file", a.Cert != "", "tls.cert", "whoever listens in could use a token again")
	needs(a.AuthorityCA != "", "authz.ca", a.Authority != "", "authz.address", "nobody is asked")
	needs(a.ChainCert != "", "chain.cert", a.ChainKey != "", "chain.key", pair)
	needs(a.ChainKey != "", "chain.key", a.ChainCert != "", "chain.cert", pair)
	needs(a.ChainCert != "", "chain.cert", a.ChainCA != "", "chain.ca", "without it next hops are dialled without TLS")
	needs(a.ChainTokenFile != "", "chain.token_file", a.ChainCA != "", "chain.ca", "a token is shown over TLS only")
	needs(policy.Identities(), "chain.allow", a.ChainCA != "", "chain.ca", "an identity can be checked over TLS only")
	if unsafe := a.Authority != "" && !strings.HasPrefix(a.Authority, "unix:") && authorityFault(a.Authority) == "" && !loopback(a.Authority); unsafe {
		needs(!c.Insecure, "authz.address", a.AuthorityCA != "", "authz.ca", "what it is told could be used again by whoever listens in")
	}
	return faults
}
