package rpc_test

import (
	"net"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/quota"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/rpc"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session/live"
)

// deaf listens and never says anything.
func deaf(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// A principal that has as many openings under way as it may opens nothing more until one of them has ended.
func TestOpeningsAreBounded(t *testing.T) {
	limits := quota.Default()
	limits.Opening = 1
	quotas := quota.New(limits)
	w := start(t, engine.LayerRange{First: 0, End: 2}, setting{
		options: func(o *rpc.Options) { o.Quotas = quotas }, directory: func(o *live.Options) { o.Quotas = quotas },
	})
	hop := deaf(t)
	begin := func(id byte) *driver {
		m := openOf(id, []*worker{w})
		m.GetOpen().Route = []*workerpb.RouteHop{{Address: hop, Layers: &workerpb.LayerRange{First: proto.Uint32(2), End: 4}}}
		d := dialTo(t, w)
		d.send(m)
		return d
	}
	stuck := begin(1)
	soon(t, "the session is being opened", func() bool { return w.dir.Sessions() == 1 })
	soon(t, "another one is one too many", func() bool {
		_, err := begin(2).end()
		return err != nil && err.Code == workerpb.ErrorCode_ERROR_CODE_QUOTA_EXCEEDED && err.RetryAfter > 0
	})
	stuck.cancel()
	soon(t, "the opening is over", func() bool { return w.dir.Sessions() == 0 })
	done, err := quotas.Opening("address:127.0.0.1")
	if err != nil {
		t.Fatalf("nothing was given back: %v", err)
	}
	done()
}
