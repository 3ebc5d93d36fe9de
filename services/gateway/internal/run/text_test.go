package run

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// feed gives tokens one by one and returns each piece that came out.
func feed(a *assembler, tokens ...string) (pieces []string) {
	for _, token := range tokens {
		pieces = append(pieces, a.add([]byte(token)))
	}
	return append(pieces, a.end())
}

func TestTextIsAssembled(t *testing.T) {
	for name, c := range map[string]struct {
		stops  []string
		tokens []string
		want   string // pieces apart by |
	}{
		"plain":                     {nil, []string{"ab", " c"}, "ab| c|"},
		"nothing":                   {nil, nil, ""},
		"two bytes apart":           {nil, []string{"\xc3", "\xa9!"}, "|é!|"},
		"four bytes one by one":     {nil, []string{"\xf0", "\x9f", "\x98", "\x80"}, "|||😀|"},
		"end inside a sequence":     {nil, []string{"a\xf0\x9f"}, "a|\ufffd"},
		"no UTF-8 at all":           {nil, []string{"\xff", "a"}, "\ufffd|a|"},
		"stray continuation":        {nil, []string{"\x80\x80"}, "\ufffd|"},
		"sequence that breaks off":  {nil, []string{"\xe6\xbc", "x"}, "|\ufffdx|"},
		"stop in one token":         {[]string{"END"}, []string{"a END b", "c"}, "a ||"},
		"stop over tokens":          {[]string{"END"}, []string{"a E", "N", "D b"}, "a |||"},
		"stop that does not come":   {[]string{"END"}, []string{"a E", "N", "X"}, "a ||ENX|"},
		"beginning held to the end": {[]string{"END"}, []string{"a EN"}, "a |EN"},
		"the first of two stops":    {[]string{"bc", "b"}, []string{"abcd"}, "a|"},
		"the longest beginning":     {[]string{"aab"}, []string{"aaa", "b"}, "a||"},
		"stop over a sequence":      {[]string{"é"}, []string{"x\xc3", "\xa9y"}, "x||"},
	} {
		t.Run(name, func(t *testing.T) {
			a := &assembler{stops: c.stops}
			pieces := feed(a, c.tokens...)
			if got := strings.Join(pieces, "|"); got != c.want {
				t.Errorf("pieces %q, want %q", got, c.want)
			}
		})
	}
}

// However a text is cut into tokens, the same comes out, and each piece by itself is UTF-8.
func FuzzTextDoesNotDependOnTheCut(f *testing.F) {
	f.Add([]byte("ünïcödé 漢字 😀 END"), uint8(3))
	f.Add([]byte("\xff\xf0\x9f\x98EN"), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		whole := strings.Join(feed(&assembler{stops: []string{"END", "é"}}, string(text)), "")
		var tokens []string
		for n := int(size%7) + 1; len(text) > 0; text = text[min(n, len(text)):] {
			tokens = append(tokens, string(text[:min(n, len(text))]))
		}
		pieces := feed(&assembler{stops: []string{"END", "é"}}, tokens...)
		for _, piece := range pieces {
			if !utf8.ValidString(piece) {
				t.Errorf("piece %q is no UTF-8", piece)
			}
		}
		// Runs of bytes that are no UTF-8 become one mark or several, by the cut.
		squeeze := func(s string) string {
			for strings.Contains(s, "\ufffd\ufffd") {
				s = strings.ReplaceAll(s, "\ufffd\ufffd", "\ufffd")
			}
			return s
		}
		if got := strings.Join(pieces, ""); squeeze(got) != squeeze(whole) {
			t.Errorf("in tokens %q, at once %q", got, whole)
		}
	})
}
