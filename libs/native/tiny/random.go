package tiny

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// batch is the elements that are drawn and written at a time; a multiple of every block.
const batch = 16 << 10

// random is a tensor whose elements are drawn from the seed and its name, spread around mean.
func (s Spec) random(name string, typ gguf.Type, dims []uint64, mean, spread float64) gguf.TensorData {
	t := gguf.TensorData{Name: name, Dims: dims, Type: typ}
	n := 1
	for _, d := range dims {
		n *= int(d)
	}
	t.Write = func(w io.Writer) error {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // never fails
		rng := rand.NewPCG(s.Seed, h.Sum64())
		x := make([]float32, min(n, batch))
		b := make([]byte, 0, 4*len(x))
		for done := 0; done < n; done += len(x) {
			x = x[:min(len(x), n-done)]
			draw(rng, x, mean, spread)
			b = encode(b[:0], typ, x)
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
		return nil
	}
	return t
}

// draw fills x with values of a triangular distribution. The explicit conversions forbid the compiler to fuse product and
// sum, which would give other bits on other machines.
func draw(rng *rand.PCG, x []float32, mean, spread float64) {
	unit := spread * math.Sqrt(6) / (1 << 32) // the deviation of the sum of two 32-bit numbers is 2³²/√6
	for i := range x {
		r := rng.Uint64()
		sum := int64(r>>32) + int64(r&0xffffffff) - (1<<32 - 1)
		x[i] = float32(mean + float64(float64(sum)*unit))
	}
}

// encode appends x as typ.
func encode(b []byte, typ gguf.Type, x []float32) []byte {
	switch typ {
	case gguf.F16:
		return gguf.AppendFloat16s(b, x)
	case gguf.Q8_0:
		return appendQ8(b, x)
	}
	return gguf.AppendFloat32s(b, x)
}

// appendQ8 appends blocks of 32 as a scale in F16 and signed bytes.
func appendQ8(b []byte, x []float32) []byte {
	for ; len(x) > 0; x = x[32:] {
		var top float32
		for _, v := range x[:32] {
			top = max(top, v, -v)
		}
		scale := top / 127
		b = binary.LittleEndian.AppendUint16(b, gguf.Float16(scale))
		for _, v := range x[:32] {
			var q int8
			if scale > 0 {
				q = int8(math.RoundToEven(float64(v / scale)))
			}
			b = append(b, byte(q))
		}
	}
	return b
}

func sqrt(n int) float64 { return math.Sqrt(float64(n)) }
