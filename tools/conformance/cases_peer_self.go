package conformance

import (
	"context"
	"encoding/hex"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
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

// peerSeen looks at what the target says of the peer.
func peerSeen(t *T) {
	d, b := t.withPeer(nil)
	there := t.hopHealth(t.Peer.Address)
	if !there.GetReachable() || there.GetHop().GetIndex() != 1 || there.GetHop().GetWorkerId() != "conformance-peer" {
		t.Errorf("the next hop is seen as %v", there)
	}
	<-time.After(quiet)
	if later := t.hopHealth(t.Peer.Address); later.GetAge().AsDuration() < there.GetAge().AsDuration()+quiet {
		t.Errorf("what is known is %v old, %v later %v", there.GetAge().AsDuration(), quiet, later.GetAge().AsDuration())
	}
	id := d.put(d.step(somePrefill(t)))
	b.result(b.step(), workerpb.Finish_FINISH_DONE)
	d.result(id)
	if heard := t.hopHealth(t.Peer.Address); heard.GetAge().AsDuration() >= quiet {
		t.Errorf("behind an answer what is known is %v old", heard.GetAge().AsDuration())
	}
	b.end(errPeerDone)
	d.ends(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST)
	o := t.peerOpen()
	o.Route[0].Address = vacant(t)
	t.refuseAt(t.head(), workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE, o)
	for _, address := range []string{t.Peer.Address, o.GetRoute()[0].GetAddress()} {
		if gone := t.hopHealth(address); gone.GetReachable() || gone.GetAge() == nil || gone.GetHop().GetIndex() != 1 {
			t.Errorf("the hop that went away is seen as %v", gone)
		}
	}
	if !t.health(t.head()).GetReady() {
		t.Errorf("the target is not ready any more")
	}
	t.withPeer(nil)
	if !t.hopHealth(t.Peer.Address).GetReachable() {
		t.Errorf("the next hop is back, and seen as gone")
	}
}
