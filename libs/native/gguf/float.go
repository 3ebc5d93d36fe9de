package gguf

import (
	"encoding/binary"
	"math"
)

// Float16 is f rounded to IEEE half precision, to nearest, ties to even; too large becomes infinity, NaN stays NaN.
func Float16(f float32) uint16 {
	b := math.Float32bits(f)
	sign, exp, frac := uint16(b>>16)&0x8000, int(b>>23&0xff)-127+15, b&0x7fffff
	switch {
	case b&0x7fffffff > 0x7f800000:
		return sign | 0x7e00
	case exp >= 31:
		return sign | 0x7c00
	case exp < -10:
		return sign
	case exp <= 0: // subnormal
		return sign | roundEven(frac|0x800000, uint(14-exp), 0)
	}
	return sign | roundEven(frac, 13, uint16(exp)<<10)
}

// roundEven shifts x right by n, rounding to even, and adds base; a carry runs into the exponent as it should.
func roundEven(x uint32, n uint, base uint16) uint16 {
	r := base + uint16(x>>n)
	rest, half := x&(1<<n-1), uint32(1)<<(n-1)
	if rest > half || rest == half && r&1 == 1 {
		r++
	}
	return r
}

// AppendFloat16s appends each value as F16, little-endian.
func AppendFloat16s(b []byte, x []float32) []byte {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint16(b, Float16(v))
	}
	return b
}

// AppendFloat32s appends each value as F32, little-endian.
func AppendFloat32s(b []byte, x []float32) []byte {
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
