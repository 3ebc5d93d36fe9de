package fake

import (
	"encoding/binary"
	"math"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of splitmix64: a bijection that spreads every bit.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// model is the arithmetic of one shard.
type model struct {
	options Options
	layers  engine.LayerRange
}

func (m *model) depth() int { return int(m.layers.End - m.layers.First) }
func (m *model) head() bool { return m.layers.First == 0 }
func (m *model) tail() bool { return m.layers.End == m.options.NLayer }

// embed fills row with the token's embedding.
func (m *model) embed(row []float32, token engine.TokenID) {
	spread(row, mix(m.options.Seed*golden+uint64(token)+1))
}

// spread fills row with whole numbers below 2^24 that follow from state.
func spread(row []float32, state uint64) {
	for i := range row {
		row[i] = float32(mix(state+uint64(i)*golden) >> 40)
	}
}

// fold is the state that follows from a row and the state before it.
func fold(state uint64, row []float32) uint64 {
	for _, value := range row {
		state = mix(state + golden ^ uint64(math.Float32bits(value)))
	}
	return state
}

// forward runs row through the shard's layers in place. before holds a state per layer after the token before (nil at
// position 0); after gets the states with this token.
func (m *model) forward(row []float32, before, after []uint64) {
	for i := range after {
		state := mix(m.options.Seed ^ uint64(m.layers.First+uint32(i)+1)<<32)
		if before != nil {
			state ^= before[i]
		}
		after[i] = fold(state, row)
		spread(row, after[i])
	}
}

// logits fills out with the logits that follow from the last layer's row, after length tokens. All are multiples of 2^-13,
// exact in float32. Letters and the space are likely, so that what it says can be read.
func (m *model) logits(out []float32, row []float32, length engine.Pos) {
	state := fold(m.options.Seed, row)
	for id := range out {
		value := float32(mix(state+uint64(id)*golden)>>48) / 8192 // 0 ≤ value < 8
		if readable(engine.TokenID(id)) {
			value += 8
		}
		out[id] = value
	}
	out[EndOfText] = -8
	if end := m.options.EndAt; end > 0 && length >= end {
		out[EndOfText] = 32
	}
}

// decodeRow reads one row from its bytes and says whether all of it is finite.
func decodeRow(row []float32, data []byte) bool {
	finite := true
	for i := range row {
		value := math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		row[i] = value
		finite = finite && !math.IsNaN(float64(value)) && !math.IsInf(float64(value), 0)
	}
	return finite
}

func appendRow(data []byte, row []float32) []byte {
	for _, value := range row {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(value))
	}
	return data
}
