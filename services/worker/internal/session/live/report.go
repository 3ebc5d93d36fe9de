package live

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Info is one session as operators see it.
type Info struct {
	ID            engine.SessionID
	State         string // name in the session table
	Attempt       uint64
	ContextTokens uint32 // reserved
	CacheLength   uint32
	Opened        time.Time
	Active        time.Time // last message from the upstream
	Downstream    string    // HOST:PORT; empty: none
}

// List is every session, in no order.
func (d *Directory) List() []Info {
	all := d.all()
	list := make([]Info, len(all))
	for i, s := range all {
		list[i] = s.info()
	}
	return list
}

func (s *Session) info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	length, reserved := s.core.Cached()
	i := Info{
		ID: s.id, State: s.core.State().String(), Attempt: s.core.Attempt(), ContextTokens: reserved, CacheLength: length,
		Opened: s.began, Active: s.active,
	}
	if s.link != nil {
		i.Downstream = s.address
	}
	return i
}

// Use is how full the worker is.
func (d *Directory) Use(capacity uint64) *workerpb.CacheUse {
	var use workerpb.CacheUse
	var open, lingering uint32
	var reserved uint64
	var oldest time.Duration
	for _, s := range d.all() {
		if at := s.lingers(); at.IsZero() {
			open++
		} else {
			lingering++
			oldest = max(oldest, time.Since(at))
		}
		reserved += uint64(s.info().ContextTokens)
	}
	kept := d.Prefixes()
	reserved += kept.Tokens
	use.Sessions, use.Lingering, use.Kept = proto.Uint32(open), proto.Uint32(lingering), proto.Uint32(kept.Kept)
	use.ReservedTokens, use.FreeTokens = proto.Uint64(reserved), proto.Uint64(capacity-min(capacity, reserved))
	if lingering > 0 {
		use.Oldest = durationpb.New(oldest)
	}
	return &use
}

// Prefixes is how kept prefixes are used.
func (d *Directory) Prefixes() PrefixUse {
	if r := d.residence(); r != nil {
		return r.prefixes.used()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return PrefixUse{Hits: d.before.Hits, Misses: d.before.Misses}
}

// DrainLeft is the time until sessions are closed; false when the worker does not drain.
func (d *Directory) DrainLeft() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(time.Until(d.drained), 0), !d.drained.IsZero()
}

func (d *Directory) opened() {
	d.options.Observer.SessionOpened()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.totals.opened++
}

// meter brings what the open attempt used so far into the totals.
func (s *Session) meter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if used := s.core.Meter(); used != nil {
		s.directory.used(used)
	}
}

// used adds what an attempt used to the totals.
func (d *Directory) used(u *workerpb.Usage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := &d.totals.usage
	t.TokensEvaluated += u.GetTokensEvaluated()
	t.TokensSampled += u.GetTokensSampled()
	t.BytesIn += u.GetBytesIn()
	t.BytesOut += u.GetBytesOut()
	t.TokenSeconds += u.GetTokenSeconds()
	t.Compute = durationpb.New(t.GetCompute().AsDuration() + u.GetCompute().AsDuration())
}

// Metrics are the worker's counters, with what open sessions used so far.
func (d *Directory) Metrics() *workerpb.GetMetricsResponse {
	for _, s := range d.all() {
		s.meter()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	m := &workerpb.GetMetricsResponse{
		Total: proto.Clone(&d.totals.usage).(*workerpb.Usage), SessionsOpened: d.totals.opened,
		ImpossibleTransitions: d.totals.impossible, Prefixes: &workerpb.PrefixUse{}, BufferedBytes: proto.Uint64(d.options.Buffered.Now()), BufferedMost: proto.Uint64(d.options.Buffered.Most()),
	}
	for code, n := range d.totals.errors {
		m.Errors = append(m.Errors, &workerpb.ErrorCount{Code: uint32(code), Count: n})
	}
	slices.SortFunc(m.Errors, func(a, b *workerpb.ErrorCount) int { return int(a.GetCode()) - int(b.GetCode()) })
	if d.shard != nil {
		used := d.shard.prefixes.used()
		m.Prefixes = &workerpb.PrefixUse{Kept: used.Kept, Bytes: used.Bytes, Hits: used.Hits, Misses: used.Misses}
		t := d.shard.scheduler.Totals()
		m.Instance, m.Batches, m.BatchRows, m.SharedRows = d.shard.hop.Instance[:], t.Batches, t.Rows, t.SharedRows
	}
	return m
}
