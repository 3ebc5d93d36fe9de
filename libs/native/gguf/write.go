package gguf

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// TensorData is a tensor to be written.
type TensorData struct {
	Name string
	Dims []uint64 // innermost first, 1 to 4
	Type Type
	// Write writes exactly the bytes that type and shape ask for. It is called once per file that is written.
	Write func(io.Writer) error
}

// Bytes is a TensorData.Write for data in memory.
func Bytes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error { _, err := w.Write(b); return err }
}

// Size is the bytes of the data; ok is false where type and shape do not go together.
func (t TensorData) Size() (uint64, bool) {
	probe := Tensor{Name: t.Name, Dims: t.Dims, Type: t.Type}
	size, err := (&header{}).tensorSize(probe)
	return size, err == nil && len(t.Dims) <= maxDims
}

// Writer writes model files. The zero Writer is ready.
type Writer struct {
	// Progress, if not nil, is called with the bytes of tensor data written so far and in all.
	Progress func(done, total uint64)
}

// Write is Writer.Write without progress, and cannot be stopped.
func Write(path string, kv []KeyValue, tensors []TensorData) error {
	return Writer{}.Write(context.Background(), path, kv, tensors)
}

// Write writes a model into one file, in GGUF version 3. The file appears under its name only when it is complete; a file
// of that name is replaced. The end of ctx stops it at the next chunk of data and leaves nothing behind.
func (w Writer) Write(ctx context.Context, path string, kv []KeyValue, tensors []TensorData) error {
	for _, k := range kv {
		if describesFile(k.Key) {
			return fmt.Errorf("write %s: key %q belongs to a part or shard of a model: leave it out", path, k.Key)
		}
	}
	p := &progress{report: w.Progress, total: totalSize(tensors)}
	return writeFile(ctx, path, kv, tensors, p)
}

// WriteParts writes a model into parts of about equal size, 2 to 65535, and returns their paths: for `dir/x.gguf` and
// 3 parts `dir/x-00001-of-00003.gguf` and so on. With headerFirst the first part holds the metadata and no tensor.
func (w Writer) WriteParts(ctx context.Context, path string, parts int, headerFirst bool, kv []KeyValue, tensors []TensorData) ([]string, error) {
	if parts < 2 || parts > 65535 {
		return nil, fmt.Errorf("write %s: cannot split a model into %d parts: choose 2 to 65535", path, parts)
	}
	prefix := strings.TrimSuffix(path, ".gguf")
	p := &progress{report: w.Progress, total: totalSize(tensors)}
	groups := divide(tensors, parts, headerFirst)
	paths := make([]string, parts)
	for i, group := range groups {
		keys := []KeyValue{
			{keySplitNo, Uint16(uint16(i))},
			{keySplitCount, Uint16(uint16(parts))},
			{keySplitTensors, Int32(int32(len(tensors)))},
		}
		if i == 0 {
			keys = append(append([]KeyValue(nil), kv...), keys...)
		}
		paths[i] = partName(prefix, uint64(i), uint64(parts))
		if err := writeFile(ctx, paths[i], keys, group, p); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// divide cuts the tensors, in order, into groups of about equal bytes.
func divide(tensors []TensorData, parts int, headerFirst bool) [][]TensorData {
	groups := make([][]TensorData, parts)
	first := 0
	if headerFirst {
		first = 1
	}
	total := max(totalSize(tensors), 1)
	var done uint64
	for _, t := range tensors {
		i := first + int(done*uint64(parts-first)/total)
		i = min(i, parts-1)
		groups[i] = append(groups[i], t)
		size, _ := t.Size()
		done += size
	}
	return groups
}

func totalSize(tensors []TensorData) (n uint64) {
	for _, t := range tensors {
		size, _ := t.Size()
		n += size
	}
	return n
}

type progress struct {
	report      func(done, total uint64)
	done, total uint64
}

func (p *progress) add(n uint64) {
	p.done += n
	if p.report != nil {
		p.report(p.done, p.total)
	}
}

// writeFile writes one file beside its place and moves it there.
func writeFile(ctx context.Context, path string, kv []KeyValue, tensors []TensorData, p *progress) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), f.Close(), os.Remove(f.Name()))
		}
	}()
	b := bufio.NewWriterSize(f, 1<<20)
	if err := writeContent(ctx, b, kv, tensors, p); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return f.Close()
}

func writeContent(ctx context.Context, b *bufio.Writer, kv []KeyValue, tensors []TensorData, p *progress) error {
	head, alignment, err := encodeHeader(kv, tensors)
	if err != nil {
		return err
	}
	if err := padded(b, head, alignment); err != nil {
		return err
	}
	for _, t := range tensors {
		size, _ := t.Size()
		c := &counter{w: b, progress: p, stop: ctx.Err}
		if err := t.Write(c); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if c.n != size {
			return fmt.Errorf("tensor %q wrote %d bytes where its type and shape ask for %d", t.Name, c.n, size)
		}
		if err := zeros(b, pad(size, alignment)-size); err != nil {
			return err
		}
	}
	return nil
}

// encodeHeader encodes all before the tensor data, without the padding.
func encodeHeader(kv []KeyValue, tensors []TensorData) (head []byte, alignment uint64, err error) {
	le := binary.LittleEndian
	b := append([]byte("GGUF"), 3, 0, 0, 0)
	b = le.AppendUint64(b, uint64(len(tensors)))
	b = le.AppendUint64(b, uint64(len(kv)))
	h := &header{}
	for _, k := range kv {
		if !validName(k.Key) || !h.kv.add(k.Key, k.Value) {
			return nil, 0, fmt.Errorf("key %q is empty or there twice", k.Key)
		}
		b = k.Value.append(appendString(b, k.Key))
	}
	if err := h.readAlignment(); err != nil {
		return nil, 0, err
	}
	names := map[string]bool{}
	var offset uint64
	for _, t := range tensors {
		size, ok := t.Size()
		if !ok || !validName(t.Name) || len(t.Name) > maxName || names[t.Name] {
			return nil, 0, fmt.Errorf("tensor %q of type %s and shape %v cannot be written: wrong shape, or a name that is empty, too long or there twice",
				t.Name, t.Type, t.Dims)
		}
		names[t.Name] = true
		b = le.AppendUint32(appendString(b, t.Name), uint32(len(t.Dims)))
		for _, d := range t.Dims {
			b = le.AppendUint64(b, d)
		}
		b = le.AppendUint32(b, uint32(t.Type))
		b = le.AppendUint64(b, offset)
		offset = pad(offset+size, h.alignment)
	}
	return b, h.alignment, nil
}

func padded(w io.Writer, b []byte, alignment uint64) error {
	if _, err := w.Write(b); err != nil {
		return err
	}
	n := uint64(len(b))
	return zeros(w, pad(n, alignment)-n)
}

func zeros(w io.Writer, n uint64) error {
	_, err := w.Write(make([]byte, n))
	return err
}

// counter counts what a tensor writes.
type counter struct {
	w        io.Writer
	n        uint64
	progress *progress
	stop     func() error
}

// Write passes b on.
func (c *counter) Write(b []byte) (int, error) {
	if err := c.stop(); err != nil {
		return 0, err
	}
	n, err := c.w.Write(b)
	c.n += uint64(n)
	c.progress.add(uint64(n))
	return n, err
}

// WriteHollow writes a header and, in place of the data, a hole of zeros that takes no room on most file systems. It calls
// no TensorData.Write.
func WriteHollow(path string, kv []KeyValue, tensors []TensorData) error {
	head, alignment, err := encodeHeader(kv, tensors)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	size := pad(uint64(len(head)), alignment)
	for _, t := range tensors {
		n, _ := t.Size()
		size += pad(n, alignment)
	}
	if err := os.WriteFile(path, head, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Truncate(path, int64(size)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
