package conformance

import (
	"context"
	"encoding/hex"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// itself has the target dial the peer for a driver that shows secrets, and looks at what the peer is shown.
func itself(t *T) {
	secret := hex.EncodeToString(random(16))
	headers := []string{"cookie", secret, "proxy-authorization", "Basic " + secret, "x-conformance", secret}
	hidden := []string{secret}
	if len(t.Shown) == 0 { // two of them in one call are none
		headers = append(headers, "authorization", "Bearer "+secret)
	}
	for _, value := range t.Shown {
		hidden = append(hidden, value)
	}
	t.ctx = metadata.AppendToOutgoingContext(t.ctx, headers...)
	_, b, _ := t.dialled()
	shown, _ := metadata.FromIncomingContext(b.stream.Context())
	for header, values := range shown {
		for _, value := range values {
			for _, h := range hidden {
				if strings.Contains(value, h) {
					t.Errorf("the next hop is shown what the driver showed, as %s", header)
				}
			}
		}
	}
	if secured, proved := proofOf(b.stream.Context(), shown); secured && !proved {
		t.Errorf("over TLS the next hop is shown neither a certificate nor a token")
	}
}

// proofOf says whether a call came over TLS, and whether its caller showed anything by which it can be known.
func proofOf(ctx context.Context, headers metadata.MD) (secured, proved bool) {
	p, _ := peer.FromContext(ctx)
	info, secured := p.AuthInfo.(credentials.TLSInfo)
	return secured, len(headers.Get("authorization")) > 0 || secured && len(info.State.PeerCertificates) > 0
}
