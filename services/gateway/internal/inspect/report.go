// Package inspect is `dgr inspect`: what a model file is, what its layers weigh and whether it can be cut, read from the
// headers alone. Only the fingerprint, when it is asked for and not known yet, reads the weights.
//
// What must stay out: plans (that is `dgr plan`), and anything that needs a worker.
package inspect

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/layers"
)

// Report is what there is to say about a model. Sizes are bytes. It is also the form of --json.
type Report struct {
	Name         string   `json:"name"`
	Architecture string   `json:"architecture"`
	Cuttable     bool     `json:"cuttable"` // whether it can be divided among workers
	Layers       uint32   `json:"layers"`
	Held         string   `json:"held,omitempty"` // of a shard's file: the layers in it, FIRST:END
	Parameters   uint64   `json:"parameters"`
	Bytes        uint64   `json:"bytes"` // of all tensors
	Types        []Type   `json:"types"` // by bytes, the largest first
	Embedding    uint32   `json:"embedding"`
	Heads        uint32   `json:"heads"`    // of layer 0
	KVHeads      uint32   `json:"kv_heads"` // of layer 0
	Window       uint32   `json:"sliding_window"`
	Vocab        uint32   `json:"vocab"`
	Tokenizer    string   `json:"tokenizer"`
	Context      uint32   `json:"train_context"`
	ChatTemplate bool     `json:"chat_template"`
	Tied         bool     `json:"tied_embeddings"`
	Parts        []Part   `json:"parts"`
	Sections     []Weight `json:"sections"` // head, the layers in order, tail, shared; empty ones are left out
	Fingerprint  string   `json:"fingerprint,omitempty"`
}

// Type is how much of the model is of one tensor type.
type Type struct {
	Name    string `json:"name"`
	Tensors int    `json:"tensors"`
	Bytes   uint64 `json:"bytes"`
}

// Part is one file.
type Part struct {
	Path    string `json:"path"`
	Bytes   uint64 `json:"bytes"` // of the file
	Tensors int    `json:"tensors"`
}

// Weight is what one layer, or what belongs to no layer, weighs.
type Weight struct {
	Name       string `json:"name"`            // head, tail, shared, or layer
	Layer      *int   `json:"layer,omitempty"` // of a layer
	Tensors    int    `json:"tensors"`
	Bytes      uint64 `json:"bytes"`
	CacheToken uint64 `json:"cache_bytes_per_token"` // with an f16 cache, a session
}

// cacheElement is the bytes of an element of the cache, f16.
const cacheElement = 2

// Describe reports on an opened model.
func Describe(m *gguf.Model) Report {
	heads, kv := m.Heads(0)
	r := Report{
		Name: m.Name(), Architecture: m.Architecture(), Cuttable: gguf.Adapted(m.Architecture()), Layers: m.NLayer(),
		Parameters: m.Parameters(), Bytes: m.Bytes(), Types: types(m), Embedding: m.Embedding(), Heads: heads, KVHeads: kv,
		Window: m.Window(), Vocab: m.Vocab(), Tokenizer: m.KV.Text("tokenizer.ggml.model"), Context: m.TrainContext(),
		ChatTemplate: m.ChatTemplate() != "", Tied: m.Tied(), Sections: sections(m),
	}
	if m.IsShard() {
		r.Held = layers.Show(m.Held())
	}
	for i, p := range m.Parts {
		part := Part{Path: p.Path, Bytes: uint64(p.State.Size)}
		for _, t := range m.Tensors {
			if t.Part == i {
				part.Tensors++
			}
		}
		r.Parts = append(r.Parts, part)
	}
	return r
}

// Identify adds the fingerprint, reading the whole model where no manifest of it is kept.
func (r *Report) Identify(ctx context.Context, m *gguf.Model, progress gguf.Progress) error {
	man, err := gguf.BuildManifest(ctx, m, nil, progress)
	if err != nil {
		return err
	}
	r.Fingerprint = man.Fingerprint.String()
	return nil
}

func types(m *gguf.Model) []Type {
	index := map[gguf.Type]int{}
	var list []Type
	for _, t := range m.Tensors {
		i, ok := index[t.Type]
		if !ok {
			i = len(list)
			index[t.Type] = i
			list = append(list, Type{Name: t.Type.String()})
		}
		list[i].Tensors++
		list[i].Bytes += t.Size
	}
	sortTypes(list)
	return list
}

// sections adds up the tensors by what they belong to.
func sections(m *gguf.Model) []Weight {
	head, tail, shared := Weight{Name: "head"}, Weight{Name: "tail"}, Weight{Name: "shared"}
	var layers []Weight
	for _, t := range m.Tensors {
		w := &shared
		switch m.Role(t) {
		case gguf.RoleHead:
			w = &head
		case gguf.RoleTail:
			w = &tail
		case gguf.RoleLayer:
			il, _ := m.Layer(t)
			for len(layers) <= il {
				layers = append(layers, layer(m, len(layers)))
			}
			w = &layers[il]
		}
		w.Tensors++
		w.Bytes += t.Size
	}
	var list []Weight
	for _, w := range append(append([]Weight{head}, layers...), tail, shared) {
		if w.Tensors > 0 || w.Layer != nil {
			list = append(list, w)
		}
	}
	return list
}

func layer(m *gguf.Model, il int) Weight {
	w := Weight{Name: "layer", Layer: &il}
	if il < int(m.NLayer()) {
		keys, values := m.CacheRow(uint32(il))
		w.CacheToken = (keys + values) * cacheElement
	}
	return w
}

// title is the model's name, or that of its file.
func (r Report) title() string {
	if r.Name != "" {
		return r.Name
	}
	return strings.TrimSuffix(filepath.Base(r.Parts[0].Path), ".gguf")
}

// cacheToken is what a token of a session takes in the caches of all layers.
func (r Report) cacheToken() (n uint64) {
	for _, w := range r.Sections {
		n += w.CacheToken
	}
	return n
}
