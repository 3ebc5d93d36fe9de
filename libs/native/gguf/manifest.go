package gguf

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Fingerprint identifies a model. The package comment says over what it is the SHA-256.
type Fingerprint [sha256.Size]byte

// String is the lower-case hexadecimal form.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// Manifest is what the bytes of a model are known to be.
type Manifest struct {
	Fingerprint Fingerprint
	Sums        map[string][sha256.Size]byte // SHA-256 of each tensor's data, by its name
	CachePath   string                       // the file that keeps the manifest; "" where none could be written
	FromCache   bool                         // the whole model was read at another time, not now
}

// Progress says how many bytes of tensor data have been read, of how many. done never falls. It is called from one
// goroutine at a time, and not after the call that it was given to has returned.
type Progress func(done, total uint64)

// BuildManifest returns the manifest of a model and makes sure that the tensors for which own is true hold what it says.
//
// The first time for a model it reads all of its data, and keeps the manifest in `<file>.dgr-manifest.json` beside the
// (first) file or, where that directory cannot be written, in the user's cache directory. From then on it reads only the
// own tensors, as long as size, modification time and inode of all files are what they were; otherwise it reads all
// again. own nil reads nothing that it need not read. A shard's file brings the manifest of the whole model with it. Of several processes that want the same manifest one makes it, and the
// others wait for it.
//
// Errors: BAD_MODEL_FILE where a file changed, broke or cannot be read; the error of ctx when it ended, within one chunk
// of 1 MiB per processor.
func BuildManifest(ctx context.Context, m *Model, own func(Tensor) bool, progress Progress) (*Manifest, error) {
	if m.parent != nil {
		return m.inherited(ctx, own, progress)
	}
	if man := m.cached(); man != nil {
		return man.verified(ctx, m, own, progress)
	}
	unlock, err := m.lockManifest(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if man := m.cached(); man != nil { // another process made it meanwhile
		unlock()
		return man.verified(ctx, m, own, progress)
	}
	man, err := HashModel(ctx, m, progress)
	if err != nil {
		return nil, err
	}
	man.CachePath = m.keep(man)
	return man, nil
}

// verified is a kept manifest once the own tensors have been compared with it.
func (man *Manifest) verified(ctx context.Context, m *Model, own func(Tensor) bool, progress Progress) (*Manifest, error) {
	if own != nil {
		if err := man.Verify(ctx, m, own, progress); err != nil {
			return nil, err
		}
	}
	return man, nil
}

// HashModel reads all data of a model and returns its manifest. It neither uses nor writes the cache. A shard's file is held
// against the manifest that it brings.
func HashModel(ctx context.Context, m *Model, progress Progress) (*Manifest, error) {
	if m.parent != nil {
		return m.inherited(ctx, func(Tensor) bool { return true }, progress)
	}
	sums, err := m.hash(ctx, m.Tensors, progress)
	if err != nil {
		return nil, err
	}
	man := &Manifest{Sums: make(map[string][sha256.Size]byte, len(sums))}
	for i, t := range m.Tensors {
		man.Sums[t.Name] = sums[i]
	}
	man.Fingerprint = m.fingerprint(man.Sums)
	return man, nil
}

// Verify reads the tensors for which own is true and compares them with the manifest.
//
// Errors: as BuildManifest.
func (man *Manifest) Verify(ctx context.Context, m *Model, own func(Tensor) bool, progress Progress) error {
	var tensors []Tensor
	for _, t := range m.Tensors {
		if own(t) {
			tensors = append(tensors, t)
		}
	}
	sums, err := m.hash(ctx, tensors, progress)
	if err != nil {
		return err
	}
	for i, t := range tensors {
		if sums[i] != man.Sums[t.Name] {
			return man.broken(m, t)
		}
	}
	return nil
}

func (man *Manifest) broken(m *Model, t Tensor) error {
	if m.parent != nil {
		return bad(m.Paths[t.Part], "holds other data in tensor %q than the model that it is a shard of: write or fetch the shard again", t.Name)
	}
	return bad(m.Paths[t.Part], "holds other data in tensor %q than when its manifest was made, though nothing says that it was written to: check the disk, and fetch the file again (or, if it was changed on purpose, delete %s)",
		t.Name, filepath.Base(man.CachePath))
}

// fingerprint encodes keys and sums as the package comment says.
func (m *Model) fingerprint(sums map[string][sha256.Size]byte) (f Fingerprint) {
	le := binary.LittleEndian
	h := sha256.New()
	keys := make([]KeyValue, 0, m.KV.Len())
	for _, kv := range m.KV.All() {
		if !describesFile(kv.Key) {
			keys = append(keys, kv)
		}
	}
	slices.SortFunc(keys, func(a, b KeyValue) int { return cmp.Compare(a.Key, b.Key) })
	b := le.AppendUint64([]byte("dgr model 1\n"), uint64(len(keys)))
	for _, kv := range keys {
		b = kv.Value.append(appendString(b, kv.Key))
		h.Write(b)
		b = b[:0]
	}
	tensors := slices.Clone(m.directory())
	slices.SortFunc(tensors, func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	b = le.AppendUint64(b, uint64(len(tensors)))
	for _, t := range tensors {
		b = le.AppendUint32(appendString(b, t.Name), uint32(t.Type))
		for i := range maxDims {
			b = le.AppendUint64(b, t.dim(i))
		}
		sum := sums[t.Name]
		b = append(b, sum[:]...)
	}
	h.Write(b)
	h.Sum(f[:0])
	return f
}

// hash returns the SHA-256 of the data of each tensor, in order, reading several at once.
func (m *Model) hash(ctx context.Context, tensors []Tensor, report Progress) ([][sha256.Size]byte, error) {
	files := make(readers, len(m.Parts))
	defer files.close()
	p := &meter{report: report}
	for _, t := range tensors {
		p.total += t.Size
		if err := files.open(m, t.Part); err != nil {
			return nil, err
		}
	}
	p.add(0)
	sums := make([][sha256.Size]byte, len(tensors))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.GOMAXPROCS(0), 4))
	buffers := sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}
	for i, t := range tensors {
		g.Go(func() error {
			b := buffers.Get().(*[]byte)
			defer buffers.Put(b)
			return hashTensor(ctx, m.Parts[t.Part], files[t.Part], t, *b, p, &sums[i])
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return sums, files.check(m)
}

// hashTensor reads one tensor chunk by chunk.
func hashTensor(ctx context.Context, part Part, f io.ReaderAt, t Tensor, buf []byte, p *meter, sum *[sha256.Size]byte) error {
	h := sha256.New()
	for done := uint64(0); done < t.Size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(uint64(len(buf)), t.Size-done)]
		n, err := f.ReadAt(b, int64(t.Offset+done))
		if n < len(b) {
			if err == io.EOF {
				return bad(part.Path, "became shorter while it was read: wait until it is complete, then try again")
			}
			return badIO(part.Path, err)
		}
		h.Write(b)
		done += uint64(n)
		p.add(uint64(n))
	}
	h.Sum(sum[:0])
	return nil
}

// meter adds up what the readers have read.
type meter struct {
	mu          sync.Mutex
	report      Progress
	done, total uint64
}

func (p *meter) add(n uint64) {
	if p.report == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	p.report(p.done, p.total)
}

// covers says whether a manifest is one of this model: it knows just its tensors, and its fingerprint follows from the
// header that was read and the sums that it holds.
func (man *Manifest) covers(m *Model) bool {
	if len(man.Sums) != len(m.Tensors) {
		return false
	}
	for _, t := range m.Tensors {
		if _, ok := man.Sums[t.Name]; !ok {
			return false
		}
	}
	return m.fingerprint(man.Sums) == man.Fingerprint
}
