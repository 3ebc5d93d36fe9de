package live

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// maxHops is how many later hops are remembered, over all routes: what was heard longest ago is forgotten first.
const maxHops = 256

// hearsay is what sessions saw of later hops, by address. It never changes how ready this worker is.
type hearsay struct {
	mu   sync.Mutex
	hops map[string]*heard
}

// heard is the last that was seen of one hop.
type heard struct {
	hop       *workerpb.HopRef
	reachable bool
	at        time.Time
	rtt       time.Duration // smoothed; 0: not measured
}

// of is the entry of an address; it is made if there is none. The caller holds mu.
func (h *hearsay) of(address string) *heard {
	if e := h.hops[address]; e != nil {
		return e
	}
	if h.hops == nil {
		h.hops = map[string]*heard{}
	}
	if len(h.hops) >= maxHops {
		oldest := ""
		for at, e := range h.hops {
			if oldest == "" || e.at.Before(h.hops[oldest].at) {
				oldest = at
			}
		}
		delete(h.hops, oldest)
	}
	e := &heard{}
	h.hops[address] = e
	return e
}

// opened says that every hop of a route answered an Open: o is the next one's answer, rtt the round trip to it.
func (h *hearsay) opened(route []*workerpb.RouteHop, o *workerpb.Opened, rtt time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, said := range o.GetHops() {
		if i >= len(route) {
			return
		}
		e := h.of(route[i].GetAddress())
		ref := said.GetHop()
		e.hop = &workerpb.HopRef{Index: proto.Uint32(uint32(i) + 1), WorkerId: ref.GetWorkerId(), Instance: ref.GetInstance()}
		e.reachable, e.at = true, time.Now()
		if rtt > 0 {
			e.rtt = smooth(e.rtt, rtt)
		}
		rtt = said.GetLinkRtt().AsDuration()
	}
}

// smooth is the mean of what was measured, in which later ones weigh more.
func smooth(mean, fresh time.Duration) time.Duration {
	if mean == 0 {
		return fresh
	}
	return mean + (fresh-mean)/8
}

// answered says that the first n hops of a route did their part just now.
func (h *hearsay) answered(route []*workerpb.RouteHop, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hop := range route[:min(n, len(route))] {
		if e := h.hops[hop.GetAddress()]; e != nil {
			e.reachable, e.at = true, time.Now()
		}
	}
}

// missed notes the hop that err says cannot be reached, or was lost, and those before it, who say so.
func (h *hearsay) missed(route []*workerpb.RouteHop, err *fault.Error) {
	n := int(err.Subject.GetIndex())
	gone := err.Code == workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_UNREACHABLE || err.Code == workerpb.ErrorCode_ERROR_CODE_DOWNSTREAM_LOST
	if !gone || n < 1 || n > len(route) {
		return
	}
	h.answered(route, n-1)
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.of(route[n-1].GetAddress())
	e.reachable, e.at = false, time.Now()
	if e.hop == nil {
		e.hop = &workerpb.HopRef{Index: proto.Uint32(uint32(n)), WorkerId: err.Subject.GetWorkerId(), Instance: err.Subject.GetInstance()}
	}
}

// Hops is what sessions saw of later hops, in the order of their places.
func (d *Directory) Hops() []*workerpb.HopHealth {
	h := &d.hearsay
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]*workerpb.HopHealth, 0, len(h.hops))
	for address, e := range h.hops {
		m := &workerpb.HopHealth{Hop: e.hop, Address: address, Reachable: e.reachable, Age: durationpb.New(time.Since(e.at))}
		if e.rtt > 0 {
			m.Rtt = durationpb.New(e.rtt)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *workerpb.HopHealth) int {
		return cmp.Or(cmp.Compare(a.GetHop().GetIndex(), b.GetHop().GetIndex()), cmp.Compare(a.GetAddress(), b.GetAddress()))
	})
	return all
}

// hear notes what a message of the next hop says about it and those behind it. The caller holds mu.
func (s *Session) hear(m *workerpb.SessionResponse) {
	route := s.core.Route()
	switch {
	case m.GetOpened() != nil:
		s.directory.hearsay.opened(route, m.GetOpened(), s.core.LinkRTT())
	case m.GetStepResult() != nil:
		s.directory.hearsay.answered(route, len(route))
	default:
		s.directory.hearsay.answered(route, 1)
	}
}
