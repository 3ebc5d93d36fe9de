package gguf

import "fmt"

// Type is the storage format of a tensor's elements, numbered as in ggml.
type Type uint32

// The formats that a model file may hold. Gaps are formats that ggml has removed.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q8_1   Type = 9
	Q2K    Type = 10
	Q3K    Type = 11
	Q4K    Type = 12
	Q5K    Type = 13
	Q6K    Type = 14
	Q8K    Type = 15
	IQ2XXS Type = 16
	IQ2XS  Type = 17
	IQ3XXS Type = 18
	IQ1S   Type = 19
	IQ4NL  Type = 20
	IQ3S   Type = 21
	IQ2S   Type = 22
	IQ4XS  Type = 23
	I8     Type = 24
	I16    Type = 25
	I32    Type = 26
	I64    Type = 27
	F64    Type = 28
	IQ1M   Type = 29
	BF16   Type = 30
	TQ1_0  Type = 34
	TQ2_0  Type = 35
	MXFP4  Type = 39
	NVFP4  Type = 40
	Q1_0   Type = 41
	Q2_0   Type = 42
)

// format is a row of the table of types: elements and bytes of one block.
type format struct {
	name     string
	elements uint64
	bytes    uint64
}

var formats = map[Type]format{
	F32:    {"f32", 1, 4},
	F16:    {"f16", 1, 2},
	Q4_0:   {"q4_0", 32, 18},
	Q4_1:   {"q4_1", 32, 20},
	Q5_0:   {"q5_0", 32, 22},
	Q5_1:   {"q5_1", 32, 24},
	Q8_0:   {"q8_0", 32, 34},
	Q8_1:   {"q8_1", 32, 36},
	Q2K:    {"q2_K", 256, 84},
	Q3K:    {"q3_K", 256, 110},
	Q4K:    {"q4_K", 256, 144},
	Q5K:    {"q5_K", 256, 176},
	Q6K:    {"q6_K", 256, 210},
	Q8K:    {"q8_K", 256, 292},
	IQ2XXS: {"iq2_xxs", 256, 66},
	IQ2XS:  {"iq2_xs", 256, 74},
	IQ3XXS: {"iq3_xxs", 256, 98},
	IQ1S:   {"iq1_s", 256, 50},
	IQ4NL:  {"iq4_nl", 32, 18},
	IQ3S:   {"iq3_s", 256, 110},
	IQ2S:   {"iq2_s", 256, 82},
	IQ4XS:  {"iq4_xs", 256, 136},
	I8:     {"i8", 1, 1},
	I16:    {"i16", 1, 2},
	I32:    {"i32", 1, 4},
	I64:    {"i64", 1, 8},
	F64:    {"f64", 1, 8},
	IQ1M:   {"iq1_m", 256, 56},
	BF16:   {"bf16", 1, 2},
	TQ1_0:  {"tq1_0", 256, 54},
	TQ2_0:  {"tq2_0", 256, 66},
	MXFP4:  {"mxfp4", 32, 17},
	NVFP4:  {"nvfp4", 64, 36},
	Q1_0:   {"q1_0", 128, 18},
	Q2_0:   {"q2_0", 64, 18},
}

// String is ggml's name, as `q4_K`, or `type 33` for a number that names no format.
func (t Type) String() string {
	if f, ok := formats[t]; ok {
		return f.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Known says whether t is a format of the pinned ggml.
func (t Type) Known() bool { _, ok := formats[t]; return ok }

// Block returns the elements and the bytes of one block; (0, 0) for an unknown format.
func (t Type) Block() (elements, bytes uint64) {
	f := formats[t]
	return f.elements, f.bytes
}

// RowSize returns the bytes of a row of n elements. ok is false where n is no multiple of the block, the format is
// unknown or the size does not fit.
func (t Type) RowSize(n uint64) (bytes uint64, ok bool) {
	f, known := formats[t]
	if !known || n%f.elements != 0 {
		return 0, false
	}
	return multiply(n/f.elements, f.bytes)
}

// multiply is a·b, as long as that fits an int64 (offsets into files are signed).
func multiply(a, b uint64) (uint64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	p := a * b
	return p, p/b == a && p < 1<<63
}
