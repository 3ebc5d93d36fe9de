package gguf

import (
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// Role says which shards need a tensor.
type Role int

// The roles.
const (
	RoleLayer  Role = iota + 1 // the shard that has the tensor's layer
	RoleHead                   // the shard with layer 0; of a tied token embedding, the tail too
	RoleTail                   // the shard with the last layer
	RoleShared                 // every shard, as rope factors
)

// Names without their ending (.weight, .bias, .scale), of tensors outside the layers. Whatever is in neither list is shared.
var (
	headNames = map[string]bool{
		"token_embd": true, "token_embd_norm": true, "token_types": true, "position_embd": true,
		"per_layer_token_embd": true, "altup_proj": true, "hrm.z_l_init": true,
		"masked_embd_centroids": true, "masked_embd_ordering": true,
	}
	tailNames = map[string]bool{
		"output": true, "output_norm": true, "enc.output_norm": true, "dec.output_norm": true, "output_res_score": true,
		"output_hc_fn": true, "output_hc_base": true, "output_hc_scale": true, "output_hc_norm": true, "output_hc_down": true, "output_hc_up": true,
		"cls": true, "cls.output": true, "cls.norm": true, "dense_2": true, "dense_3": true, "altup_unembd_proj": true,
		"nextn.pre_projection": true, "nextn.post_projection": true, "fc": true, "d2t": true, "conf_proj": true, "markov_w1": true, "markov_w2": true,
		"selector_predecessor": true, "selector_successor": true, "selector_hidden": true,
	}
	// lfm2 stores its final norm under the name that others give to a norm of the embedding
	tailNorm = map[string]bool{"lfm2": true, "lfm2moe": true}
)

// Role says which shards need a tensor.
func (m *Model) Role(t Tensor) Role {
	if _, ok := layerOf(t.Name); ok {
		return RoleLayer
	}
	base := t.Name
	if i := strings.LastIndexByte(base, '.'); i > 0 {
		base = base[:i]
	}
	switch {
	case base == "token_embd_norm" && tailNorm[m.arch]:
		return RoleTail
	case headNames[base]:
		return RoleHead
	case tailNames[base]:
		return RoleTail
	}
	return RoleShared
}

// Own returns the test for the tensors that the shard with the layers r needs: those of its layers; at the head the
// token embedding and what belongs to it; at the tail final norm, output matrix, the layers for multi-token prediction
// and, where embeddings are tied, its copy of the token embedding; and what every shard needs. End 0 is the last layer.
func (m *Model) Own(r engine.LayerRange) func(Tensor) bool {
	if r.End == 0 {
		r.End = m.NLayer()
	}
	head, tail := r.First == 0, r.End >= m.NLayer()
	return func(t Tensor) bool {
		switch m.Role(t) {
		case RoleLayer:
			il, _ := layerOf(t.Name)
			return uint32(il) >= r.First && (uint32(il) < r.End || tail)
		case RoleHead:
			return head || tail && m.tied && t.Name == "token_embd.weight"
		case RoleTail:
			return tail
		}
		return true
	}
}

// OwnBytes is the size of the data that the shard with the layers r needs.
func (m *Model) OwnBytes(r engine.LayerRange) (n uint64) {
	own := m.Own(r)
	for _, t := range m.Tensors {
		if own(t) {
			n += t.Size
		}
	}
	return n
}
