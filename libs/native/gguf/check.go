package gguf

import (
	"fmt"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// check refuses metadata that llama.cpp would refuse or, worse, that would make it abort the process: it asserts where
// it does not expect a file to lie. It also works out layers and vocabulary.
func (m *Model) check() error {
	steps := []func() error{m.checkIdentity, m.checkLayers, m.checkExperts, m.checkRope, m.checkVocab, m.checkDense, m.checkShard}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// bad is a BAD_MODEL_FILE about the model, named by its first file.
func (m *Model) bad(format string, args ...any) *engine.Error {
	return bad(m.Paths[0], format, args...)
}

func (m *Model) checkIdentity() error {
	if m.arch == "" {
		return m.bad("names no architecture (key general.architecture): it is no model, or %s", convertAgain)
	}
	if len(m.Tensors) == 0 {
		return m.bad("holds no tensors: it is a vocabulary without a model, name the model's file")
	}
	return nil
}

// u32 reads a key of the architecture that must be a u32 where it is there.
func (m *Model) u32(name string) (n uint32, found bool, err error) {
	v, ok := m.KV.Get(m.key(name))
	if !ok {
		return 0, false, nil
	}
	x, ok := v.Uint()
	if v.Type() != TypeUint32 || !ok {
		return 0, true, m.bad("has a key %q of type %s where u32 is expected: %s", m.key(name), v.Type(), convertAgain)
	}
	return uint32(x), true, nil
}

func (m *Model) checkLayers() error {
	blocks, found, err := m.u32("block_count")
	if err != nil {
		return err
	}
	if !found {
		return m.bad("does not say how many layers it has (key %q): architecture %q is no language model, or %s", m.key("block_count"), m.arch, convertAgain)
	}
	extra, _, err := m.u32("nextn_predict_layers")
	if err != nil {
		return err
	}
	if blocks == 0 || blocks > maxLayers || extra >= blocks {
		return m.bad("claims %d layers, %d of them for multi-token prediction, where 1 to %d are possible: %s", blocks, extra, maxLayers, convertAgain)
	}
	width, found, err := m.u32("embedding_length")
	if err == nil && (!found || width == 0) {
		err = m.bad("does not say how wide its hidden state is (key %q): %s", m.key("embedding_length"), convertAgain)
	}
	if err != nil {
		return err
	}
	for _, t := range m.Tensors {
		if il, ok := layerOf(t.Name); ok && il >= int(blocks) {
			return m.bad("has tensor %q beyond its %d layers: %s", t.Name, blocks, convertAgain)
		}
	}
	m.blocks, m.extra = blocks, extra
	return nil
}

func (m *Model) checkExperts() error {
	experts, _, err := m.u32("expert_count")
	if err != nil {
		return err
	}
	var used uint64
	if v, ok := m.KV.Get(m.key("expert_used_count")); ok {
		for i := range v.Len() {
			n, _ := v.UintAt(i)
			used = max(used, n)
		}
	}
	groups, _, err := m.u32("expert_group_count")
	if err != nil {
		return err
	}
	groupsUsed, _, err := m.u32("expert_group_used_count")
	if err != nil {
		return err
	}
	ok := experts <= 1024 && used <= uint64(experts)
	if experts == 0 {
		ok = ok && groups == 0
	} else {
		ok = ok && used > 0 && groups < experts
		if groups > 1 {
			ok = ok && experts%groups == 0 && groupsUsed > 0 && groupsUsed < groups
		}
	}
	if !ok && !strings.HasPrefix(m.arch, "hunyuan") { // these write one expert and use none
		return m.bad("claims %d experts in %d groups with %d of them used, which cannot be: %s", experts, groups, used, convertAgain)
	}
	return nil
}

func (m *Model) checkRope() error {
	v, ok := m.KV.Get(m.key("rope.scaling.type"))
	if !ok {
		return nil
	}
	s, _ := v.Text()
	switch s {
	case "none", "linear", "yarn", "longrope":
		return nil
	}
	return m.bad("has the unknown rope scaling %q: upgrade DGR, or %s", s, convertAgain)
}

// checkVocab checks the tokenizer's lists against each other.
func (m *Model) checkVocab() error {
	list, found := m.KV.Get("tokenizer.ggml.tokens")
	tokens, ok := list.Texts()
	if found && !ok {
		return m.bad("has a vocabulary that is no list of strings: %s", convertAgain)
	}
	if !found {
		m.vocab = m.number("vocab_size")
		return nil
	}
	if len(tokens) == 0 {
		return m.bad("has an empty vocabulary: %s", convertAgain)
	}
	m.vocab = uint32(len(tokens))
	seen := make(map[string]int, len(tokens))
	for i, s := range tokens {
		// what llama.cpp makes of it
		s, _, _ = strings.Cut(s, "\x00")
		if s == "" {
			s = fmt.Sprintf("[EMPTY_%d]", i)
		}
		if j, double := seen[s]; double {
			return m.bad("has token %q twice, as %d and %d: %s", s, j, i, convertAgain)
		}
		seen[s] = i
	}
	for _, k := range []struct {
		key   string
		types [2]ValueType
	}{{"tokenizer.ggml.scores", [2]ValueType{TypeFloat32, TypeInt32}}, {"tokenizer.ggml.token_type", [2]ValueType{TypeInt32, TypeInt32}}} {
		v, ok := m.KV.Get(k.key)
		if !ok {
			continue
		}
		if v.Type() != TypeArray || (v.Elem() != k.types[0] && v.Elem() != k.types[1]) || v.Len() < len(tokens) {
			return m.bad("has a list %q that does not fit its %d tokens: %s", k.key, len(tokens), convertAgain)
		}
	}
	return nil
}
