package gguf

import (
	"slices"
	"strconv"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// maxLayers is the limit of the pinned llama.cpp.
const maxLayers = 512

// Model is a checked model: its files, its metadata and the directory of its tensors. It holds no weights, keeps no
// file open, and does not change after Open.
type Model struct {
	Paths   []string // the file, or all parts in order
	Parts   []Part   // the same, with what identifies each file
	KV      Metadata // of the file or of the first part
	Tensors []Tensor // of all parts, in the order of the files

	arch   string
	blocks uint32 // layers, those for multi-token prediction included
	extra  uint32 // of these the last, for multi-token prediction
	vocab  uint32
	tied   bool
	parent *parent // of a shard's file; else nil
}

// assemble makes a Model of the headers of all its files.
func assemble(heads []*header, parts []Part) (*Model, error) {
	m := &Model{KV: heads[0].kv, Parts: parts, arch: heads[0].kv.Text("general.architecture")}
	for i, h := range heads {
		m.Paths = append(m.Paths, h.path)
		for _, t := range h.tensors {
			t.Part = i
			m.Tensors = append(m.Tensors, t)
		}
	}
	var err error
	if m.parent, err = m.readParent(); err != nil {
		return nil, err
	}
	m.tied = !slices.ContainsFunc(m.directory(), func(t Tensor) bool { return t.Name == "output.weight" })
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// Architecture is general.architecture, as `llama`.
func (m *Model) Architecture() string { return m.arch }

// Name is general.name, "" where the header has none.
func (m *Model) Name() string { return m.KV.Text("general.name") }

// NLayer is the number of layers that shards divide, ≥ 1; layers for multi-token prediction do not count.
func (m *Model) NLayer() uint32 { return m.blocks - m.extra }

// Vocab is the number of tokens.
func (m *Model) Vocab() uint32 { return m.vocab }

// Embedding is the width of the hidden state, in values; 0 where the header does not say.
func (m *Model) Embedding() uint32 { return m.number("embedding_length") }

// TrainContext is the number of tokens that the model was trained for; 0 where the header does not say.
func (m *Model) TrainContext() uint32 { return m.number("context_length") }

// ChatTemplate is the model's own template in Jinja, "" where it has none.
func (m *Model) ChatTemplate() string { return m.KV.Text("tokenizer.chat_template") }

// Tied says whether the token embedding is the output matrix too, so that head and tail both need it.
func (m *Model) Tied() bool { return m.tied }

// Held is the layers whose tensors the files hold: all of them, but in a shard's file.
func (m *Model) Held() engine.LayerRange {
	if m.parent != nil {
		return m.parent.held
	}
	return engine.LayerRange{End: m.NLayer()}
}

// IsShard says whether the file holds a shard and not the whole model.
func (m *Model) IsShard() bool { return m.parent != nil }

// directory is the tensors of the whole model. Of those of a shard's file only name, type and shape are known.
func (m *Model) directory() []Tensor {
	if m.parent != nil {
		return m.parent.tensors
	}
	return m.Tensors
}

// Parameters is the number of weights.
func (m *Model) Parameters() (n uint64) {
	for _, t := range m.Tensors {
		n += t.Elements()
	}
	return n
}

// Bytes is the size of all tensors' data.
func (m *Model) Bytes() (n uint64) {
	for _, t := range m.Tensors {
		n += t.Size
	}
	return n
}

// Layer is the layer that a tensor belongs to; ok is false for tensors outside the layers. Layers for multi-token
// prediction are numbered from NLayer on.
func (m *Model) Layer(t Tensor) (layer int, ok bool) { return layerOf(t.Name) }

// layerOf reads the layer from a name as `blk.7.attn_q.weight`.
func layerOf(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return 0, false
	}
	digits, _, ok := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), ok && err == nil
}

// key is a key of the model's architecture, as `llama.block_count`.
func (m *Model) key(name string) string { return m.arch + "." + name }

// number is a whole number under a key of the architecture, 0 where there is none.
func (m *Model) number(name string) uint32 {
	n, _ := m.KV.Uint(m.key(name))
	return uint32(min(n, 1<<32-1))
}
