package conformance_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/distributed-gguf-runtime/dgr/libs/client/certtest"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
)

// A route whose hops and callers know each other by certificates keeps every clause that an open one does.
func TestRouteOverMutualTLSConforms(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ca := certtest.NewCA(t, folder, "fleet")
	me := ca.Issue(t, folder, "me", "me.example", "127.0.0.1")
	o := dial.Default()
	o.MessageBytes = 64 << 20
	if err := (dial.Files{CA: ca.File, Cert: me.Cert, Key: me.Key}).Secure(&o, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	var addresses []string
	var conns []*grpc.ClientConn
	for i, layers := range []string{"0:2", "2:4", "4:"} {
		own := ca.Issue(t, folder, fmt.Sprintf("w%d", i), fmt.Sprintf("w%d.example", i), "127.0.0.1")
		address := start(t, "--model", "fake:layers=6", "--layers", layers, "--tls-cert", own.Cert, "--tls-key", own.Key, "--tls-client-ca", ca.File,
			"--tls-allow", fmt.Sprintf("me.example=all,w%d.example=chain", i-1), "--chain-ca", ca.File)
		conn, err := dial.Open(address, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		addresses, conns = append(addresses, address), append(conns, conn.ClientConn)
	}
	target, err := conformance.NewTarget(t.Context(), addresses, conns)
	if err != nil {
		t.Fatal(err)
	}
	security, err := conformance.Secured(me.Cert, me.Key)
	if err != nil {
		t.Fatal(err)
	}
	if target.Peer, err = conformance.Listen("127.0.0.1:0", security); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Peer.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	report := conformance.Run(ctx, target, conformance.Options{Limit: 30 * time.Second})
	for _, outcome := range report.Outcomes {
		if len(outcome.Faults) > 0 {
			t.Errorf("%s\n  - %s", outcome.Case.ID, strings.Join(outcome.Faults, "\n  - "))
		}
	}
	if n := report.Counts(); n[conformance.Passed] < 300 {
		t.Errorf("%v", n)
	}
}
