package gguf

import "strings"

// Metadata is the keys of a model, in the order of the file, each once.
type Metadata struct {
	list  []KeyValue
	index map[string]int
}

// Len is the number of keys.
func (m *Metadata) Len() int { return len(m.list) }

// All returns the keys in the order of the file. The caller must not change the slice.
func (m *Metadata) All() []KeyValue { return m.list }

// Get returns the value of a key.
func (m *Metadata) Get(key string) (Value, bool) {
	i, ok := m.index[key]
	if !ok {
		return Value{}, false
	}
	return m.list[i].Value, true
}

// Has says whether the key is there.
func (m *Metadata) Has(key string) bool { _, ok := m.index[key]; return ok }

// Text returns the string under a key, "" where there is none.
func (m *Metadata) Text(key string) string {
	v, _ := m.Get(key)
	s, _ := v.Text()
	return s
}

// Uint returns the whole number under a key; ok is false where there is none.
func (m *Metadata) Uint(key string) (uint64, bool) {
	v, ok := m.Get(key)
	if !ok {
		return 0, false
	}
	return v.Uint()
}

// add appends a key; it returns false, and changes nothing, where the key is there already.
func (m *Metadata) add(key string, v Value) bool {
	if m.index == nil {
		m.index = map[string]int{}
	}
	if _, double := m.index[key]; double {
		return false
	}
	m.index[key] = len(m.list)
	m.list = append(m.list, KeyValue{key, v})
	return true
}

// describesFile says whether a key describes the file and not the model: which part of a split model it is, or which shard.
func describesFile(key string) bool {
	return strings.HasPrefix(key, "split.") || strings.HasPrefix(key, keyShard)
}
