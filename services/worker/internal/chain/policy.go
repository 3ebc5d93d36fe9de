package chain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// Resolver turns a host name into addresses; net.DefaultResolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Policy says which next hops a worker may dial. The zero value allows none.
type Policy struct{ rules []rule }

// rule allows a host or a network, on some ports.
type rule struct {
	identity  string // that the hop must present; "": the name or address that it is dialled by
	host      string // a name, lower case; or
	network   netip.Prefix
	low, high uint16
}

// ParsePolicy reads entries HOST:PORT, ADDRESS:PORT or NETWORK:PORT, where PORT is a number, a range as 7000-7010, or *.
// IPv6 is in brackets, as [fd00::/8]:7711. Behind =, an entry may have the SAN that the hop's certificate must name. The
// error names every entry that cannot be read.
func ParsePolicy(entries []string) (Policy, error) {
	var p Policy
	var faults []error
	for _, entry := range entries {
		r, err := parseRule(strings.TrimSpace(entry))
		if err != nil {
			faults = append(faults, fmt.Errorf("chain.allow entry %q: %w", entry, err))
			continue
		}
		p.rules = append(p.rules, r)
	}
	return p, errors.Join(faults...)
}

func parseRule(entry string) (rule, error) {
	entry, identity, named := strings.Cut(entry, "=")
	at := strings.LastIndexByte(entry, ':')
	if at <= 0 || named && identity == "" {
		return rule{}, errors.New("write HOST:PORT or NETWORK:PORT; PORT may be *, and =SAN may follow")
	}
	r := rule{identity: identity, low: 1, high: 65535}
	host, ports := strings.Trim(entry[:at], "[]"), entry[at+1:]
	if ports != "*" {
		low, high, ranged := strings.Cut(ports, "-")
		if !ranged {
			high = low
		}
		a, errA := strconv.ParseUint(low, 10, 16)
		b, errB := strconv.ParseUint(high, 10, 16)
		if errA != nil || errB != nil || a == 0 || b < a {
			return rule{}, fmt.Errorf("%q is no port; write a number, a range or *", ports)
		}
		r.low, r.high = uint16(a), uint16(b)
	}
	if strings.Contains(host, "/") {
		network, err := netip.ParsePrefix(host)
		if err != nil {
			return rule{}, fmt.Errorf("%q is no network", host)
		}
		r.network = network.Masked()
		return r, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		r.network = netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen())
		return r, nil
	}
	if strings.ContainsAny(host, "*: ") {
		return rule{}, fmt.Errorf("%q is no host name", host)
	}
	r.host = strings.ToLower(host)
	return r, nil
}

// allows says whether the rule lets host, which has the address ip, be dialled. Loopback must be named as such.
func (r rule) allows(host string, ip netip.Addr, port uint16) bool {
	if port < r.low || port > r.high {
		return false
	}
	if r.host != "" {
		return r.host == strings.ToLower(host) && (!ip.IsLoopback() || r.host == "localhost")
	}
	return r.network.Contains(ip) && (!ip.IsLoopback() || r.network.Addr().IsLoopback())
}

// Check resolves HOST:PORT once and returns an address of it that may be dialled; nothing else may be dialled instead.
//
// Errors: ROUTE_REFUSED; DOWNSTREAM_UNREACHABLE when the name is unknown; MALFORMED.
func (p Policy) Check(ctx context.Context, resolver Resolver, address string) (netip.AddrPort, error) {
	host, text, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || portErr != nil || port == 0 || host == "" {
		return netip.AddrPort{}, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "%q in the route is not HOST:PORT", address)
	}
	if len(p.rules) == 0 {
		return netip.AddrPort{}, refused("%s; chain.allow of this worker is empty", address)
	}
	ips, err := lookup(ctx, resolver, host)
	if err != nil {
		return netip.AddrPort{}, fault.New(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE, "the host of %s cannot be found (%w)", address, err).
			With(func(e *fault.Error) { e.Inferred = true })
	}
	for _, ip := range ips {
		ip = ip.Unmap()
		if ip.IsMulticast() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() {
			continue
		}
		for _, r := range p.rules {
			if r.allows(host, ip, uint16(port)) {
				return netip.AddrPortFrom(ip, uint16(port)), nil
			}
		}
	}
	return netip.AddrPort{}, refused("%s; chain.allow of this worker does not list it", address)
}

// Identity is the SAN that the worker at an address which Check gave for host must present; "" is host itself.
func (p Policy) Identity(host string, at netip.AddrPort) string {
	for _, r := range p.rules {
		if r.allows(host, at.Addr(), at.Port()) {
			return r.identity
		}
	}
	return ""
}

// Identities says whether any entry demands one.
func (p Policy) Identities() bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return r.identity != "" })
}

func refused(format string, args ...any) error {
	return fault.New(workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED, format, args...)
}

func lookup(ctx context.Context, resolver Resolver, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	return resolver.LookupNetIP(ctx, "ip", host)
}
