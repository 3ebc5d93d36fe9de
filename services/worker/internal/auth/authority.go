package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authz "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

const (
	room            = 4096        // for decisions that are kept
	authorityRetry  = time.Second // longest between attempts to connect
	authorityAnswer = 64 << 10    // greatest answer, bytes
)

// AuthorityOptions say where the authority is. Address and Timeout are required.
type AuthorityOptions struct {
	Address string        // HOST:PORT, or unix:PATH
	TLS     *tls.Config   // nil: plain, for loopback and unix sockets
	Timeout time.Duration // for one answer; later is AUTHORITY_DOWN
	Keep    time.Duration // a yes is not asked for again so soon; 0: every operation is asked for
	Room    int           // for so many at once; 0: 4096
}

// Authority is an Authorizer that asks a server of Envoy's ext_authz API (envoy.service.auth.v3.Authorization). It is sent
// what Envoy sends: the peer's address, certificate and principal, the method as path, the authorization header, and as
// context extensions operation, principal and on_behalf_of. Only an answer that says OK allows; no answer, one without a
// status or one that contradicts itself does not.
type Authority struct {
	options AuthorityOptions
	conn    *grpc.ClientConn
	client  authz.AuthorizationClient

	mu   sync.Mutex
	kept map[[sha256.Size]byte]time.Time // a yes → its end
}

// NewAuthority makes the client; it connects at its first use. Close ends it.
func NewAuthority(o AuthorityOptions) (*Authority, error) {
	o.Room = cmp.Or(o.Room, room)
	security := insecure.NewCredentials()
	if o.TLS != nil {
		security = credentials.NewTLS(o.TLS)
	}
	target := o.Address
	if !strings.HasPrefix(target, "unix:") {
		target = "dns:///" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(security), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(authorityAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: authorityRetry / 10, Multiplier: 1.6, Jitter: 0.2, MaxDelay: authorityRetry},
			MinConnectTimeout: o.Timeout,
		}))
	if err != nil {
		return nil, fmt.Errorf("the authority %s cannot be reached: %w", o.Address, err)
	}
	return &Authority{options: o, conn: conn, client: authz.NewAuthorizationClient(conn), kept: map[[sha256.Size]byte]time.Time{}}, nil
}

// Close hangs up.
func (a *Authority) Close() error { return a.conn.Close() }

// Authorize asks the authority, or remembers.
//
// Errors: PERMISSION_DENIED, UNAUTHENTICATED, AUTHORITY_DOWN.
func (a *Authority) Authorize(ctx context.Context, who Principal, p Peer, what Operation) error {
	question := digest(who, p, what)
	if a.remembers(question) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	answer, err := a.client.Check(bounded, request(who, p, what), grpc.WaitForReady(true)) // one that is just starting anew is no refusal
	if err != nil {
		if ctx.Err() != nil {
			return fault.FromContext(ctx, "for the authority")
		}
		return a.down("it gave no answer")
	}
	if err := a.judge(answer); err != nil {
		return err
	}
	a.remember(question)
	return nil
}

// judge reads an answer.
func (a *Authority) judge(answer *authz.CheckResponse) error {
	switch {
	case answer.GetStatus() == nil:
		return a.down("its answer has no status")
	case answer.GetErrorResponse() != nil:
		return a.down("it met an error of its own")
	}
	denied := answer.GetDeniedResponse()
	code := codes.Code(answer.GetStatus().GetCode())
	switch {
	case code == codes.OK && denied == nil:
		return nil
	case code == codes.Unauthenticated, denied.GetStatus().GetCode() == envoytype.StatusCode_Unauthorized:
		return fault.New(workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED, "the authority does not know it")
	}
	return errors.New("the authority denies it")
}

func (a *Authority) down(why string) error {
	return fault.New(workerpb.ErrorCode_ERROR_CODE_AUTHORITY_DOWN, "%s: %s", a.options.Address, why)
}

// request is the question as Envoy would put it.
func request(who Principal, p Peer, what Operation) *authz.CheckRequest {
	headers := map[string]string{}
	if p.Authorization != "" {
		headers["authorization"] = p.Authorization
	}
	extensions := map[string]string{"operation": string(what), "principal": string(who)}
	if p.OnBehalfOf != "" {
		extensions["on_behalf_of"] = p.OnBehalfOf
	}
	source := &authz.AttributeContext_Peer{Address: socket(p.Address), Principal: strings.TrimPrefix(string(who), byTLS)}
	if len(p.Certificates) > 0 {
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificates[0].Raw})
		source.Certificate = strings.ReplaceAll(url.QueryEscape(string(block)), "+", "%20") // what was + is %2B by then
	}
	return &authz.CheckRequest{Attributes: &authz.AttributeContext{
		Source: source,
		Request: &authz.AttributeContext_Request{Http: &authz.AttributeContext_HttpRequest{
			Method: "POST", Path: p.Path, Protocol: "HTTP/2", Headers: headers,
		}},
		ContextExtensions: extensions,
	}}
}

// socket is HOST:PORT as Envoy writes it; nil where it is none.
func socket(address string) *core.Address {
	host, text, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || portErr != nil {
		return nil
	}
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: host, PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

// digest is what a decision is kept under: everything of the question but the port.
func digest(who Principal, p Peer, what Operation) [sha256.Size]byte {
	host, _, _ := net.SplitHostPort(p.Address)
	h := sha256.New()
	for _, part := range []string{string(who), host, p.Authorization, p.Path, p.OnBehalfOf, string(what)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	if len(p.Certificates) > 0 {
		h.Write(p.Certificates[0].Raw)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (a *Authority) remembers(question [sha256.Size]byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	end, ok := a.kept[question]
	return ok && time.Now().Before(end)
}

// remember keeps a yes. What is over goes first when there is no room, then anything.
func (a *Authority) remember(question [sha256.Size]byte) {
	if a.options.Keep <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if len(a.kept) >= a.options.Room {
		for q, end := range a.kept {
			if now.After(end) {
				delete(a.kept, q)
			}
		}
	}
	for q := range a.kept {
		if len(a.kept) < a.options.Room {
			break
		}
		delete(a.kept, q)
	}
	a.kept[question] = now.Add(a.options.Keep)
}
