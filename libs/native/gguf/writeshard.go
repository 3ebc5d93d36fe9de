package gguf

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gofrs/flock"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// partialSuffix is added to the name of a shard's file that is not complete.
const partialSuffix = ".partial"

// ErrExists is that a file of the shard's name is there and is not that shard.
var ErrExists = errors.New("another file is there; move it away, or name another folder")

// Shard is a file to be written.
type Shard struct {
	Path   string
	Layers engine.LayerRange // within Model.Held; End 0 is the last layer held
}

// Written says what WriteShard found and did.
type Written struct {
	Size    uint64 // of the file, bytes
	Tensors int
	Kept    uint64 // bytes of tensor data that were there already, from an earlier run
}

// WriteShard writes the tensors that a shard needs, and what proves them, into a file of its own. What is written is
// compared with the manifest. The file appears under its name when it is complete; a file that is this shard already is
// compared and left, and one that is anything else is refused with ErrExists. What a run that was stopped has written, in
// `PATH.partial`, is compared too and gone on from.
func (m *Model) WriteShard(ctx context.Context, man *Manifest, s Shard, progress Progress) (w Written, err error) {
	plan, err := m.planShard(man, s)
	if err != nil {
		return Written{}, err
	}
	defer plan.files.close()
	defer func() {
		if coded := (*engine.Error)(nil); err != nil && !errors.As(err, &coded) { // those name their file already
			err = fmt.Errorf("write %s: %w", s.Path, err)
		}
	}()
	plan.meter = &meter{report: progress, total: plan.data}
	plan.meter.add(0)
	w = Written{Size: plan.size, Tensors: len(plan.tensors)}
	switch f, err := os.Open(s.Path); {
	case err == nil:
		defer f.Close()
		good, err := plan.good(ctx, f)
		if err != nil {
			return Written{}, err
		}
		if info, err := f.Stat(); err != nil || good < len(plan.tensors) || uint64(info.Size()) != plan.size {
			return Written{}, ErrExists
		}
		w.Kept = plan.data
		return w, nil
	case !errors.Is(err, fs.ErrNotExist):
		return Written{}, err
	}
	w.Kept, err = plan.complete(ctx)
	return w, err
}

// shardPlan is a shard's file before it is written.
type shardPlan struct {
	model   *Model
	path    string
	sums    map[string][sha256.Size]byte
	tensors []Tensor // of the source, in the order of the file
	head    []byte   // all before the data, padded
	ends    []uint64 // of each tensor's data in the file, padded
	data    uint64   // bytes of tensor data
	size    uint64   // bytes of the file
	align   uint64
	files   readers
	meter   *meter
}

func (m *Model) planShard(man *Manifest, s Shard) (*shardPlan, error) {
	held := m.Held()
	if s.Layers.End == 0 {
		s.Layers.End = held.End
	}
	if s.Layers.First >= s.Layers.End || s.Layers.First < held.First || s.Layers.End > held.End {
		return nil, engine.Errorf(engine.ShardMismatch, "a shard of the layers %s cannot be cut out of %s", s.Layers, held)
	}
	p := &shardPlan{model: m, path: s.Path, sums: man.Sums, files: make(readers, len(m.Parts))}
	var keys []KeyValue
	for _, kv := range m.KV.All() {
		if !describesFile(kv.Key) {
			keys = append(keys, kv)
		}
	}
	keys = append(keys, m.shardKeys(man, s.Layers)...)
	own := m.Own(s.Layers)
	var list []TensorData
	for _, t := range m.Tensors {
		if own(t) {
			p.tensors = append(p.tensors, t)
			list = append(list, TensorData{Name: t.Name, Dims: t.Dims, Type: t.Type})
			p.data += t.Size
		}
	}
	head, align, err := encodeHeader(keys, list)
	if err != nil {
		return nil, err
	}
	p.head, p.align = append(head, make([]byte, pad(uint64(len(head)), align)-uint64(len(head)))...), align
	p.size = uint64(len(p.head))
	for _, t := range p.tensors {
		p.size += pad(t.Size, align)
		p.ends = append(p.ends, p.size)
	}
	return p, nil
}

// good is how many tensors, from the first on, a file holds as they should be; −1 if not even the head is.
func (p *shardPlan) good(ctx context.Context, f io.ReaderAt) (int, error) {
	head := make([]byte, len(p.head))
	if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF {
		return 0, err
	}
	if !bytes.Equal(head, p.head) {
		return -1, nil
	}
	buffer := make([]byte, chunk)
	for i, t := range p.tensors {
		placed := t
		placed.Offset = p.ends[i] - pad(t.Size, p.align)
		var sum [sha256.Size]byte
		err := hashTensor(ctx, Part{Path: p.path}, f, placed, buffer, &meter{}, &sum)
		if ctx.Err() != nil {
			return 0, err
		}
		if err != nil || sum != p.sums[t.Name] {
			return i, nil
		}
		p.meter.add(t.Size)
	}
	return len(p.tensors), nil
}

// complete writes what is not in the partial file yet, and gives it its name.
func (p *shardPlan) complete(ctx context.Context) (kept uint64, err error) {
	name := p.path + partialSuffix
	lock := flock.New(name, flock.SetFlag(os.O_CREATE|os.O_RDWR))
	if mine, err := lock.TryLock(); err != nil || !mine {
		return 0, errors.Join(fmt.Errorf("another process writes %s; wait for it", name), err)
	}
	defer lock.Close()
	f, err := os.OpenFile(name, os.O_RDWR, 0o644)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	good, err := p.good(ctx, f)
	if err != nil {
		return 0, err
	}
	at := uint64(0)
	switch {
	case good > 0:
		at = p.ends[good-1]
	case good == 0:
		at = uint64(len(p.head))
	}
	for _, t := range p.tensors[:max(good, 0)] {
		kept += t.Size
	}
	if err := f.Truncate(int64(at)); err != nil {
		return 0, err
	}
	if _, err := f.Seek(int64(at), io.SeekStart); err != nil {
		return 0, err
	}
	if good < 0 {
		if _, err := f.Write(p.head); err != nil {
			return 0, err
		}
	}
	for _, t := range p.tensors[max(good, 0):] {
		if err := p.copy(ctx, f, t); err != nil {
			return 0, err
		}
	}
	if err := errors.Join(p.files.check(p.model), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	return kept, appear(name, p.path)
}

// copy appends one tensor, padded, and compares it with the manifest on the way.
func (p *shardPlan) copy(ctx context.Context, to io.Writer, t Tensor) error {
	if err := p.files.open(p.model, t.Part); err != nil {
		return err
	}
	h := sha256.New()
	c := &counter{w: io.MultiWriter(to, h), progress: &progress{report: func(uint64, uint64) {}}, stop: ctx.Err}
	source := io.NewSectionReader(p.files[t.Part], int64(t.Offset), int64(t.Size))
	for done := uint64(0); done < t.Size; {
		n, err := io.CopyN(c, source, int64(min(chunk, t.Size-done)))
		if err == io.EOF {
			return bad(p.model.Paths[t.Part], "became shorter while it was read: wait until it is complete, then try again")
		}
		if err != nil {
			return err
		}
		done += uint64(n)
		p.meter.add(uint64(n))
	}
	if [sha256.Size]byte(h.Sum(nil)) != p.sums[t.Name] {
		return (&Manifest{CachePath: p.model.Paths[0] + manifestSuffix}).broken(p.model, t)
	}
	return zeros(to, pad(t.Size, p.align)-t.Size)
}

// appear gives a complete file its name, which must be free.
func appear(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return os.Remove(from)
	} else if errors.Is(err, fs.ErrExist) {
		return ErrExists
	}
	// Some file systems know no links.
	if _, err := os.Lstat(to); err == nil {
		return ErrExists
	}
	return os.Rename(from, to)
}
