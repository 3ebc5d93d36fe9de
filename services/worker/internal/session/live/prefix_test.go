package live

import (
	"testing"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/cachehash"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/batch"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// shelf is prefixes over a fake engine, with room for bound tokens.
type shelf struct {
	*prefixes
	t      *testing.T
	engine engine.ShardEngine
}

func newShelf(t *testing.T, tokens uint64) *shelf {
	e, _, err := fake.Factory(fake.Default())()
	if err != nil {
		t.Fatal(err)
	}
	info, err := e.Load(t.Context(), engine.LoadRequest{
		Paths: []string{"fake"}, ContextLimit: 64, Sessions: 8, BatchTokens: 16, MicroBatch: 16, Threads: 1, CacheType: "f32",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	scheduler := batch.New(e, batch.Options{Tokens: 16, Limit: 64})
	t.Cleanup(func() {
		if err := scheduler.Close(t.Context()); err != nil {
			t.Log(err)
		}
		_ = e.Close()
	})
	token := info.Memory.Cache / (8 * 64)
	return &shelf{newPrefixes(Options{KeptBytes: tokens * token, Sessions: 8}, info, scheduler, PrefixUse{}), t, e}
}

// put keeps n tokens, the first of which is seed, and returns what offers them.
func (s *shelf) put(of domain, seed uint32, n int) *workerpb.PrefixOffer {
	s.t.Helper()
	chain := cachehash.NewChain([32]byte{})
	for i := range n {
		chain.Append(seed + uint32(i))
	}
	seat := s.seat()
	done := make(chan error, 1)
	s.scheduler.Submit(&batch.Job{Kind: batch.Open, Session: seat, Context: 32, Done: func(o batch.Outcome) { done <- o.Err }})
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
	s.keep(of, session.Kept{Seat: seat, Chain: chain, Reserved: 32, Reach: []engine.Span{{To: engine.Pos(n)}}})
	h := chain.Last()
	return &workerpb.PrefixOffer{Length: uint32(n), ChainHash: h[:]}
}

// has says whether the offer would be adopted.
func (s *shelf) has(of domain, o *workerpb.PrefixOffer) bool {
	s.t.Helper()
	done := make(chan session.Outcome, 1)
	if !s.adopt(of, session.Work{Kind: session.WorkAdopt, Session: s.seat(), Context: 32, Offers: []*workerpb.PrefixOffer{o}}, func(o session.Outcome) { done <- o }) {
		return false
	}
	<-done // of a seat that is not open: what counts is that it was found
	return true
}

func (s *shelf) want(kept uint32, tokens uint64) {
	s.t.Helper()
	u := s.used()
	if u.Kept != kept || u.Bytes != tokens*s.token || u.Tokens != 32*uint64(kept) {
		s.t.Errorf("%+v, want %d kept with %d tokens of %d bytes", u, kept, tokens, s.token)
	}
	done := make(chan error, 1) // behind every release
	s.scheduler.Submit(&batch.Job{Kind: batch.Release, Session: engine.SessionID{9}, Done: func(o batch.Outcome) { done <- o.Err }})
	<-done
	if open := s.engine.Metrics().SessionsOpen; open != uint64(kept) {
		s.t.Errorf("the engine holds %d caches, %d are kept", open, kept)
	}
}

func TestKeptPrefixesAreBoundedByBytesLeastRecentlyUsedFirst(t *testing.T) {
	s, a := newShelf(t, 20), domain{1}
	first, second := s.put(a, 100, 8), s.put(a, 200, 8)
	s.want(2, 16)
	if !s.has(a, first) {
		t.Fatal("the first one is not found")
	}
	third := s.put(a, 300, 10) // the second one was used least lately
	s.want(2, 18)
	if s.has(a, second) || !s.has(a, first) || !s.has(a, third) {
		t.Error("another one than the least recently used went")
	}
	s.put(a, 400, 21) // larger than all that may be kept: nothing goes for it
	s.want(2, 18)
	for range 2 {
		if !s.evict() {
			t.Error("nothing was evicted")
		}
	}
	s.want(0, 0)
	if s.evict() {
		t.Error("nothing was there, and something was evicted")
	}
}

func TestKeptPrefixesAreKeptOnceInEachDomain(t *testing.T) {
	s, a, b := newShelf(t, 60), domain{1}, domain{2}
	short := s.put(a, 100, 8)
	s.put(a, 100, 8)
	s.want(1, 8)
	long := s.put(a, 100, 12) // has all of the shorter one
	s.want(1, 12)
	s.put(a, 100, 5)
	s.want(1, 12)
	if !s.has(a, short) || !s.has(a, long) || s.has(b, short) || s.has(domain{}, long) {
		t.Error("a prefix is found elsewhere than in its domain, or not there")
	}
	s.put(b, 100, 12)
	s.want(2, 24)
}

// The domain is the next hop's word for whom to keep: golden, for workers of other makes need not know how it comes to be, but
// this worker must find its own again.
func TestDomains(t *testing.T) {
	seen := map[domain]string{}
	for name, d := range map[string]domain{
		"nobody": domainOf(Caller{}, nil), "a": domainOf(Caller{Principal: "a"}, nil), "for a": domainOf(Caller{OnBehalfOf: "a"}, nil),
		"ab": domainOf(Caller{Principal: "a", OnBehalfOf: "b"}, nil), "b for a": domainOf(Caller{Principal: "b", OnBehalfOf: "a"}, nil), "ab alone": domainOf(Caller{Principal: "ab"}, nil),
		"a within a": domainOf(Caller{Principal: "a"}, domainOf(Caller{Principal: "a"}, nil).below()),
		"a within b": domainOf(Caller{Principal: "a"}, domainOf(Caller{Principal: "b"}, nil).below()),
	} {
		if other, double := seen[d]; double {
			t.Errorf("%s and %s are one domain", name, other)
		}
		seen[d] = name
		if n := len(d.below()); n != 32 && name != "nobody" || n != 0 && name == "nobody" {
			t.Errorf("%s is %d bytes to the next hop", name, n)
		}
	}
}
