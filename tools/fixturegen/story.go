package fixturegen

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/cachehash"
)

// The model of the story: 12 layers, rows of 64 values, 512 tokens of vocabulary, over three workers of four layers.
const (
	layers       = 12
	width        = 64
	vocabulary   = 512
	contextLimit = 2048
	frameBytes   = 65536
	windowBytes  = 1 << 20
)

// prompt is what the driver prefills; the answer begins behind it.
var prompt = []uint32{1, 100, 101, 102, 103, 104}

// name16 is a stable stand-in for 16 random bytes.
func name16(s string) []byte { return name32(s)[:16] }

// name32 is a stable stand-in for 32 random bytes or a SHA-256.
func name32(s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return sum[:]
}

func fingerprint() []byte { return name32("the model of the fixtures") }

// chainHash is the hash of the cache that holds these tokens.
func chainHash(tokens ...uint32) []byte {
	h := cachehash.Start([32]byte(fingerprint()))
	for _, t := range tokens {
		h = h.Next(t)
	}
	return h[:]
}

// holds is a cache of these tokens that can go back to any length.
func holds(tokens ...uint32) *workerpb.CacheState {
	return &workerpb.CacheState{
		Length: num(len(tokens)), ChainHash: chainHash(tokens...),
		Reach: []*workerpb.LengthSpan{{From: num(0), To: num(len(tokens))}},
	}
}

func expects(tokens ...uint32) *workerpb.ExpectCache {
	return &workerpb.ExpectCache{Length: num(len(tokens)), ChainHash: chainHash(tokens...)}
}

func num(n int) *uint32       { return proto.Uint32(uint32(n)) }
func big(n uint64) *uint64    { return proto.Uint64(n) }
func real(x float32) *float32 { return proto.Float32(x) }

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// rows is a payload of n rows of w values that a reader can check: value i is i/8, so exact in every encoding.
func rows(n, w int) *workerpb.Boundary {
	data := make([]byte, 0, n*w*4)
	for i := range n * w {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i)/8))
	}
	return &workerpb.Boundary{
		Rows: uint32(n), Width: uint32(w), Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32,
		Size: uint64(len(data)), Data: data,
	}
}

// announced is a payload that follows in frames.
func announced(n, w int) *workerpb.Boundary {
	return &workerpb.Boundary{
		Rows: uint32(n), Width: uint32(w), Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: uint64(n) * uint64(w) * 4,
	}
}

func hidden() *workerpb.BoundaryLayout {
	return &workerpb.BoundaryLayout{Width: width, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Layout: "hidden"}
}

func worker(hop int) string { return []string{"w1", "w2", "w3"}[hop] }

func instance(hop int) []byte { return name16("engine of " + worker(hop)) }

func hopRef(hop int) *workerpb.HopRef {
	return &workerpb.HopRef{Index: num(hop), WorkerId: worker(hop), Instance: instance(hop)}
}

func layersOf(hop int) *workerpb.LayerRange {
	return &workerpb.LayerRange{First: num(4 * hop), End: uint32(4*hop + 4)}
}

func address(hop int) string { return worker(hop) + ".example:7000" }

func revisions() *workerpb.RevisionRange { return &workerpb.RevisionRange{Min: 1, Max: 1} }

func numerics() *workerpb.Numerics {
	return &workerpb.Numerics{
		Backend: "cpu", InstructionSet: "avx2", Threads: 4, FlashAttention: true, CacheType: "f16", MicroBatch: 512, Deterministic: true,
		Build: name32("pin, patches and flags"),
	}
}

func ability() *workerpb.CacheAbility {
	return &workerpb.CacheAbility{
		Truncate: workerpb.TruncateAbility_TRUNCATE_ABILITY_ANY, Copy: workerpb.CopyAbility_COPY_ABILITY_PREFIX,
		Marks: num(4), Capacity: contextLimit,
	}
}

func usage() *workerpb.Usage {
	return &workerpb.Usage{
		TokensEvaluated: 70, TokensSampled: 64, BytesIn: 4096, BytesOut: 8192, Compute: duration(1250 * time.Millisecond), TokenSeconds: 560,
	}
}
