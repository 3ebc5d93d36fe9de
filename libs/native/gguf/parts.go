package gguf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Keys of a split model, and the types that llama.cpp insists on.
const (
	keySplitNo      = "split.no"
	keySplitCount   = "split.count"
	keySplitTensors = "split.tensors.count"
)

// split is what one file says about being a part.
type split struct {
	no      uint64 // from 0
	count   uint64 // 0 or 1: not a part
	tensors uint64 // of all parts together
	total   bool   // whether tensors is known
}

// splitOf reads the split keys of a header.
func splitOf(h *header) (split, error) {
	var s split
	for _, k := range []struct {
		key  string
		typ  ValueType
		into *uint64
	}{{keySplitCount, TypeUint16, &s.count}, {keySplitNo, TypeUint16, &s.no}, {keySplitTensors, TypeInt32, &s.tensors}} {
		v, ok := h.kv.Get(k.key)
		if !ok {
			continue
		}
		n, ok := v.Uint()
		if v.Type() != k.typ || !ok {
			return s, bad(h.path, "has a key %q that is no usable %s: split the model again with a current llama.cpp", k.key, k.typ)
		}
		*k.into = n
	}
	s.total = h.kv.Has(keySplitTensors)
	if s.count <= 1 {
		return split{}, nil
	}
	if !h.kv.Has(keySplitNo) || s.no >= s.count {
		return s, bad(h.path, "is part %d of a model in %d parts, which cannot be: split the model again", s.no+1, s.count)
	}
	return s, nil
}

// partName is the file name of part no (from 0) of count.
func partName(prefix string, no, count uint64) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, no+1, count)
}

// openParts reads the other parts beside the one that was named.
func openParts(named *header, namedPart Part, s split) ([]*header, []Part, error) {
	suffix := partName("", s.no, s.count)
	prefix, ok := strings.CutSuffix(named.path, suffix)
	if !ok {
		return nil, nil, bad(named.path, "is part %d of %d of a split model but its name does not end in %q: rename it so that the other parts can be found",
			s.no+1, s.count, suffix)
	}
	if err := missingParts(named.path, prefix, s); err != nil {
		return nil, nil, err
	}
	heads, parts := make([]*header, s.count), make([]Part, s.count)
	for i := range s.count {
		if i == s.no {
			heads[i], parts[i] = named, namedPart
			continue
		}
		h, p, err := readFile(partName(prefix, i, s.count))
		if err != nil {
			return nil, nil, err
		}
		heads[i], parts[i] = h, p
	}
	return heads, parts, agree(heads)
}

// missingParts names the parts that are not there.
func missingParts(named, prefix string, s split) error {
	var missing []string
	for i := range s.count {
		name := partName(prefix, i, s.count)
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, filepath.Base(name))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing[:min(len(missing), 4)], ", ")
	if more := len(missing) - 4; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	e := bad(named, "is part %d of %d, and beside it is missing: %s; fetch what is missing into the same directory", s.no+1, s.count, list)
	e.Err = fs.ErrNotExist
	return e
}

// agree checks that the parts are parts of the same model.
func agree(heads []*header) error {
	first := heads[0]
	want, err := splitOf(first)
	if err != nil {
		return err
	}
	var tensors uint64
	owner := map[string]*header{}
	for i, h := range heads {
		s, err := splitOf(h)
		if err != nil {
			return err
		}
		if s.count != want.count || s.no != uint64(i) {
			return bad(h.path, "is named as part %d of %d but its header says part %d of %d: the parts are mixed up, fetch them again",
				i+1, len(heads), s.no+1, s.count)
		}
		if s.total && want.total && s.tensors != want.tensors {
			return strangers(h, first, keySplitTensors)
		}
		if err := sameKeys(h, first); err != nil {
			return err
		}
		for _, t := range h.tensors {
			if o := owner[t.Name]; o != nil {
				return bad(h.path, "has the tensor %q that %q has too: the parts do not belong together, fetch them again", t.Name, filepath.Base(o.path))
			}
			owner[t.Name] = h
		}
		tensors += uint64(len(h.tensors))
	}
	if !want.total || tensors != want.tensors {
		return bad(first.path, "promises %d tensors in %d parts, which hold %d: the parts do not belong together, fetch them again",
			want.tensors, want.count, tensors)
	}
	if tensors > maxTensors {
		return bad(first.path, "has %d tensors in its parts where %d are the limit: no such model is known", tensors, maxTensors)
	}
	return nil
}

// sameKeys checks that what a later part says about the model is what the first says.
func sameKeys(h, first *header) error {
	for _, kv := range h.kv.All() {
		if describesFile(kv.Key) || kv.Key == "general.alignment" {
			continue
		}
		if v, ok := first.kv.Get(kv.Key); ok && !v.equal(kv.Value) {
			return strangers(h, first, kv.Key)
		}
	}
	return nil
}

func strangers(h, first *header, key string) *engine.Error {
	return bad(h.path, "and %q disagree about %q: the parts do not belong together, fetch them again", filepath.Base(first.path), key)
}
