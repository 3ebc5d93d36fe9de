package session

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/cachehash"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// cache is what this hop's engine holds for the session.
type cache struct {
	fingerprint [32]byte
	chain       *cachehash.Chain
	reserved    uint32        // tokens; 0: the engine holds nothing
	reach       []engine.Span // lengths that it can go back to
	marks       []mark        // checkpoints that the engine holds, ascending
	prefilled   bool          // the last step was a Prefill
}

func newCache(fingerprint [32]byte) cache {
	c := cache{fingerprint: fingerprint}
	c.lose()
	return c
}

// lose is the state without a reservation.
func (c *cache) lose() {
	c.chain, c.reserved, c.reach, c.marks, c.prefilled = cachehash.NewChain(c.fingerprint), 0, []engine.Span{{}}, nil, false
}

func (c *cache) length() uint32 { return c.chain.Len() }

// now takes over what the engine says after a call.
func (c *cache) now(s engine.CacheState) {
	c.chain.Truncate(uint32(s.Length))
	c.reach = s.Reach
	c.dropBehind(uint32(s.Length))
}

// hash is the chain hash at length, or nil beyond the end.
func (c *cache) hash(length uint32) []byte {
	h, ok := c.chain.At(length)
	if !ok {
		return nil
	}
	return h[:]
}

// at says whether hash is the chain hash at length.
func (c *cache) at(length uint32, hash []byte) bool {
	h, ok := c.chain.At(length)
	return ok && string(h[:]) == string(hash)
}

// canBe says whether the cache is, or can be made, length tokens long.
func (c *cache) canBe(length uint32) bool {
	return length == c.length() || length < c.length() && holds(c.reach, length)
}

func (c *cache) state() *workerpb.CacheState {
	return &workerpb.CacheState{
		Length: proto.Uint32(c.length()), ChainHash: c.hash(c.length()), Reach: spansOf(c.reach),
	}
}

func (c *cache) detail() *workerpb.ErrorDetail {
	return &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Cache{Cache: &workerpb.CacheDetail{
		Length: proto.Uint32(c.length()), ChainHash: c.hash(c.length()), Capacity: proto.Uint32(c.reserved),
	}}}
}

func holds(reach []engine.Span, length uint32) bool {
	for _, s := range reach {
		if uint32(s.From) <= length && length <= uint32(s.To) {
			return true
		}
	}
	return false
}

func spansOf(reach []engine.Span) []*workerpb.LengthSpan {
	out := make([]*workerpb.LengthSpan, len(reach))
	for i, s := range reach {
		out[i] = &workerpb.LengthSpan{From: proto.Uint32(uint32(s.From)), To: proto.Uint32(uint32(s.To))}
	}
	return out
}

func reachOf(spans []*workerpb.LengthSpan) []engine.Span {
	out := make([]engine.Span, len(spans))
	for i, s := range spans {
		out[i] = engine.Span{From: engine.Pos(s.GetFrom()), To: engine.Pos(s.GetTo())}
	}
	return out
}

// meet is the lengths that are in both; both are ascending and disjoint, and so is the result.
func meet(a, b []engine.Span) []engine.Span {
	var out []engine.Span
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if from, to := max(a[i].From, b[j].From), min(a[i].To, b[j].To); from <= to {
			out = append(out, engine.Span{From: from, To: to})
		}
		if a[i].To < b[j].To {
			i++
		} else {
			j++
		}
	}
	return out
}

// usage meters one attempt at this hop.
type usage struct {
	evaluated, sampled, bytesIn, bytesOut uint64
	compute                               time.Duration
	tokenTime                             float64 // token-seconds
}

// hold adds the time for which length tokens were held.
func (u *usage) hold(span time.Duration, length uint32, first bool) {
	if !first && span > 0 {
		u.tokenTime += span.Seconds() * float64(length)
	}
}

// since is what came to an older reading of the same meter. Whole token-seconds are counted, so that all parts make the whole.
func (u usage) since(old usage) *usage {
	return &usage{
		evaluated: u.evaluated - old.evaluated, sampled: u.sampled - old.sampled, bytesIn: u.bytesIn - old.bytesIn,
		bytesOut: u.bytesOut - old.bytesOut, compute: u.compute - old.compute,
		tokenTime: math.Floor(u.tokenTime) - math.Floor(old.tokenTime),
	}
}

func (u *usage) proto() *workerpb.Usage {
	return &workerpb.Usage{
		TokensEvaluated: u.evaluated, TokensSampled: u.sampled, BytesIn: u.bytesIn, BytesOut: u.bytesOut,
		Compute: durationpb.New(u.compute), TokenSeconds: uint64(u.tokenTime),
	}
}
