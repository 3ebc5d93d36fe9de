package conformance

import (
	"bytes"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// prefixCases are about caches that outlive their sessions.
func prefixCases() []Case {
	kept := func(c Case) Case {
		also := c.Skip
		c.Skip = func(t *Target) string {
			if reason := needs("cache.prefix")(t); reason != "" {
				return reason
			}
			if slices.ContainsFunc(t.Hops, func(h *Hop) bool { return h.Is.GetLimits().GetSessions() < 3 }) {
				return "a worker has room for fewer than three sessions"
			}
			if also != nil {
				return also(t)
			}
			return ""
		}
		return c
	}
	cases := []Case{
		{ID: "prefix.adopted", Clauses: []string{"KEP-1", "KEP-2", "OPN-14"}, Says: "A session that offers what another one kept opens with it, and found nothing of its own.", Run: func(t *T) {
			prompt := t.kept(21)
			d := t.adopts(prompt, len(prompt))
			for i, h := range d.opened.GetHops() {
				if h.GetFound().GetLength() != 0 {
					t.Errorf("hop %d found %d tokens of its own in a session that is new", i, h.GetFound().GetLength())
				}
			}
			d.usable()
			d.finish()
		}},
		{ID: "prefix.same-bits", Clauses: []string{"KEP-9", "KEP-3"}, Says: "Behind an adopted prefix the same step gives the bits that it gave in the session that made it.", Run: prefixBits},
		{ID: "prefix.serves-again", Clauses: []string{"KEP-3"}, Says: "A kept prefix serves two sessions at once and a third one after, whatever they went on with.", Run: func(t *T) {
			prompt := t.kept(15)
			a, b := t.adopts(prompt, len(prompt)), t.adopts(prompt, len(prompt))
			a.result(a.put(a.step(prefill(t.ids(4, 50)...))))
			b.result(b.put(b.step(prefill(t.ids(5, 51)...))))
			a.result(a.put(a.step(truncate(0))))
			a.usable()
			b.usable()
			a.finish()
			b.finish()
			t.adopts(prompt, len(prompt)).finish()
		}},
		{ID: "prefix.longest", Clauses: []string{"KEP-2", "KEP-4"}, Says: "Of several offers the longest that every hop can begin with is taken, in whatever order they stand.", Run: prefixLongest},
		{ID: "prefix.not-asked", Clauses: []string{"KEP-1"}, Says: "A session that ends without keep_prefix leaves nothing for others.", Run: func(t *T) {
			d := t.openDriver()
			d.result(d.put(d.step(prefill(t.fresh(9)...))))
			d.finish()
			t.adopts(d.tokens, 0).finish()
		}},
		{ID: "prefix.counted", Clauses: []string{"KEP-1"}, Says: "Every hop counts what it keeps.", Run: func(t *T) {
			for t.health(t.head()).GetUse().GetKept()+2 >= t.head().Is.GetLimits().GetSessions() { // so that nothing has to go for it
				t.roomForAll()
			}
			before := make([]uint32, len(t.Hops))
			for i, h := range t.Hops {
				before[i] = t.health(h).GetUse().GetKept()
			}
			t.kept(8)
			for i, h := range t.Hops {
				if use := t.health(h).GetUse(); use.GetKept() != before[i]+1 || use.GetReservedTokens() == 0 {
					t.Errorf("hop %d keeps %d prefixes, %d before; %v", i, use.GetKept(), before[i], use)
				}
			}
		}},
		{ID: "prefix.bounded", Clauses: []string{"KEP-6", "HLT-5"}, Says: "What is kept stays within limits.kept_bytes; hits and misses are counted.", Run: func(t *T) {
			before := t.metrics(t.head()).GetPrefixes()
			prompt := t.kept(12)
			t.adopts(prompt, len(prompt)).finish()
			t.adopts(t.fresh(12), 0).finish()
			after := t.metrics(t.head()).GetPrefixes()
			if after.GetHits() <= before.GetHits() || after.GetMisses() <= before.GetMisses() {
				t.Errorf("after a hit and a miss the counters are %v, %v before", after, before)
			}
			for i, h := range t.Hops {
				if used, bound := t.metrics(h).GetPrefixes().GetBytes(), h.Is.GetLimits().GetKeptBytes(); used == 0 || used > bound {
					t.Errorf("hop %d keeps %d bytes, the bound is %d", i, used, bound)
				}
			}
		}},
		{ID: "prefix.unknown", Clauses: []string{"KEP-4"}, Says: "Offers that nobody kept, with another hash or at another length, do no harm and give nothing.", Run: func(t *T) {
			prompt := t.kept(10)
			hash := chainHash(t.head().Is.GetShard().GetFingerprint(), prompt)
			d := t.openDriver(func(o *workerpb.Open) {
				o.Prefix = []*workerpb.PrefixOffer{
					{Length: math.MaxUint32, ChainHash: hash}, {Length: 11, ChainHash: hash}, {Length: 10, ChainHash: random(16)}, {Length: 9, ChainHash: hash},
				}
			})
			d.holds(d.opened.GetCache(), nil)
			d.usable()
			d.finish()
		}},
		{ID: "prefix.beyond-the-context", Clauses: []string{"KEP-4"}, Says: "A kept prefix for which a session reserves too little is not adopted.", Run: func(t *T) {
			prompt := t.kept(20)
			d := t.openDriver(t.offering(prompt, 20), func(o *workerpb.Open) { o.ContextTokens = 19 })
			d.holds(d.opened.GetCache(), nil)
			d.result(d.put(d.step(prefill(t.ids(19, 1)...))))
			d.finish()
		}},
		{ID: "prefix.other-domain", Clauses: []string{"KEP-5"}, Says: "What was kept for one principal is not there for another one, nor for nobody in particular.", Run: otherDomain},
		{ID: "prefix.makes-room", Clauses: []string{"KEP-6", "OPN-10"}, Says: "Kept prefixes take no room that an Open asks for: as many sessions open as the limits say.", Run: func(t *T) {
			t.quiet()
			for range 2 {
				t.kept(6)
			}
			t.roomForAll()
			for i, h := range t.Hops {
				if n := t.health(h).GetUse().GetKept(); n != 0 && h.Is.GetLimits().GetSessions() == t.head().Is.GetLimits().GetSessions() {
					t.Errorf("hop %d keeps %d prefixes beside as many sessions as it has room for", i, n)
				}
			}
		}},
		{ID: "prefix.domain-of-a-driver", Clauses: []string{"KEP-8", "OPN-16"}, Says: "cache_domain from a driver is MALFORMED.", Run: func(t *T) {
			e := t.refuse(malformed, func(o *workerpb.Open) { o.CacheDomain = random(32) })
			if path := e.GetDetail().GetField().GetPath(); path != "open.cache_domain" {
				t.Errorf("the path is %q", path)
			}
		}},
		{ID: "prefix.beside-a-cache", Clauses: []string{"KEP-2", "LOS-2"}, Says: "A session that holds tokens goes on from them, whatever it offers.", Run: func(t *T) {
			prompt := t.kept(18)
			d := t.linger(7)
			o := proto.CloneOf(d.open)
			o.Attempt = 2
			t.offering(prompt, 18)(o)
			next := t.openWith(t.head(), o)
			next.tokens = d.tokens[:7]
			next.holds(next.opened.GetCache(), next.tokens)
			next.usable()
			next.finish()
		}},
	}
	cases = append(cases, prefixPeerCases()...)
	for i := range cases {
		cases[i] = kept(cases[i])
	}
	return cases
}

// prefixPeerCases are about what the next hop is told.
func prefixPeerCases() []Case {
	peer := func(t *Target) string {
		if t.Peer == nil || t.head().Is.GetShard().GetTail() {
			return "the first hop has no next hop of ours"
		}
		return ""
	}
	return []Case{
		{ID: "prefix.struck", Clauses: []string{"KEP-2"}, Skip: peer, Says: "The next hop is offered only what the first hop can begin with, and is told that the first holds it.", Run: func(t *T) {
			prompt := t.keptAtHead(14)
			_, b, _ := t.dialled(t.offering(prompt, 14), func(o *workerpb.Open) {
				o.Prefix = append(o.Prefix, &workerpb.PrefixOffer{Length: 12, ChainHash: random(16)}, &workerpb.PrefixOffer{Length: 20, ChainHash: random(16)})
			})
			if p := b.open.GetPrefix(); len(p) != 1 || p[0].GetLength() != 14 {
				t.Errorf("the next hop is offered %v, 14 tokens are what the first hop has", p)
			}
			if h := b.open.GetHeld(); h.GetLength() != 14 {
				t.Errorf("the next hop is told of %v", h)
			}
		}},
		{ID: "prefix.keep-travels", Clauses: []string{"KEP-1"}, Skip: peer, Says: "Close with keep_prefix reaches the next hop as it is.", Run: func(t *T) {
			for _, keep := range []bool{true, false} {
				d, b := t.withPeer(nil)
				d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{KeepPrefix: keep}}})
				m := b.next()
				if m.GetClose() == nil || m.GetClose().GetKeepPrefix() != keep {
					t.Errorf("keep_prefix %v: the next hop got %v", keep, m)
				}
				b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: &workerpb.Closed{Reason: workerpb.CloseReason_CLOSE_REASON_REQUESTED}}})
				d.over()
			}
		}},
		{ID: "prefix.failed-open", Clauses: []string{"KEP-7", "OPN-19"}, Skip: peer, Says: "An Open that fails below leaves the kept prefix as it was, and nothing of it in the session.", Run: func(t *T) {
			prompt := t.keptAtHead(16)
			lingers := func(o *workerpb.Open) { o.Linger = durationpb.New(5 * time.Second) }
			l, b, o := t.dialled(t.offering(prompt, 16), lingers)
			b.end(errPeerDone)
			l.refusal()
			_, b, _ = t.dialled(lingers, func(again *workerpb.Open) {
				again.SessionId, again.SessionKey, again.Attempt = o.GetSessionId(), o.GetSessionKey(), 2
			})
			if n := b.open.GetHeld().GetLength(); n != 0 {
				t.Errorf("behind an Open that failed the session holds %d tokens", n)
			}
			_, b, _ = t.dialled(t.offering(prompt, 16))
			if n := b.open.GetHeld().GetLength(); n != 16 {
				t.Errorf("behind an Open that failed %d tokens of the prefix are left", n)
			}
		}},
	}
}

// fresh are n tokens that nobody has sent before.
func (t *T) fresh(n int) []uint32 {
	seed := random(2)
	return t.ids(n, 1<<20+uint32(seed[0])<<8+uint32(seed[1]))
}

// offering makes an Open offer the first n of tokens.
func (t *T) offering(tokens []uint32, n ...int) func(*workerpb.Open) {
	return func(o *workerpb.Open) {
		for _, n := range n {
			o.Prefix = append(o.Prefix, &workerpb.PrefixOffer{Length: uint32(n), ChainHash: chainHash(o.GetExpect().GetFingerprint(), tokens[:n])})
		}
	}
}

// keeping ends a session and has its cache kept.
func (d *driver) keeping() {
	d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{KeepPrefix: true}}})
	d.over()
}

// kept has n fresh tokens kept on every hop. Caches that linger would make the prefix go before them.
func (t *T) kept(n int, change ...func(*workerpb.Open)) []uint32 {
	for _, h := range t.Hops {
		t.until("no cache lingers", func() bool { return t.health(h).GetUse().GetLingering() == 0 })
	}
	d := t.openDriver(change...)
	d.result(d.put(d.step(prefill(t.fresh(n)...))))
	d.keeping()
	return d.tokens
}

// keptAtHead has n fresh tokens kept on the first hop, behind which the peer stands.
func (t *T) keptAtHead(n int) []uint32 {
	d, b := t.withPeer(nil)
	id := d.put(d.step(prefill(t.fresh(n)...)))
	b.result(b.step(), workerpb.Finish_FINISH_DONE)
	d.result(id)
	d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{KeepPrefix: true}}})
	b.next()
	b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Closed{Closed: &workerpb.Closed{Reason: workerpb.CloseReason_CLOSE_REASON_REQUESTED}}})
	d.over()
	return d.tokens
}

// adopts opens a session that offers all of tokens; it must begin with the first n.
func (t *T) adopts(tokens []uint32, n int, change ...func(*workerpb.Open)) *driver {
	d := t.openDriver(append([]func(*workerpb.Open){t.offering(tokens, len(tokens))}, change...)...)
	d.tokens = slices.Clone(tokens[:n])
	d.holds(d.opened.GetCache(), d.tokens)
	return d
}

// roomForAll opens as many sessions as the first hop's limits say, and ends them.
func (t *T) roomForAll() {
	t.quiet()
	var all []*driver
	for range t.head().Is.GetLimits().GetSessions() {
		all = append(all, t.openDriver())
	}
	for _, d := range all {
		d.finish()
	}
}

func prefixBits(t *T) {
	d := t.openDriver()
	d.result(d.put(d.step(prefill(t.fresh(17)...))))
	prompt := slices.Clone(d.tokens)
	ask := func(d *driver) []byte {
		return d.logits(d.put(d.step(decode(workerpb.Want_WANT_LOGITS_LAST, t.ids(1, 9)...))))
	}
	want := ask(d)
	d.finish()
	d = t.openDriver()
	d.result(d.put(d.step(prefill(prompt...))))
	d.keeping()
	for range 2 {
		d = t.adopts(prompt, len(prompt))
		if !bytes.Equal(ask(d), want) {
			t.Errorf("behind an adopted prefix the same token gives other logits")
		}
		d.finish()
	}
}

func prefixLongest(t *T) {
	d := t.openDriver()
	for range 4 {
		d.result(d.put(d.step(prefill(t.fresh(6)...))))
	}
	r := d.result(d.put(d.step(decode(workerpb.Want_WANT_NONE, t.ids(1, 3)...))))
	d.keeping()
	tokens := d.tokens
	longest := 0
	offers := []int{5, 12, 18, 24}
	for _, n := range offers {
		if within(r.GetCache(), uint32(n)) {
			longest = max(longest, n)
		}
	}
	if longest == 0 {
		t.Fatalf("the reach %v holds none of the starts of the last steps", r.GetCache().GetReach())
	}
	for range 2 {
		d := t.openDriver(t.offering(tokens, offers...))
		d.tokens = slices.Clone(tokens[:longest])
		d.holds(d.opened.GetCache(), d.tokens)
		d.usable()
		d.finish()
		slices.Reverse(offers)
	}
	t.adopts(tokens, 25).finish()
}

func otherDomain(t *T) {
	as := func(name string) func(*workerpb.Open) {
		return func(o *workerpb.Open) { o.OnBehalfOf = name }
	}
	o := t.openFor(0)
	as("conformance-a")(o)
	l := t.link(t.head())
	l.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	m := l.next()
	if m.GetOpened() == nil { // who tries this worker may not act for others
		if e := t.errorOf(l.end); e.GetCode() != workerpb.ErrorCode_ERROR_CODE_PERMISSION_DENIED {
			t.Errorf("Open on behalf of another ended with %v", l.end)
		}
		return
	}
	l.send(closing())
	prompt := t.kept(19, as("conformance-a"))
	t.adopts(prompt, 0, as("conformance-b")).finish()
	t.adopts(prompt, 0).finish()
	t.adopts(prompt, len(prompt), as("conformance-a")).finish()
	mine := t.kept(19)
	t.adopts(mine, 0, as("conformance-a")).finish()
	t.adopts(mine, len(mine)).finish()
}
