package bpe

import "strings"

// Encode returns the ids of text as llama.cpp gives them with a BOS and without a space before the text.
func (v *Vocab) Encode(text string) []int {
	ids := []int{BOS}
	for _, w := range split(text) {
		ids = v.encodeWord(ids, w)
	}
	return ids
}

// encodeWord joins the neighbours whose merge was learned first, the leftmost among equals, until none is left.
func (v *Vocab) encodeWord(ids []int, w string) []int {
	s := symbols(w)
	for {
		at, first := -1, len(v.Tokens)
		for i := 0; i+1 < len(s); i++ {
			if id, ok := v.merges[s[i]+s[i+1]]; ok && id < first {
				at, first = i, id
			}
		}
		if at < 0 {
			break
		}
		s[at] += s[at+1]
		s = append(s[:at+1], s[at+2:]...)
	}
	for _, p := range s {
		if p == space {
			ids = append(ids, spaceID)
		} else if id, ok := v.merges[p]; ok {
			ids = append(ids, id)
		} else {
			for _, b := range []byte(p) {
				ids = append(ids, firstByte+int(b))
			}
		}
	}
	return ids
}

// Decode returns the text of ids; UnknownID, BOS and EOS have none. An id must be in the vocabulary.
func (v *Vocab) Decode(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		switch v.Type(id) {
		case Byte:
			b.WriteByte(byte(id - firstByte))
		case Normal:
			b.WriteString(strings.ReplaceAll(v.Tokens[id], space, " "))
		}
	}
	return b.String()
}
