package gguf

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Keys of a shard's file. The package comment says what they hold.
const (
	keyShard            = "dgr.shard."
	keyShardFirst       = keyShard + "first"
	keyShardEnd         = keyShard + "end"
	keyShardFingerprint = keyShard + "fingerprint"
	keyShardTensors     = keyShard + "tensors"
	keyShardTypes       = keyShard + "types"
	keyShardDims        = keyShard + "dims"
	keyShardSums        = keyShard + "sums"
)

// splitAgain is what helps a shard's file that is wrong in itself.
const splitAgain = "write the shard again with dgr split, or fetch it again"

// parent is what a shard's file says of the whole model.
type parent struct {
	held     engine.LayerRange
	tensors  []Tensor // ascending by name, without place
	manifest Manifest
}

// readParent reads the keys of a shard's file; nil where there are none.
func (m *Model) readParent() (*parent, error) {
	if !m.KV.Has(keyShardFirst) {
		return nil, nil
	}
	var numbers [2]uint32
	for i, key := range []string{keyShardFirst, keyShardEnd} {
		v, _ := m.KV.Get(key)
		n, ok := v.Uint()
		if !ok || v.Type() != TypeUint32 {
			return nil, m.bad("has no u32 under %q: %s", key, splitAgain)
		}
		numbers[i] = uint32(n)
	}
	p := &parent{held: engine.LayerRange{First: numbers[0], End: numbers[1]}, manifest: Manifest{CachePath: m.Paths[0], FromCache: true}}
	var ok bool
	var fingerprint [sha256.Size]byte
	if fingerprint, ok = decodeSum(m.KV.Text(keyShardFingerprint)); !ok {
		return nil, m.bad("has no fingerprint under %q: %s", keyShardFingerprint, splitAgain)
	}
	p.manifest.Fingerprint = fingerprint
	if err := m.readDirectory(p); err != nil {
		return nil, err
	}
	return p, nil
}

// readDirectory reads the lists of tensors.
func (m *Model) readDirectory(p *parent) error {
	list := func(key string) Value { v, _ := m.KV.Get(key); return v }
	names, ok := list(keyShardTensors).Texts()
	sums, sumsOK := list(keyShardSums).Texts()
	types, dims := list(keyShardTypes), list(keyShardDims)
	n := len(names)
	if !ok || !sumsOK || n == 0 || n > maxTensors || len(sums) != n || types.Type() != TypeArray || types.Len() != n || dims.Type() != TypeArray || dims.Len() != maxDims*n {
		return m.bad("has lists under %q that do not fit each other: %s", keyShard+"*", splitAgain)
	}
	p.manifest.Sums = make(map[string][sha256.Size]byte, n)
	for i, name := range names {
		t := Tensor{Name: name, Dims: make([]uint64, maxDims)}
		kind, good := types.UintAt(i)
		t.Type = Type(kind)
		for j := range t.Dims {
			x, ok := dims.UintAt(maxDims*i + j)
			t.Dims[j], good = x, good && ok
		}
		size, err := (&header{path: m.Paths[0]}).tensorSize(t)
		if err != nil {
			return err
		}
		t.Size = size
		sum, ok := decodeSum(sums[i])
		if !good || !ok || kind > 1<<31 || i > 0 && name <= names[i-1] {
			return m.bad("has a broken entry for tensor %q in its lists of the model's tensors: %s", name, splitAgain)
		}
		p.tensors, p.manifest.Sums[name] = append(p.tensors, t), sum
	}
	return nil
}

// checkShard makes sure that a shard's file holds just the tensors that its layers need.
func (m *Model) checkShard() error {
	p := m.parent
	if p == nil {
		return nil
	}
	if p.held.First >= p.held.End || p.held.End > m.NLayer() {
		return m.bad("claims to hold layers %s of a model of %d: %s", p.held, m.NLayer(), splitAgain)
	}
	have := make(map[string]Tensor, len(m.Tensors))
	for _, t := range m.Tensors {
		have[t.Name] = t
	}
	own := m.Own(p.held)
	for _, want := range p.tensors {
		t, there := have[want.Name]
		if there != own(want) {
			return m.bad("should hold tensor %q: %t, by its layers %s, and it is there: %t; %s", want.Name, own(want), p.held, there, splitAgain)
		}
		if there && (t.Type != want.Type || !slices.Equal(fourDims(t), want.Dims)) {
			return m.bad("holds tensor %q of type %s and shape %s where its model has %s and %s: %s", t.Name, t.Type, t.Shape(), want.Type, want.Shape(), splitAgain)
		}
		delete(have, want.Name)
	}
	for name := range have {
		return m.bad("holds tensor %q, which its model does not have: %s", name, splitAgain)
	}
	return nil
}

func fourDims(t Tensor) []uint64 {
	dims := make([]uint64, maxDims)
	for i := range dims {
		dims[i] = t.dim(i)
	}
	return dims
}

// inherited is the manifest that a shard's file brings, once it is proved to be that of the fingerprint, and once the own
// tensors, which the file must hold, have been compared with it.
func (m *Model) inherited(ctx context.Context, own func(Tensor) bool, progress Progress) (*Manifest, error) {
	man := m.parent.manifest
	if m.fingerprint(man.Sums) != man.Fingerprint {
		return nil, m.bad("is no shard of the model that it names: its metadata or its lists were changed; %s", splitAgain)
	}
	return man.verified(ctx, m, own, progress)
}

// shardKeys are the keys of a shard's file beside the model's own.
func (m *Model) shardKeys(man *Manifest, held engine.LayerRange) []KeyValue {
	tensors := slices.Clone(m.directory())
	slices.SortFunc(tensors, func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	var names, sums []string
	var types []int32
	var dims []uint64
	for _, t := range tensors {
		sum := man.Sums[t.Name]
		names, sums = append(names, t.Name), append(sums, hex.EncodeToString(sum[:]))
		types, dims = append(types, int32(t.Type)), append(dims, fourDims(t)...)
	}
	return []KeyValue{
		{keyShardFirst, Uint32(held.First)}, {keyShardEnd, Uint32(held.End)}, {keyShardFingerprint, String(man.Fingerprint.String())},
		{keyShardTensors, Strings(names)}, {keyShardTypes, Int32s(types)}, {keyShardDims, Uint64s(dims)}, {keyShardSums, Strings(sums)},
	}
}

// VerifyShards reads the files of shards and makes sure that they are one whole model, each tensor as the manifest says:
// with the fingerprint of whole, where it is not nil. Every layer must be there, and be there once.
//
// Errors: BAD_MODEL_FILE (a file is broken), SHARD_MISMATCH (they are not one model), the error of ctx.
func VerifyShards(ctx context.Context, shards []*Model, whole *Fingerprint, progress Progress) (Fingerprint, error) {
	if len(shards) == 0 {
		return Fingerprint{}, engine.Errorf(engine.ShardMismatch, "there is no shard to look at")
	}
	shards = slices.Clone(shards)
	slices.SortFunc(shards, func(a, b *Model) int { return cmp.Compare(a.Held().First, b.Held().First) })
	var total, before uint64
	next := uint32(0)
	for i, m := range shards {
		if held := m.Held(); held.First != next {
			return Fingerprint{}, engine.Errorf(engine.ShardMismatch, "%s holds the layers %s, and layer %d is due", m.Paths[0], held, next)
		}
		next = m.Held().End
		if i == len(shards)-1 && next != m.NLayer() {
			return Fingerprint{}, engine.Errorf(engine.ShardMismatch, "no shard holds the layers from %d to the last, %d", next, m.NLayer()-1)
		}
		total += m.Bytes()
	}
	for _, m := range shards {
		man, err := HashModel(ctx, m, func(done, _ uint64) {
			if progress != nil {
				progress(before+done, total)
			}
		})
		if err != nil {
			return Fingerprint{}, err
		}
		before += m.Bytes()
		if whole == nil {
			whole = &man.Fingerprint
		}
		if man.Fingerprint != *whole {
			return Fingerprint{}, engine.Errorf(engine.ShardMismatch, "%s is of the model %s, and %s is due", m.Paths[0], man.Fingerprint, *whole)
		}
	}
	return *whole, nil
}
