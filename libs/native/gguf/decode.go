package gguf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"strings"
)

// Limits of a header. Real models stay far below each.
const (
	maxHeader   = 256 << 20 // bytes
	maxKeys     = 16 << 10  // llama.cpp compares each with each
	maxTensors  = 32 << 10  // the same
	maxElements = 2 << 20   // of one array
	maxString   = 64 << 20  // bytes
	maxName     = 63        // bytes of a tensor's name
	maxKey      = 65535     // bytes of a key
	maxDims     = 4
	chunk       = 1 << 20 // largest single allocation on the word of a count, bytes
)

// decoder reads little-endian values from a header and knows where it is.
type decoder struct {
	path string
	r    *bufio.Reader
	off  uint64 // bytes read
	end  uint64 // bytes that the file, or the limit, allows
	size uint64 // bytes of the file
	// what is being read, for the sentence of an error, as `the value of key "x"`
	at string
}

func newDecoder(path string, r io.Reader, size uint64) *decoder {
	return &decoder{path: path, r: bufio.NewReaderSize(r, 64<<10), end: min(size, maxHeader), size: size, at: "the magic number"}
}

// left is the bytes that may still be read.
func (d *decoder) left() uint64 { return d.end - d.off }

// short is the error for a header that goes on where the file does not.
func (d *decoder) short() error {
	if d.end < d.size {
		return bad(d.path, "has a header of more than %d MiB, which no real model has: %s", maxHeader>>20, fetchAgain)
	}
	return bad(d.path, "is truncated: it ends after %d bytes, inside %s: %s", d.size, d.at, fetchAgain)
}

// bytes fills b.
func (d *decoder) bytes(b []byte) error {
	if uint64(len(b)) > d.left() {
		return d.short()
	}
	n, err := io.ReadFull(d.r, b)
	d.off += uint64(n)
	if err != nil {
		return d.failed(err)
	}
	return nil
}

// failed is the error for bytes that should have been there.
func (d *decoder) failed(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return bad(d.path, "became shorter while it was read: wait until it is complete, then try again")
	}
	return badIO(d.path, err)
}

// peek returns the next n bytes, 1 to 512, without a copy; they hold until the next call.
func (d *decoder) peek(n int) ([]byte, error) {
	if uint64(n) > d.left() {
		return nil, d.short()
	}
	b, err := d.r.Peek(n)
	if err != nil {
		return nil, d.failed(err)
	}
	_, _ = d.r.Discard(n) // what was peeked is buffered
	d.off += uint64(n)
	return b, nil
}

func (d *decoder) u32() (uint32, error) {
	b, err := d.peek(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (d *decoder) u64() (uint64, error) {
	b, err := d.peek(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// block reads n bytes, allocating only as they come.
func (d *decoder) block(n uint64) ([]byte, error) {
	if n > d.left() {
		return nil, d.short()
	}
	if n <= chunk {
		b := make([]byte, n)
		return b, d.bytes(b)
	}
	b := make([]byte, 0, chunk)
	for uint64(len(b)) < n {
		from := len(b)
		b = append(b, make([]byte, min(chunk, n-uint64(from)))...)
		if err := d.bytes(b[from:]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// text reads a string of at most limit bytes.
func (d *decoder) text(limit uint64) (string, error) {
	n, err := d.u64()
	if err != nil {
		return "", err
	}
	if n > limit {
		return "", bad(d.path, "is corrupt: %s claims %d bytes where %d are the limit: %s", d.at, n, limit, fetchAgain)
	}
	if n <= 512 {
		b, err := d.peek(int(n))
		return string(b), err
	}
	b, err := d.block(n)
	return string(b), err
}

// value reads a metadata value, type included.
func (d *decoder) value() (Value, error) {
	t, err := d.u32()
	if err != nil {
		return Value{}, err
	}
	v := Value{typ: ValueType(t), n: 1}
	if v.typ != TypeArray {
		return d.items(v, v.typ, 1)
	}
	if t, err = d.u32(); err != nil {
		return Value{}, err
	}
	n, err := d.u64()
	if err != nil {
		return Value{}, err
	}
	v.elem = ValueType(t)
	if v.elem == TypeArray {
		return Value{}, bad(d.path, "has an array of arrays as %s, which llama.cpp cannot read: convert the model again", d.at)
	}
	if n > maxElements {
		return Value{}, bad(d.path, "is corrupt: %s claims %d elements where %d are the limit: %s", d.at, n, maxElements, fetchAgain)
	}
	v.n = int(n)
	return d.items(v, v.elem, n)
}

// items reads n elements of type t into v.
func (d *decoder) items(v Value, t ValueType, n uint64) (Value, error) {
	if t == TypeString {
		if n > d.left()/8 {
			return Value{}, d.short()
		}
		v.text = make([]string, 0, min(n, chunk/16))
		for range n {
			s, err := d.text(maxString)
			if err != nil {
				return Value{}, err
			}
			v.text = append(v.text, s)
		}
		return v, nil
	}
	size := t.size()
	if size == 0 {
		return Value{}, bad(d.path, "is corrupt: %s has the unknown type %d: %s", d.at, uint32(t), fetchAgain)
	}
	var err error
	if v.raw, err = d.block(n * size); err != nil {
		return Value{}, err
	}
	if t == TypeBool && strings.Trim(string(v.raw), "\x00\x01") != "" {
		return Value{}, bad(d.path, "is corrupt: %s is a truth value that is neither 0 nor 1: %s", d.at, fetchAgain)
	}
	return v, nil
}
