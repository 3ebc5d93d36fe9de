package gguf

import (
	"strconv"
	"strings"
)

// Tensor is one entry of a model's directory.
type Tensor struct {
	Name   string
	Dims   []uint64 // as in the file, innermost first; 0 to 4 of them, missing ones are 1
	Type   Type
	Part   int    // index into Model.Paths
	Offset uint64 // of the data in that file, bytes
	Size   uint64 // of the data, bytes
}

// dim is dimension i, 1 where the file has none.
func (t Tensor) dim(i int) uint64 {
	if i < len(t.Dims) {
		return t.Dims[i]
	}
	return 1
}

// Elements is the number of elements.
func (t Tensor) Elements() uint64 { n, _ := t.elements(); return n }

func (t Tensor) elements() (n uint64, ok bool) {
	n, ok = 1, true
	for i := 0; i < maxDims && ok; i++ {
		n, ok = multiply(n, t.dim(i))
	}
	return n, ok
}

// Shape is as `64 × 512`.
func (t Tensor) Shape() string {
	s := make([]string, len(t.Dims))
	for i, d := range t.Dims {
		s[i] = strconv.FormatUint(d, 10)
	}
	return strings.Join(s, " × ")
}
