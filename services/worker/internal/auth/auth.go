// Package auth is who may do what on a worker: what a peer shows, who that proves it to be, and what that one may do.
//
// Everything here fails closed: whoever is not known is refused, and so is everybody while the authority does not answer. No
// token, key or certificate is ever logged or put into an error. Billing, quotas and how principals come to be stay out: they
// belong to the authority that an Envoy ext_authz address names.
package auth

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Principal is who a peer was found to be: tls:NAME or token:NAME by how it was proved; empty is nobody in particular.
type Principal string

// Operation is what is asked for.
type Operation string

// The operations.
const (
	Infer    Operation = "infer"    // Session as a driver, CancelSession, ReleaseSession
	Chain    Operation = "chain"    // Session as a hop before this one
	Delegate Operation = "delegate" // name another in Open.on_behalf_of; asked for beside infer or chain
	Text     Operation = "text"     // TextService
	Observe  Operation = "observe"  // GetCapability, GetHealth, WatchHealth, GetMetrics; the admin port's GETs
	Admin    Operation = "admin"    // LoadShard, UnloadShard, Drain; the admin port's POSTs
)

// operations in the order in which they are shown.
func operations() []Operation { return []Operation{Infer, Chain, Delegate, Text, Observe, Admin} }

// Peer is what a caller shows of itself. Nothing in it is believed yet.
type Peer struct {
	Address       string              // HOST:PORT that it calls from
	Certificates  []*x509.Certificate // its own first
	Authorization string              // the header; holds a secret
	Path          string              // of the method or resource
	OnBehalfOf    string              // of Open
}

// PeerOf is the peer of a gRPC call to method.
func PeerOf(ctx context.Context, method string) Peer {
	p := Peer{Path: method}
	if from, ok := peer.FromContext(ctx); ok {
		p.Address = from.Addr.String()
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			p.Certificates = info.State.PeerCertificates
		}
	}
	if header := metadata.ValueFromIncomingContext(ctx, "authorization"); len(header) > 0 {
		p.Authorization = strings.Join(header, ", ") // more than one is no bearer token
	}
	return p
}

// PeerOfRequest is the peer of an HTTP request.
func PeerOfRequest(r *http.Request) Peer {
	p := Peer{Address: r.RemoteAddr, Path: r.URL.Path, Authorization: strings.Join(r.Header.Values("Authorization"), ", ")}
	if r.TLS != nil {
		p.Certificates = r.TLS.PeerCertificates
	}
	return p
}

// Authenticator finds out who calls. An error is UNAUTHENTICATED unless it has a code of its own. Calls may come from any
// goroutine.
type Authenticator interface {
	Authenticate(ctx context.Context, p Peer) (Principal, error)
}

// Authorizer says who may do what; p is the peer that who was found to be. An error is PERMISSION_DENIED unless it has a code
// of its own. Calls may come from any goroutine.
type Authorizer interface {
	Authorize(ctx context.Context, who Principal, p Peer, what Operation) error
}

// Guard is both, at a door.
type Guard struct {
	Authenticator Authenticator
	Authorizer    Authorizer
	Log           *slog.Logger
}

// Who is who the peer is; what it may do is not asked.
//
// Errors: UNAUTHENTICATED.
func (g *Guard) Who(ctx context.Context, p Peer) (Principal, error) {
	who, err := g.Authenticator.Authenticate(ctx, p)
	if err != nil {
		err = orCode(err, workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED)
		g.refused(p, who, "", err)
		return "", err
	}
	return who, nil
}

func (g *Guard) refused(p Peer, who Principal, what Operation, err error) {
	g.Log.Info("refused", "peer", p.Address, "principal", string(who), "operation", string(what), "path", p.Path, "code", fault.Name(fault.Of(err).Code))
}

// Allow lets the peer pass, as who it is, or says why not.
//
// Errors: UNAUTHENTICATED, PERMISSION_DENIED, AUTHORITY_DOWN.
func (g *Guard) Allow(ctx context.Context, p Peer, what Operation) (Principal, error) {
	who, err := g.Authenticator.Authenticate(ctx, p)
	if err != nil {
		err = orCode(err, workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED)
	} else if err = g.Authorizer.Authorize(ctx, who, p, what); err != nil {
		err = orCode(err, workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED)
	}
	if err != nil {
		g.refused(p, who, what, err)
		return "", err
	}
	return who, nil
}

// orCode keeps a typed error and gives any other the code.
func orCode(err error, code workerpb.ErrorCode) error {
	if f := fault.Of(err); !f.Inferred && f.Code != workerpb.ErrorCode_ERROR_CODE_INTERNAL {
		return f
	}
	return fault.New(code, "%w", err)
}

// Operations is a set.
type Operations []Operation

// parseOperations reads names with +, commas or blanks between; all is every one.
func parseOperations(s string) (Operations, error) {
	var set Operations
	names := strings.FieldsFunc(s, func(r rune) bool { return r == '+' || r == ',' || r == ' ' || r == '\t' })
	for _, name := range names {
		switch {
		case name == "all":
			set = append(set, operations()...)
		case slices.Contains(operations(), Operation(name)):
			set = append(set, Operation(name))
		default:
			return nil, fmt.Errorf("%q is no operation; there are %s and all", name, joined(operations()))
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("no operation is named; there are %s and all", joined(operations()))
	}
	return set, nil
}

func joined(all []Operation) string {
	names := make([]string, len(all))
	for i, o := range all {
		names[i] = string(o)
	}
	return strings.Join(names, ", ")
}

// grants is what each name may do; * is who has no entry.
type grants map[string]Operations

func (g grants) allow(name string, what Operation) error {
	set, ok := g[name]
	if !ok {
		set, ok = g["*"]
	}
	switch {
	case !ok:
		return fmt.Errorf("%s is not listed", name)
	case !slices.Contains(set, what):
		return fmt.Errorf("%s may not %s", name, what)
	}
	return nil
}
