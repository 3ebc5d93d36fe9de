package live

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

func routeTo(addresses ...string) []*workerpb.RouteHop {
	var route []*workerpb.RouteHop
	for _, a := range addresses {
		route = append(route, &workerpb.RouteHop{Address: a})
	}
	return route
}

func answers(ids ...string) *workerpb.Opened {
	o := &workerpb.Opened{}
	for i, id := range ids {
		h := &workerpb.HopReport{Hop: &workerpb.HopRef{Index: proto.Uint32(uint32(i)), WorkerId: id}}
		if i < len(ids)-1 {
			h.LinkRtt = durationpb.New(time.Duration(i+1) * time.Millisecond)
		}
		o.Hops = append(o.Hops, h)
	}
	return o
}

func about(code workerpb.ErrorCode, index uint32) *fault.Error {
	ref := &workerpb.HopRef{Index: proto.Uint32(index)}
	return fault.New(code, "x").At(ref, ref)
}

// seen is what a directory says of later hops, one line each.
func seen(d *Directory) string {
	var text string
	for _, h := range d.Hops() {
		text += fmt.Sprintf("%d %s=%s %v %v ago rtt %v\n", h.GetHop().GetIndex(), h.GetAddress(), h.GetHop().GetWorkerId(), h.GetReachable(),
			h.GetAge().AsDuration(), h.GetRtt().AsDuration())
	}
	return text
}

func TestWhatIsHeardOfLaterHops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Directory{}
		route := routeTo("b:1", "c:1", "d:1")
		expect := func(what, want string) {
			t.Helper()
			if got := seen(d); got != want {
				t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
			}
		}
		d.hearsay.answered(route, 3)
		expect("before anything was opened", "")
		d.hearsay.opened(route, answers("b", "c", "d"), 8*time.Millisecond)
		time.Sleep(time.Second)
		expect("opened", "1 b:1=b true 1s ago rtt 8ms\n2 c:1=c true 1s ago rtt 1ms\n3 d:1=d true 1s ago rtt 2ms\n")
		d.hearsay.answered(route, 1)
		d.hearsay.opened(routeTo("b:1"), answers("b2"), 16*time.Millisecond)
		expect("another worker at the first place", "1 b:1=b2 true 0s ago rtt 9ms\n2 c:1=c true 1s ago rtt 1ms\n3 d:1=d true 1s ago rtt 2ms\n")
		time.Sleep(time.Second)
		d.hearsay.missed(route, about(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST, 2))
		expect("the second is lost, which the first one said", "1 b:1=b2 true 0s ago rtt 9ms\n2 c:1=c false 0s ago rtt 1ms\n3 d:1=d true 2s ago rtt 2ms\n")
		time.Sleep(time.Second)
		for _, err := range []*fault.Error{
			about(workerpb.ErrorCode_ERROR_CODE_ROUTE_REFUSED, 1), about(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST, 0),
			about(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST, 4), about(workerpb.ErrorCode_ERROR_CODE_NUMERIC_FAULT, 3),
		} {
			d.hearsay.missed(route, err)
		}
		expect("what says nothing of whether a hop is there", "1 b:1=b2 true 1s ago rtt 9ms\n2 c:1=c false 1s ago rtt 1ms\n3 d:1=d true 3s ago rtt 2ms\n")
		d.hearsay.missed(routeTo("e:1"), about(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE, 1))
		if h := d.Hops()[1]; h.GetAddress() != "e:1" || h.GetReachable() || h.GetRtt() != nil {
			t.Errorf("one that never was there: %v", h)
		}
	})
}

func TestHearsayIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Directory{}
		for i := range maxHops + 3 {
			time.Sleep(time.Second)
			d.hearsay.missed(routeTo(fmt.Sprint("h", i, ":1")), about(workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE, 1))
			d.hearsay.answered(routeTo("h0:1"), 1)
		}
		all := d.Hops()
		if len(all) != maxHops {
			t.Fatalf("%d hops are remembered", len(all))
		}
		for _, h := range all {
			if a := h.GetAddress(); a == "h1:1" || a == "h2:1" || a == "h3:1" {
				t.Errorf("%s was heard of longest ago, and is remembered", a)
			}
		}
	})
}
