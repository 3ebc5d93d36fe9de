package auth

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/client/reload"
)

// byTLS is how principals begin that a certificate proved.
const byTLS = "tls:"

// Certificates knows peers by client certificates of a CA, and what the names in them may do. Chain and time are checked at
// every call, so that a CA that was taken out of the file, or a certificate that ended, counts on connections too that stand.
type Certificates struct {
	roots *reload.Value[*x509.CertPool]
	fixed grants
	file  *reload.Value[grants] // nil: none
}

// NewCertificates reads the CA's file (PEM), entries NAME=OPERATIONS, and, if not "", a file of lines NAME: OPERATIONS; both
// files again when they change. A NAME is one of the certificate's SANs (URI, DNS name, e-mail or IP address), or subject:
// and its distinguished name as RFC 2253 writes it; * is any.
func NewCertificates(log *slog.Logger, ca string, allow []string, allowFile string) (*Certificates, error) {
	fixed, err := ParseAllow(allow)
	if err != nil {
		return nil, err
	}
	c := &Certificates{fixed: fixed}
	if c.roots, err = openPool(log, ca); err != nil {
		return nil, err
	}
	if allowFile != "" {
		c.file, err = reload.Open(log, func(contents [][]byte) (grants, error) { return parseAllowFile(contents[0]) }, allowFile)
	}
	return c, err
}

// ParseAllow reads entries NAME=OPERATIONS, operations with + between, as gateway.example=infer+text+observe. The error names
// every entry that cannot be read.
func ParseAllow(entries []string) (map[string]Operations, error) {
	all := grants{}
	var faults []error
	for _, entry := range entries {
		at := strings.LastIndexByte(entry, '=')
		if at <= 0 {
			faults = append(faults, fmt.Errorf("entry %q is not NAME=OPERATIONS", entry))
			continue
		}
		set, err := parseOperations(entry[at+1:])
		if err != nil {
			faults = append(faults, fmt.Errorf("entry %q: %w", entry, err))
			continue
		}
		all[strings.TrimSpace(entry[:at])] = set
	}
	return all, errors.Join(faults...)
}

// parseAllowFile reads lines NAME: OPERATIONS.
func parseAllowFile(content []byte) (grants, error) {
	all := grants{}
	err := lines(content, func(line string) error {
		at := strings.LastIndexByte(line, ':')
		if at <= 0 {
			return errors.New("write NAME: OPERATIONS")
		}
		set, err := parseOperations(line[at+1:])
		all[strings.TrimSpace(line[:at])] = set
		return err
	})
	return all, err
}

// lines hands every line to take that is not empty and no # comment. Errors name the line's number, never what it holds.
func lines(content []byte, take func(string) error) error {
	scanner := bufio.NewScanner(bytes.NewReader(content))
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := take(line); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return scanner.Err()
}

// grants are those of the entries and of the file; entries go before.
func (c *Certificates) grants() grants {
	if c.file == nil {
		return c.fixed
	}
	all := maps.Clone(c.file.Get())
	maps.Copy(all, c.fixed)
	return all
}

// Authenticate names the peer by the first name of its certificate that is listed, or the first of all.
func (c *Certificates) Authenticate(_ context.Context, p Peer) (Principal, error) {
	if len(p.Certificates) == 0 {
		return "", errors.New("it showed no client certificate")
	}
	leaf := p.Certificates[0]
	between := x509.NewCertPool()
	for _, certificate := range p.Certificates[1:] {
		between.AddCert(certificate)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: c.roots.Get(), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return "", fmt.Errorf("its client certificate does not prove it (%w)", err)
	}
	all, listed := names(leaf), c.grants()
	for _, name := range all {
		if _, ok := listed[name]; ok {
			return Principal(byTLS + name), nil
		}
	}
	return Principal(byTLS + all[0]), nil
}

// Authorize allows what the name of a certificate is listed for.
func (c *Certificates) Authorize(_ context.Context, who Principal, _ Peer, what Operation) error {
	name, ok := strings.CutPrefix(string(who), byTLS)
	if !ok {
		return errors.New("it was not known by a certificate")
	}
	return c.grants().allow(name, what)
}

// subject begins the name that is not a SAN.
const subject = "subject:"

// names are the SANs, then the subject. A SAN that is written as a name of another kind is none.
func names(leaf *x509.Certificate) []string {
	var all []string
	for _, uri := range leaf.URIs {
		all = append(all, uri.String())
	}
	all = append(all, leaf.DNSNames...)
	all = append(all, leaf.EmailAddresses...)
	for _, ip := range leaf.IPAddresses {
		all = append(all, ip.String())
	}
	all = slices.DeleteFunc(all, func(san string) bool { return san == "*" || strings.HasPrefix(san, subject) })
	return append(all, subject+leaf.Subject.String())
}
