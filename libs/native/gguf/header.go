package gguf

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

const defaultAlignment = 32

// header is what one file says about itself, checked against its size.
type header struct {
	path      string
	size      uint64 // of the file
	version   uint32
	alignment uint64
	data      uint64 // offset of the tensor data
	kv        Metadata
	tensors   []Tensor // Part is not set
}

// readHeader decodes and checks the header of a file of size bytes.
func readHeader(path string, r io.Reader, size uint64) (*header, error) {
	d := newDecoder(path, r, size)
	h := &header{path: path, size: size}
	keys, tensors, err := h.preamble(d)
	if err != nil {
		return nil, err
	}
	if err := h.readKeys(d, keys); err != nil {
		return nil, err
	}
	if err := h.readAlignment(); err != nil {
		return nil, err
	}
	if err := h.readTensors(d, tensors); err != nil {
		return nil, err
	}
	return h, h.place(d.off)
}

// preamble reads magic, version and counts.
func (h *header) preamble(d *decoder) (keys, tensors uint64, err error) {
	if d.size == 0 {
		return 0, 0, bad(h.path, "is empty: %s", fetchAgain)
	}
	var magic [4]byte
	if err := d.bytes(magic[:]); err != nil {
		return 0, 0, err
	}
	if string(magic[:]) != "GGUF" {
		return 0, 0, bad(h.path, "is no GGUF file: it begins with %q where GGUF files begin with \"GGUF\"%s", magic[:], hint(magic))
	}
	d.at = "the version"
	if h.version, err = d.u32(); err != nil {
		return 0, 0, err
	}
	switch {
	case h.version == 2 || h.version == 3:
	case h.version != 0 && h.version&0xffff == 0:
		return 0, 0, bad(h.path, "is big-endian, which is not supported: convert the model for little-endian machines")
	case h.version > 3:
		return 0, 0, bad(h.path, "has GGUF version %d where 2 and 3 are supported: upgrade DGR or convert the model to version 3", h.version)
	default:
		return 0, 0, bad(h.path, "has GGUF version %d where 2 and 3 are supported: convert the model again with a current llama.cpp", h.version)
	}
	d.at = "the counts"
	if tensors, err = d.u64(); err != nil {
		return 0, 0, err
	}
	if keys, err = d.u64(); err != nil {
		return 0, 0, err
	}
	if tensors > maxTensors || keys > maxKeys {
		return 0, 0, bad(h.path, "is corrupt: it claims %d tensors and %d keys where %d and %d are the limit: %s",
			tensors, keys, maxTensors, maxKeys, fetchAgain)
	}
	return keys, tensors, nil
}

// hint says what a file without the magic number is likely to be.
func hint(magic [4]byte) string {
	switch {
	case string(magic[:]) == "vers":
		return ": it looks like a Git LFS pointer, fetch the real file with `git lfs pull`"
	case string(magic[:2]) == "PK", magic[0] == 0x80:
		return ": it looks like a PyTorch checkpoint, convert it with llama.cpp's convert_hf_to_gguf.py"
	case magic[0] == '<':
		return ": it looks like a web page, download the file itself"
	case string(magic[:]) == "lmgg", string(magic[:]) == "fmgg", string(magic[:]) == "tjgg":
		return ": it is of the older GGML format, convert it again with a current llama.cpp"
	}
	return ": check the path, or fetch the file again"
}

func (h *header) readKeys(d *decoder, n uint64) error {
	for i := range n {
		d.at = fmt.Sprintf("key %d of %d", i+1, n)
		key, err := d.text(maxKey)
		if err != nil {
			return err
		}
		if !validName(key) {
			return bad(h.path, "is corrupt: the name of %s is %q: %s", d.at, key, fetchAgain)
		}
		d.at = fmt.Sprintf("the value of key %q", key)
		v, err := d.value()
		if err != nil {
			return err
		}
		if !h.kv.add(key, v) {
			return bad(h.path, "has the key %q twice: %s", key, convertAgain)
		}
	}
	return nil
}

func (h *header) readAlignment() error {
	h.alignment = defaultAlignment
	v, ok := h.kv.Get("general.alignment")
	if !ok {
		return nil
	}
	a, _ := v.Uint()
	if v.Type() != TypeUint32 || a == 0 || a&(a-1) != 0 || a > 1<<20 {
		return bad(h.path, "has no usable general.alignment: it must be a u32 power of two of at most 1 MiB: %s", convertAgain)
	}
	h.alignment = a
	return nil
}

func (h *header) readTensors(d *decoder, n uint64) error {
	// 25 bytes is the shortest entry, so a lying count cannot make this large
	h.tensors = make([]Tensor, 0, min(n, d.left()/25))
	names := make(map[string]bool, min(n, d.left()/25))
	for i := range n {
		d.at = fmt.Sprintf("the entry of tensor %d of %d", i+1, n)
		t, err := h.readTensor(d)
		if err != nil {
			return err
		}
		if names[t.Name] {
			return bad(h.path, "has the tensor %q twice: %s", t.Name, convertAgain)
		}
		names[t.Name] = true
		h.tensors = append(h.tensors, t)
	}
	return nil
}

// readTensor reads one entry and works out the size; Offset is still relative to the data.
func (h *header) readTensor(d *decoder) (t Tensor, err error) {
	if t.Name, err = d.text(maxName); err != nil {
		return t, err
	}
	if !validName(t.Name) {
		return t, bad(h.path, "is corrupt: the name in %s is %q: %s", d.at, t.Name, fetchAgain)
	}
	d.at = fmt.Sprintf("the entry of tensor %q", t.Name)
	n, err := d.u32()
	if err != nil {
		return t, err
	}
	if n > maxDims {
		return t, bad(h.path, "is corrupt: tensor %q claims %d dimensions where %d are the limit: %s", t.Name, n, maxDims, fetchAgain)
	}
	t.Dims = make([]uint64, n)
	for i := range t.Dims {
		if t.Dims[i], err = d.u64(); err != nil {
			return t, err
		}
	}
	typ, err := d.u32()
	if err != nil {
		return t, err
	}
	t.Type = Type(typ)
	if t.Offset, err = d.u64(); err != nil {
		return t, err
	}
	t.Size, err = h.tensorSize(t)
	return t, err
}

// tensorSize checks type and shape and returns the bytes of the data.
func (h *header) tensorSize(t Tensor) (uint64, error) {
	if !t.Type.Known() {
		return 0, bad(h.path, "has tensor %q of the unknown %s: upgrade DGR, or quantize the model to another type", t.Name, t.Type)
	}
	if _, ok := t.elements(); !ok {
		return 0, bad(h.path, "is corrupt: tensor %q of shape %s has more elements than fit: %s", t.Name, t.Shape(), fetchAgain)
	}
	row, ok := t.Type.RowSize(t.dim(0))
	if !ok {
		block, _ := t.Type.Block()
		return 0, bad(h.path, "has tensor %q with rows of %d elements, no multiple of the %d of a block of %s: %s",
			t.Name, t.dim(0), block, t.Type, convertAgain)
	}
	size := row
	for i := 1; i < maxDims && ok; i++ {
		size, ok = multiply(size, t.dim(i))
	}
	if !ok {
		return 0, bad(h.path, "is corrupt: tensor %q of shape %s has more bytes than fit: %s", t.Name, t.Shape(), fetchAgain)
	}
	return size, nil
}

// place checks that the tensors lie one after the other, each padded to the alignment, inside the file, and turns their
// offsets into offsets of the file. end is where the header ended.
func (h *header) place(end uint64) error {
	h.data = pad(end, h.alignment)
	var next uint64
	for i := range h.tensors {
		t := &h.tensors[i]
		if t.Offset != next {
			return h.misplaced(i, next)
		}
		if next > h.size || t.Size > h.size-next || h.data > h.size-next-t.Size {
			return bad(h.path, "is truncated: tensor %q needs %d bytes from byte %d on, the file has %d: %s",
				t.Name, t.Size, h.data+next, h.size, fetchAgain)
		}
		next = pad(next+t.Size, h.alignment)
		t.Offset += h.data
	}
	return nil
}

// misplaced says in which way tensor i is not where it must be.
func (h *header) misplaced(i int, want uint64) error {
	t := h.tensors[i]
	switch {
	case t.Offset%h.alignment != 0:
		return bad(h.path, "has tensor %q at offset %d, no multiple of the alignment %d: %s", t.Name, t.Offset, h.alignment, convertAgain)
	case t.Offset < want && i > 0:
		return bad(h.path, "has overlapping tensors: %q begins at offset %d, inside or before %q: %s", t.Name, t.Offset, h.tensors[i-1].Name, convertAgain)
	}
	return bad(h.path, "has a gap before tensor %q: it begins at offset %d where %d was expected: %s", t.Name, t.Offset, want, convertAgain)
}

// validName refuses names that native code would cut at a zero byte or that cannot be printed.
func validName(s string) bool {
	return s != "" && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

func pad(n, alignment uint64) uint64 { return (n + alignment - 1) &^ (alignment - 1) }
