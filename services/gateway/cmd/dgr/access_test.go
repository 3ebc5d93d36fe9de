//go:build unix

package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
)

// What is said over workers that ask who comes is what is said over open ones; those who cannot say are told what is amiss.
func TestRunOverTLS(t *testing.T) {
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "fleet")
	w, me := ca.Issue(t, folder, "worker", "worker.example", "127.0.0.1"), ca.Issue(t, folder, "me", "me.example")
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hash := sha256.Sum256([]byte("one-token"))
	tokens := file("tokens", "me: "+hex.EncodeToString(hash[:])+": infer observe text\n")
	token, wrong := file("token", "one-token\n"), file("wrong", "another-token\n")
	secure := []string{"--tls-cert", w.Cert, "--tls-key", w.Key, "--tls-client-ca", ca.File, "--tls-allow", "me.example=infer+observe+text,worker.example=chain",
		"--token-file", tokens, "--chain-ca", ca.File}
	_, open := startRoute(t, "fake:layers=4", "0:2", "2:")
	route := startWorker(t, "fake:layers=4", "0:2", secure...).Address + "," + startWorker(t, "fake:layers=4", "2:", secure...).Address
	want := run(t, "", "run", "--route", open, "-p", "Once", "-n", "9").good(t).stdout
	for name, proof := range map[string][]string{
		"a certificate": {"--tls-ca", ca.File, "--tls-cert", me.Cert, "--tls-key", me.Key},
		"a token":       {"--tls-ca", ca.File, "--token-file", token},
	} {
		if got := run(t, "", append([]string{"run", "--route", route, "-p", "Once", "-n", "9"}, proof...)...).good(t).stdout; got != want {
			t.Errorf("with %s it says %q, want %q", name, got, want)
		}
	}
	for _, tt := range []struct {
		proof []string
		code  int
		says  []string
	}{
		{nil, 1, []string{"DOWNSTREAM_UNREACHABLE", "TLS"}},
		{[]string{"--tls-ca", ca.File}, 1, []string{"UNAUTHENTICATED", "client certificate"}},
		{[]string{"--tls-ca", ca.File, "--token-file", wrong}, 1, []string{"UNAUTHENTICATED", "token is not known"}},
		{[]string{"--tls-ca", ca.File, "--tls-cert", me.Cert}, 2, []string{"key"}},
		{[]string{"--tls-ca", ca.File, "--tls-cert", w.Cert, "--tls-key", w.Key}, 1, []string{"PERMISSION_DENIED", "worker.example may not observe"}},
		{[]string{"--tls-ca", filepath.Join(folder, "none")}, 2, []string{"none"}},
		{[]string{"--token-file", token}, 1, []string{"unknown authority"}},
	} {
		text := run(t, "", append([]string{"run", "--route", route, "-p", "Once", "-n", "9"}, tt.proof...)...).sentence(t, tt.code)
		says(t, text, tt.says...)
	}
}
