package run

import (
	"strings"
	"unicode/utf8"
)

// assembler turns tokens' bytes into text: it holds back a UTF-8 sequence that is not whole yet and whatever may be the
// beginning of a stop string, and replaces what can be no UTF-8 by U+FFFD.
type assembler struct {
	stops   []string
	bytes   []byte // of a sequence that is not whole
	held    string // maybe a stop string's beginning
	stopped bool
}

// add takes the bytes of one token and returns the text that is certain now. After a stop string there is none.
func (a *assembler) add(token []byte) string {
	if a.stopped {
		return ""
	}
	a.bytes = append(a.bytes, token...)
	whole := len(a.bytes)
	for back := 1; back < utf8.UTFMax && back <= len(a.bytes); back++ {
		if tail := a.bytes[len(a.bytes)-back:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				whole -= back
			}
			break
		}
	}
	text := strings.ToValidUTF8(string(a.bytes[:whole]), string(utf8.RuneError))
	a.bytes = a.bytes[whole:]
	return a.cut(a.held + text)
}

// cut returns text up to the first stop string, and keeps what may become one.
func (a *assembler) cut(text string) string {
	a.held = ""
	first := -1
	for _, stop := range a.stops {
		if at := strings.Index(text, stop); at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	if first >= 0 {
		a.stopped = true
		return text[:first]
	}
	keep := 0
	for _, stop := range a.stops {
		for n := min(len(stop)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				keep = n
				break
			}
		}
	}
	a.held = text[len(text)-keep:]
	return text[:len(text)-keep]
}

// end is the text that was held back, once no more tokens come.
func (a *assembler) end() string {
	if a.stopped {
		return ""
	}
	text := a.held + strings.ToValidUTF8(string(a.bytes), string(utf8.RuneError))
	a.held, a.bytes = "", nil
	return text
}
