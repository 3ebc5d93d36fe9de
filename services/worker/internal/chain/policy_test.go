package chain

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names is a resolver that knows what it is told.
type names map[string]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	var ips []netip.Addr
	for _, ip := range strings.Fields(n[host]) {
		ips = append(ips, netip.MustParseAddr(ip))
	}
	if len(ips) == 0 {
		return nil, errors.New("no such host")
	}
	return ips, nil
}

func TestWhatMayBeDialled(t *testing.T) {
	p, err := ParsePolicy([]string{
		"10.1.0.0/16:7711", "worker-2:7000-7010", "192.168.0.7:*", "[fd00::/8]:7711", "localhost:9000", "0.0.0.0/0:6000", "169.254.0.0/16:*",
	})
	if err != nil {
		t.Fatal(err)
	}
	resolver := names{
		"worker-2": "172.16.0.2", "WORKER-2": "172.16.0.2", "mixed": "127.0.0.1 10.1.2.3", "evil": "127.0.0.1", "localhost": "127.0.0.1",
		"meta": "169.254.169.254",
	}
	for address, want := range map[string]string{
		"10.1.2.3:7711": "10.1.2.3:7711", "10.1.2.3:7712": "", "10.2.2.3:7711": "",
		"worker-2:7005": "172.16.0.2:7005", "WORKER-2:7005": "172.16.0.2:7005", "worker-2:7011": "", "172.16.0.2:7005": "",
		"192.168.0.7:1": "192.168.0.7:1", "[fd00::1]:7711": "[fd00::1]:7711", "[::1]:7711": "", "[::ffff:10.1.2.3]:7711": "10.1.2.3:7711",
		"localhost:9000": "127.0.0.1:9000", "127.0.0.1:9000": "", "127.0.0.1:6000": "", "evil:6000": "", "mixed:7711": "10.1.2.3:7711",
		"8.8.8.8:6000": "8.8.8.8:6000", "224.0.0.1:6000": "", "meta:80": "", "0.0.0.0:6000": "",
	} {
		got, err := p.Check(t.Context(), resolver, address)
		if want == "" {
			if !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED)) {
				t.Errorf("%s: %v, %v", address, got, err)
			}
		} else if err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", address, got, err, want)
		}
	}
	for address, want := range map[string]workerpb.ErrorCode{
		"nobody:7711": workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE, "10.1.2.3": workerpb.ErrorCode_ERROR_CODE_MALFORMED,
		"10.1.2.3:0": workerpb.ErrorCode_ERROR_CODE_MALFORMED, ":7711": workerpb.ErrorCode_ERROR_CODE_MALFORMED,
	} {
		if _, err := p.Check(t.Context(), resolver, address); !errors.Is(err, fault.Code(want)) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := (Policy{}).Check(t.Context(), resolver, "10.1.2.3:7711"); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED)) {
		t.Errorf("without a policy: %v", err)
	}
}

func TestWhoMustAnswer(t *testing.T) {
	p, err := ParsePolicy([]string{"10.1.0.1:7711=spiffe://fleet/w=1", "10.1.0.0/16:*=worker.example", "worker-2:7711", "[fd00::/8]:1=v6"})
	if err != nil || !p.Identities() {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"10.1.0.1:7711": "spiffe://fleet/w=1", "10.1.0.1:1": "worker.example", "worker-2:7711": "", "[fd00::1]:1": "v6",
	} {
		at, err := p.Check(t.Context(), names{"worker-2": "172.16.0.2"}, address)
		if err != nil {
			t.Fatal(err)
		}
		host, _, _ := net.SplitHostPort(address)
		if got := p.Identity(host, at); got != want {
			t.Errorf("at %s must be %q, want %q", address, got, want)
		}
	}
	if p, _ := ParsePolicy([]string{"worker-2:7711"}); p.Identities() {
		t.Error("an identity is demanded where none is written")
	}
}

// An identity that cannot be checked is not dialled.
func TestAnIdentityNeedsTLS(t *testing.T) {
	p, err := ParsePolicy([]string{"127.0.0.1:*=worker.example"})
	if err != nil {
		t.Fatal(err)
	}
	d := New(Options{Policy: p, Dial: dial.Default()})
	defer d.Close()
	at := netip.MustParseAddrPort("127.0.0.1:1")
	if _, err := d.take(d.door("127.0.0.1:1", at)); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED)) {
		t.Errorf("taken with %v", err)
	}
}

func TestEveryBadEntryIsNamed(t *testing.T) {
	bad := []string{"10.0.0.0/40:*", "host", "host:0", "host:9-8", "a b:1", "*.example:1", ":7", "host:1="}
	_, err := ParsePolicy(append([]string{"ok:1"}, bad...))
	for _, entry := range bad {
		if err == nil || !strings.Contains(err.Error(), "\""+entry+"\"") {
			t.Errorf("%q is not named in %v", entry, err)
		}
	}
}
