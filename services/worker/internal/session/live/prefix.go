package live

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/batch"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// domain is for whom a prefix is kept: nobody else finds it. The zero value is nobody in particular.
type domain [sha256.Size]byte

// domainOf is the domain of an Open: of the caller, and within it of the one for whom that keeps, where it is a hop.
func domainOf(c Caller, within []byte) domain {
	if c.Principal == "" && c.OnBehalfOf == "" && len(within) == 0 {
		return domain{}
	}
	var named []byte
	for _, part := range [][]byte{[]byte(c.Principal), []byte(c.OnBehalfOf), within} {
		named = binary.LittleEndian.AppendUint32(named, uint32(len(part)))
		named = append(named, part...)
	}
	return sha256.Sum256(named)
}

// below is what the next hop is told.
func (d domain) below() []byte {
	if d == (domain{}) {
		return nil
	}
	return d[:]
}

// prefixes are the kept caches of one shard in service, and the seats of all.
type prefixes struct {
	bound     uint64 // bytes
	token     uint64 // bytes of one token
	copies    engine.CopyAbility
	scheduler *batch.Scheduler

	mu    sync.Mutex // taken last
	seats uint64
	all   []*prefix // least recently used first
	use   PrefixUse
}

// prefix is one kept cache.
type prefix struct {
	domain domain
	kept   session.Kept
	bytes  uint64
}

// PrefixUse is how many prefixes are kept and how they are used.
type PrefixUse struct {
	Kept   uint32 // now
	Bytes  uint64 // now: of the tokens that they hold
	Tokens uint64 // now: reserved for them
	Hits   uint64 // openings that adopted one
	Misses uint64 // openings that offered some, and adopted none
}

func newPrefixes(o Options, info engine.ShardInfo, scheduler *batch.Scheduler, before PrefixUse) *prefixes {
	tokens := uint64(o.Sessions) * uint64(info.ContextLimit)
	return &prefixes{bound: o.KeptBytes, token: info.Memory.Cache / max(tokens, 1), copies: info.Cache.Copy, scheduler: scheduler,
		use: PrefixUse{Hits: before.Hits, Misses: before.Misses}}
}

// seat is a name in the engine that nobody has had.
func (p *prefixes) seat() (seat engine.SessionID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seats++
	binary.BigEndian.PutUint64(seat[8:], p.seats)
	return seat
}

// keep takes a cache over, or gives it up: where it is larger than the bound, or others of its domain have all of it.
func (p *prefixes) keep(of domain, k session.Kept) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := &prefix{domain: of, kept: k, bytes: max(p.token, 1) * uint64(k.Chain.Len())}
	if i := slices.IndexFunc(p.all, func(x *prefix) bool { return x.domain == of && x.kept.Covers(&k) }); i >= 0 {
		p.touch(i)
		p.release(k.Seat)
		return
	}
	for i := len(p.all) - 1; i >= 0; i-- {
		if x := p.all[i]; x.domain == of && k.Covers(&x.kept) {
			p.drop(i)
		}
	}
	if fresh.bytes > p.bound {
		p.release(k.Seat)
		return
	}
	for p.use.Bytes+fresh.bytes > p.bound {
		p.drop(0)
	}
	p.all = append(p.all, fresh)
	p.use.Bytes += fresh.bytes
	p.use.Tokens += uint64(k.Reserved)
	p.use.Kept++
}

// touch makes an entry the most recently used one.
func (p *prefixes) touch(i int) {
	x := p.all[i]
	p.all = append(slices.Delete(p.all, i, i+1), x)
}

// drop gives an entry up.
func (p *prefixes) drop(i int) {
	x := p.all[i]
	p.all = slices.Delete(p.all, i, i+1)
	p.use.Bytes -= x.bytes
	p.use.Tokens -= uint64(x.kept.Reserved)
	p.use.Kept--
	p.release(x.kept.Seat)
}

func (p *prefixes) release(seat engine.SessionID) {
	_ = p.scheduler.Submit(&batch.Job{Kind: batch.Release, Session: seat}) // refused when the engine is given up, with all that it holds
}

// evict gives up the least recently used one; it is false when none is kept.
func (p *prefixes) evict() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) == 0 {
		return false
	}
	p.drop(0)
	return true
}

func (p *prefixes) clear() {
	for p.evict() {
	}
}

// adopt begins to copy the longest of the offers that a prefix of the domain can be into the work's seat, and tells done; it is
// false where there is none. A prefix that is given up meanwhile is one that is not there.
func (p *prefixes) adopt(of domain, w session.Work, done func(session.Outcome)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	best, length := -1, uint32(0)
	for i, x := range p.all {
		if x.domain != of {
			continue
		}
		if n := x.kept.Offered(p.copies, w.Offers, w.Context); n > length {
			best, length = i, n
		}
	}
	if best < 0 {
		p.use.Misses++
		return false
	}
	k := p.all[best].kept
	p.touch(best)
	err := p.scheduler.Submit(&batch.Job{
		Kind: batch.Copy, From: k.Seat, Session: w.Session, Length: engine.Pos(length),
		Done: func(o batch.Outcome) {
			p.copied(o.Err)
			done(session.Outcome{Kind: w.Kind, Err: o.Err, Cache: o.Cache, Kept: &k})
		},
	})
	return err == nil
}

func (p *prefixes) copied(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.use.Misses++
	} else {
		p.use.Hits++
	}
}

func (p *prefixes) used() PrefixUse {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.use
}
