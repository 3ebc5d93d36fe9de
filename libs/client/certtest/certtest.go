// Package certtest makes certificates for tests: a CA and what it signs, as PEM files.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// CA signs certificates. File holds its own.
type CA struct {
	File string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, as paths of PEM files.
type Pair struct{ Cert, Key string }

// NewCA makes a CA and writes its certificate to a file in folder.
func NewCA(t testing.TB, folder, name string) *CA {
	t.Helper()
	c := &CA{File: filepath.Join(folder, name+".pem"), key: newKey(t)}
	template := template(t, name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &c.key.PublicKey, c.key)
	if err != nil {
		t.Fatal(err)
	}
	if c.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	write(t, c.File, "CERTIFICATE", der)
	return c
}

// Issue writes a certificate for client and server with the SANs (IP addresses, URIs and DNS names) to NAME.pem, and its key
// to NAME.key. Files of that name are replaced.
func (c *CA) Issue(t testing.TB, folder, name string, sans ...string) Pair {
	t.Helper()
	return c.IssueUntil(t, folder, name, time.Now().Add(time.Hour), sans...)
}

// IssueUntil is Issue with an end.
func (c *CA) IssueUntil(t testing.TB, folder, name string, end time.Time, sans ...string) Pair {
	t.Helper()
	key, leaf := newKey(t), template(t, name)
	leaf.NotAfter = end
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	for _, san := range sans {
		if ip := net.ParseIP(san); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else if uri, err := url.Parse(san); err == nil && strings.Contains(san, "://") {
			leaf.URIs = append(leaf.URIs, uri)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, san)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, c.cert, &key.PublicKey, c.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p := Pair{filepath.Join(folder, name+".pem"), filepath.Join(folder, name+".key")}
	write(t, p.Key, "PRIVATE KEY", secret)
	write(t, p.Cert, "CERTIFICATE", der)
	return p
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func template(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

func write(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
