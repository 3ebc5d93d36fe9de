package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// ValueType is the type of a metadata value, numbered as in GGUF.
type ValueType uint32

// The types of GGUF version 3.
const (
	TypeUint8   ValueType = 0
	TypeInt8    ValueType = 1
	TypeUint16  ValueType = 2
	TypeInt16   ValueType = 3
	TypeUint32  ValueType = 4
	TypeInt32   ValueType = 5
	TypeFloat32 ValueType = 6
	TypeBool    ValueType = 7
	TypeString  ValueType = 8
	TypeArray   ValueType = 9
	TypeUint64  ValueType = 10
	TypeInt64   ValueType = 11
	TypeFloat64 ValueType = 12
)

var valueNames = [...]string{"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64"}

// size of one scalar, 0 for strings, arrays and unknown types.
var valueSizes = [...]uint64{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

// String is the short name that llama.cpp uses, as `u32` or `arr`.
func (t ValueType) String() string {
	if int(t) < len(valueNames) {
		return valueNames[t]
	}
	return fmt.Sprintf("type %d", uint32(t))
}

func (t ValueType) size() uint64 {
	if int(t) < len(valueSizes) {
		return valueSizes[t]
	}
	return 0
}

// Value is a metadata value: a scalar, a string, or an array of either. The zero Value is no value. It never changes.
type Value struct {
	typ  ValueType
	elem ValueType // of an array
	n    int       // elements of an array; 1 otherwise
	raw  []byte    // numbers and bools, little-endian, one after the other
	text []string  // strings
}

// KeyValue is a metadata key with its value.
type KeyValue struct {
	Key   string
	Value Value
}

// Constructors for the writer. The slices are copied.

// Uint8 makes a u8 value.
func Uint8(x uint8) Value { return scalar(TypeUint8, []byte{x}) }

// Uint16 makes a u16 value.
func Uint16(x uint16) Value { return scalar(TypeUint16, binary.LittleEndian.AppendUint16(nil, x)) }

// Uint32 makes a u32 value.
func Uint32(x uint32) Value { return scalar(TypeUint32, binary.LittleEndian.AppendUint32(nil, x)) }

// Uint64 makes a u64 value.
func Uint64(x uint64) Value { return scalar(TypeUint64, binary.LittleEndian.AppendUint64(nil, x)) }

// Int32 makes an i32 value.
func Int32(x int32) Value { return scalar(TypeInt32, binary.LittleEndian.AppendUint32(nil, uint32(x))) }

// Int64 makes an i64 value.
func Int64(x int64) Value { return scalar(TypeInt64, binary.LittleEndian.AppendUint64(nil, uint64(x))) }

// Float32 makes an f32 value.
func Float32(x float32) Value {
	return scalar(TypeFloat32, binary.LittleEndian.AppendUint32(nil, math.Float32bits(x)))
}

// Float64 makes an f64 value.
func Float64(x float64) Value {
	return scalar(TypeFloat64, binary.LittleEndian.AppendUint64(nil, math.Float64bits(x)))
}

// Bool makes a bool value.
func Bool(x bool) Value {
	if x {
		return scalar(TypeBool, []byte{1})
	}
	return scalar(TypeBool, []byte{0})
}

// String makes a string value.
func String(s string) Value { return Value{typ: TypeString, n: 1, text: []string{s}} }

// Strings makes an array of strings.
func Strings(s []string) Value {
	return Value{typ: TypeArray, elem: TypeString, n: len(s), text: slices.Clone(s)}
}

// Float32s makes an array of f32.
func Float32s(x []float32) Value {
	raw := make([]byte, 0, 4*len(x))
	for _, v := range x {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return Value{typ: TypeArray, elem: TypeFloat32, n: len(x), raw: raw}
}

// Uint64s makes an array of u64.
func Uint64s(x []uint64) Value {
	raw := make([]byte, 0, 8*len(x))
	for _, n := range x {
		raw = binary.LittleEndian.AppendUint64(raw, n)
	}
	return Value{typ: TypeArray, elem: TypeUint64, n: len(x), raw: raw}
}

// Int32s makes an array of i32.
func Int32s(x []int32) Value {
	raw := make([]byte, 0, 4*len(x))
	for _, v := range x {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
	}
	return Value{typ: TypeArray, elem: TypeInt32, n: len(x), raw: raw}
}

// Bools makes an array of bool.
func Bools(x []bool) Value {
	raw := make([]byte, len(x))
	for i, v := range x {
		if v {
			raw[i] = 1
		}
	}
	return Value{typ: TypeArray, elem: TypeBool, n: len(x), raw: raw}
}

func scalar(t ValueType, raw []byte) Value { return Value{typ: t, n: 1, raw: raw} }

// Type is the value's type.
func (v Value) Type() ValueType { return v.typ }

// Elem is the type of an array's elements, or Type for anything else.
func (v Value) Elem() ValueType {
	if v.typ == TypeArray {
		return v.elem
	}
	return v.typ
}

// Len is the number of elements of an array, and 1 for anything else.
func (v Value) Len() int { return v.n }

// Text is the string; ok is false for other types.
func (v Value) Text() (s string, ok bool) {
	if v.typ != TypeString {
		return "", false
	}
	return v.text[0], true
}

// Texts is the array of strings, which the caller must not change; ok is false for other types.
func (v Value) Texts() (s []string, ok bool) {
	if v.typ != TypeArray || v.elem != TypeString {
		return nil, false
	}
	return v.text, true
}

// Bool is the truth value; ok is false for other types.
func (v Value) Bool() (b, ok bool) {
	if v.typ != TypeBool {
		return false, false
	}
	return v.raw[0] != 0, true
}

// Uint is a whole number that is not negative, of any integer type; ok is false otherwise.
func (v Value) Uint() (uint64, bool) {
	if v.typ == TypeArray {
		return 0, false
	}
	return v.uintAt(0)
}

// UintAt is element i of an array, or the scalar itself for every i, under the rule of Uint; ok is false where there is
// no such element.
func (v Value) UintAt(i int) (uint64, bool) {
	if v.typ != TypeArray {
		return v.uintAt(0)
	}
	if i < 0 || i >= v.n {
		return 0, false
	}
	return v.uintAt(i)
}

func (v Value) uintAt(i int) (uint64, bool) {
	size := int(v.Elem().size())
	if len(v.raw) < (i+1)*size || size == 0 {
		return 0, false
	}
	b := v.raw[i*size:]
	switch v.Elem() {
	case TypeUint8, TypeBool:
		return uint64(b[0]), true
	case TypeUint16:
		return uint64(binary.LittleEndian.Uint16(b)), true
	case TypeUint32:
		return uint64(binary.LittleEndian.Uint32(b)), true
	case TypeUint64:
		return binary.LittleEndian.Uint64(b), true
	}
	x, ok := signed(v.Elem(), b)
	return uint64(x), ok && x >= 0
}

// signed decodes a signed integer.
func signed(t ValueType, b []byte) (int64, bool) {
	switch t {
	case TypeInt8:
		return int64(int8(b[0])), true
	case TypeInt16:
		return int64(int16(binary.LittleEndian.Uint16(b))), true
	case TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(b))), true
	case TypeInt64:
		return int64(binary.LittleEndian.Uint64(b)), true
	}
	return 0, false
}

// Float is the number of an f32 or f64 value; ok is false for other types.
func (v Value) Float() (float64, bool) {
	switch v.typ {
	case TypeFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.raw))), true
	case TypeFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.raw)), true
	}
	return 0, false
}

// equal says whether both have the same type and content.
func (v Value) equal(w Value) bool {
	return v.typ == w.typ && v.elem == w.elem && v.n == w.n && slices.Equal(v.raw, w.raw) && slices.Equal(v.text, w.text)
}

// append encodes type and content as in GGUF version 3.
func (v Value) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(v.typ))
	if v.typ == TypeArray {
		b = binary.LittleEndian.AppendUint32(b, uint32(v.elem))
		b = binary.LittleEndian.AppendUint64(b, uint64(v.n))
	}
	for _, s := range v.text {
		b = appendString(b, s)
	}
	return append(b, v.raw...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}
