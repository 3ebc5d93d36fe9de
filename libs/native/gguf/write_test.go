package gguf

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriteIsDeterministic(t *testing.T) {
	a, err := os.ReadFile(writeSmall(t))
	require.NoError(t, err)
	b, err := os.ReadFile(writeSmall(t))
	require.NoError(t, err)
	require.Equal(t, a, b)
}

func TestWriteHonoursAlignment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, Write(path, append(smallKeys(), KeyValue{"general.alignment", Uint32(4096)}), smallTensors()))
	for _, x := range open(t, path).Tensors {
		require.Zero(t, x.Offset%4096, x.Name)
	}
}

func TestWriteRefuses(t *testing.T) {
	boom := errors.New("boom")
	good := smallTensors
	tests := map[string]struct {
		kv      []KeyValue
		tensors []TensorData
	}{
		"key twice":      {append(smallKeys(), smallKeys()[0]), good()},
		"split key":      {append(smallKeys(), KeyValue{"split.no", Uint16(0)}), good()},
		"bad alignment":  {append(smallKeys(), KeyValue{"general.alignment", Uint32(7)}), good()},
		"tensor twice":   {smallKeys(), append(good(), good()[0])},
		"half a block":   {smallKeys(), []TensorData{{Name: "x", Dims: []uint64{31}, Type: Q8_0, Write: Bytes(nil)}}},
		"too many dims":  {smallKeys(), []TensorData{{Name: "x", Dims: []uint64{1, 1, 1, 1, 1}, Type: F32, Write: Bytes(make([]byte, 4))}}},
		"too few bytes":  {smallKeys(), []TensorData{{Name: "x", Dims: []uint64{2}, Type: F32, Write: Bytes(make([]byte, 4))}}},
		"too many bytes": {smallKeys(), []TensorData{{Name: "x", Dims: []uint64{2}, Type: F32, Write: Bytes(make([]byte, 12))}}},
		"failing source": {smallKeys(), []TensorData{{Name: "x", Dims: []uint64{2}, Type: F32, Write: func(io.Writer) error { return boom }}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := Write(filepath.Join(dir, "m.gguf"), tt.kv, tt.tensors)
			require.Error(t, err)
			if name == "failing source" {
				require.ErrorIs(t, err, boom)
			}
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, left, "nothing is left behind")
		})
	}
}

func TestWriteStopsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	w := Writer{Progress: func(done, total uint64) {
		require.LessOrEqual(t, done, total)
		cancel()
	}}
	require.ErrorIs(t, w.Write(ctx, filepath.Join(dir, "m.gguf"), smallKeys(), smallTensors()), context.Canceled)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestWritePartsRefusesCounts(t *testing.T) {
	for _, n := range []int{-1, 0, 1, 65536} {
		_, err := Writer{}.WriteParts(t.Context(), "m.gguf", n, false, nil, nil)
		require.ErrorContains(t, err, "2 to 65535")
	}
}

func TestFloat16(t *testing.T) {
	for _, tt := range []struct {
		f    float32
		want uint16
	}{
		{0, 0}, {float32(math.Copysign(0, -1)), 0x8000}, {1, 0x3c00}, {-2, 0xc000}, {65504, 0x7bff}, {65519, 0x7bff}, {65520, 0x7c00},
		{1e10, 0x7c00}, {float32(math.Inf(-1)), 0xfc00}, {5.9604645e-8, 1}, {2.9802322e-8, 0}, {2.9802326e-8, 1}, {6.1035156e-5, 0x0400},
		{6.097555e-5, 0x03ff}, {1.0004883, 0x3c00}, {1.0014648, 0x3c02}, {0.1, 0x2e66}, {1e-20, 0},
	} {
		require.Equal(t, tt.want, Float16(tt.f), "%g", tt.f)
	}
	require.Equal(t, uint16(0x7e00), Float16(float32(math.NaN()))&0x7e00)
}

func TestRowSizes(t *testing.T) {
	for typ, f := range formats {
		n, ok := typ.RowSize(3 * f.elements)
		require.True(t, ok)
		require.Equal(t, 3*f.bytes, n)
		if f.elements > 1 {
			_, ok = typ.RowSize(f.elements + 1)
			require.False(t, ok, typ)
		}
		_, ok = typ.RowSize(1 << 63)
		require.Equal(t, f.bytes < f.elements, ok, "%s: sizes must fit an int64", typ)
	}
	_, ok := Type(5).RowSize(32)
	require.False(t, ok)
	require.Equal(t, "type 5", Type(5).String())
}

// TestBlocks adds up the fields of ggml's blocks: scales in f16 (2 bytes each), then packed scales and quants.
func TestBlocks(t *testing.T) {
	want := map[Type][2]uint64{
		F32: {1, 4}, F16: {1, 2}, BF16: {1, 2}, F64: {1, 8}, I8: {1, 1}, I16: {1, 2}, I32: {1, 4}, I64: {1, 8},
		Q1_0: {128, 2 + 128/8}, Q2_0: {64, 2 + 64/4}, Q4_0: {32, 2 + 32/2}, Q4_1: {32, 2*2 + 32/2},
		Q5_0: {32, 2 + 4 + 32/2}, Q5_1: {32, 2*2 + 4 + 32/2}, Q8_0: {32, 2 + 32}, Q8_1: {32, 2*2 + 32},
		Q2K: {256, 2*2 + 256/16 + 256/4}, Q3K: {256, 2 + 256/4 + 256/8 + 12}, Q4K: {256, 2*2 + 12 + 256/2},
		Q5K: {256, 2*2 + 12 + 256/2 + 256/8}, Q6K: {256, 2 + 256/16 + 3*256/4}, Q8K: {256, 4 + 256 + 256/16*2},
		IQ1S: {256, 2 + 256/8 + 256/16}, IQ1M: {256, 256/8 + 256/16 + 256/32},
		IQ2XXS: {256, 2 + 256/8*2}, IQ2XS: {256, 2 + 256/8*2 + 256/32}, IQ2S: {256, 2 + 256/4 + 256/16},
		IQ3XXS: {256, 2 + 3*256/8}, IQ3S: {256, 2 + 13*256/32 + 256/64}, IQ4NL: {32, 2 + 32/2}, IQ4XS: {256, 2 + 2 + 256/64 + 256/2},
		TQ1_0: {256, 2 + 256/64 + (256-4*256/64)/5}, TQ2_0: {256, 2 + 256/4}, MXFP4: {32, 1 + 32/2}, NVFP4: {64, 64/16 + 64/2},
	}
	require.Len(t, formats, len(want))
	for typ, w := range want {
		elements, bytes := typ.Block()
		require.Equal(t, w, [2]uint64{elements, bytes}, typ)
	}
}

func TestValues(t *testing.T) {
	number := func(v Value) uint64 { n, ok := v.Uint(); require.True(t, ok); return n }
	require.EqualValues(t, 200, number(Uint8(200)))
	require.EqualValues(t, 60000, number(Uint16(60000)))
	require.EqualValues(t, 1<<31, number(Uint32(1<<31)))
	require.EqualValues(t, uint64(1<<63), number(Uint64(1<<63)))
	require.EqualValues(t, 7, number(Int32(7)))
	require.EqualValues(t, 8, number(Int64(8)))
	for _, v := range []Value{Int32(-1), Int64(-1), String("1"), Float32(1), Strings([]string{"1"}), Int32s([]int32{1}), {}} {
		_, ok := v.Uint()
		require.False(t, ok, "%v", v)
	}
	n, ok := Int32s([]int32{4, 5}).UintAt(1)
	require.True(t, ok)
	require.EqualValues(t, 5, n)
	_, ok = Int32s([]int32{4, 5}).UintAt(2)
	require.False(t, ok)
	_, ok = Int32s([]int32{4, -5}).UintAt(1)
	require.False(t, ok)
	n, ok = Uint32(9).UintAt(77)
	require.True(t, ok)
	require.EqualValues(t, 9, n)
	x, ok := Float64(2.5).Float()
	require.True(t, ok)
	require.Equal(t, 2.5, x)
	x, ok = Float32(0.5).Float()
	require.True(t, ok)
	require.Equal(t, 0.5, x)
	b, ok := Bool(true).Bool()
	require.True(t, b && ok)
	_, ok = Uint8(1).Bool()
	require.False(t, ok)
}

func TestWriteHollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hollow.gguf")
	require.NoError(t, WriteHollow(path, smallKeys(), smallTensors()))
	m := open(t, path)
	whole := open(t, writeSmall(t))
	require.Equal(t, whole.Tensors, m.Tensors)
	require.Equal(t, whole.Parts[0].State.Size, m.Parts[0].State.Size)
	require.Error(t, WriteHollow(path, append(smallKeys(), smallKeys()[0]), nil))
}
