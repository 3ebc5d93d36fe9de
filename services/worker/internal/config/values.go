package config

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/chain"
)

const layersLegal = "FIRST:END with FIRST < END, as 0:3, or FIRST: as 3: for all the rest"

// fakeModel says whether only the fake engine knows the model.
func fakeModel(model string) bool { return model == "fake" || strings.HasPrefix(model, "fake:") }

// text is a string as it stands.
type text string

func (t *text) set(s string) error { *t = text(s); return nil }
func (t *text) String() string     { return string(*t) }

// toggle is true or false.
type toggle bool

func (t *toggle) set(s string) error {
	v, err := strconv.ParseBool(s)
	if err != nil {
		return errors.New("true or false")
	}
	*t = toggle(v)
	return nil
}

func (t *toggle) String() string { return strconv.FormatBool(bool(*t)) }

// list is texts with commas between them.
type list []string

func (l *list) set(s string) error {
	*l = nil
	for _, item := range strings.Split(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			*l = append(*l, item)
		}
	}
	return nil
}

func (l *list) String() string { return strings.Join(*l, ",") }

// duration is as Go writes it.
type duration time.Duration

func (d *duration) set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("a time with its unit, as 500ms, 30s or 5m")
	}
	*d = duration(v)
	return nil
}

func (d *duration) String() string { return showDuration(time.Duration(*d)) }

// showDuration drops the zero parts that Go writes: 1h0m0s is 1h.
func showDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// bytes64 is a size, with a unit or without.
type bytes64 uint64

func (b *bytes64) set(s string) error {
	v, err := humanize.ParseBytes(s)
	if err != nil {
		return errors.New("a size, as 16MiB or 1048576")
	}
	*b = bytes64(v)
	return nil
}

func (b *bytes64) String() string { return showBytes(uint64(*b)) }

// bytes32 is a size below 4 GiB.
type bytes32 uint32

func (b *bytes32) set(s string) error {
	var wide bytes64
	if err := wide.set(s); err != nil || uint64(wide) > 1<<32-1 {
		return errors.New("a size below 4GiB, as 1MiB or 1048576")
	}
	*b = bytes32(wide)
	return nil
}

func (b *bytes32) String() string { return showBytes(uint64(*b)) }

// showBytes writes a size with the greatest unit that leaves a whole number.
func showBytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for i < len(units)-1 && n != 0 && n%1024 == 0 {
		n /= 1024
		i++
	}
	return strconv.FormatUint(n, 10) + units[i]
}

// layers is FIRST:END.
type layers engine.LayerRange

func (l *layers) set(s string) error {
	first, end, ok := strings.Cut(s, ":")
	var r layers
	var err error
	if r.First, err = layer(first, 0); !ok || err != nil {
		return errors.New(layersLegal)
	}
	if r.End, err = layer(end, 0); err != nil || end != "" && r.First >= r.End {
		return errors.New(layersLegal)
	}
	*l = r
	return nil
}

func layer(s string, empty uint32) (uint32, error) {
	if s == "" {
		return empty, nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

func (l *layers) String() string {
	if l.End == 0 {
		return strconv.Itoa(int(l.First)) + ":"
	}
	return strconv.Itoa(int(l.First)) + ":" + strconv.Itoa(int(l.End))
}

// workerID says whether s may name a worker; empty may, for it is replaced.
func workerID(s string) bool {
	const others = "._:-"
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(others, r) {
			return false
		}
	}
	return len(s) <= 128
}

// addressFault returns "" or what would be legal.
func addressFault(address string) string {
	const legal = "HOST:PORT with a port from 0 to 65535, as 127.0.0.1:7711"
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return legal
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return unless(err == nil, legal)
}

// advertiseFault returns "" or what would be legal for an address that others are told; empty is none.
func advertiseFault(address string) string {
	const legal = "HOST:PORT as others reach it, as 10.0.0.7:7711; no wildcard address"
	if address == "" {
		return ""
	}
	host, _, err := net.SplitHostPort(address)
	ip, _ := netip.ParseAddr(host)
	return unless(err == nil && host != "" && !ip.IsUnspecified() && addressFault(address) == "" && len(address) <= 255, legal)
}

// loopback says whether only this machine reaches the address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// allowFault returns "" or what would be legal in chain.allow; the room that dials reads the language.
func allowFault(entries []string) string {
	if _, err := chain.ParsePolicy(entries); err != nil {
		reasons := strings.ReplaceAll(err.Error(), "\n", "; ")
		return "HOST:PORT or NETWORK:PORT with commas between, PORT from 1 or *, as 10.1.0.0/16:7711 (" + reasons + ")"
	}
	return ""
}
