package enginetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const sentence = "A shard is a range of layers."

func (s suite) textCases() []testCase {
	return []testCase{
		{"there_and_back", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			for _, text := range []string{sentence, "two\nlines", "ünïcödé 漢字", "a  b"} {
				ids := sh.tokenize(t, text, false, false)
				got, err := sh.text.Detokenize(t.Context(), ids, false)
				if err != nil {
					t.Fatal(err)
				}
				// A vocabulary may put one space before the first word.
				if strings.TrimPrefix(string(got), " ") != text {
					t.Errorf("%q came back as %q", text, got)
				}
			}
		}},
		{"bytes_of_tokens_join_to_the_text", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			ids := sh.tokenize(t, "ünïcödé 漢字", false, false)
			whole, err := sh.text.Detokenize(t.Context(), ids, false)
			if err != nil {
				t.Fatal(err)
			}
			var joined []byte
			for _, id := range ids {
				part, err := sh.text.Detokenize(t.Context(), []engine.TokenID{id}, false)
				if err != nil {
					t.Fatal(err)
				}
				joined = append(joined, part...)
			}
			if strings.TrimPrefix(string(joined), " ") != strings.TrimPrefix(string(whole), " ") {
				t.Errorf("token by token %q, at once %q", joined, whole)
			}
		}},
		{"ids_are_of_the_vocabulary", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			for _, id := range sh.tokenize(t, sentence, true, true) {
				if uint32(id) >= sh.info.Vocab {
					t.Errorf("token %d of %d", id, sh.info.Vocab)
				}
			}
		}},
		{"special_tokens_are_added_once", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			plain, special := sh.tokenize(t, sentence, false, false), sh.tokenize(t, sentence, true, false)
			at := indexOf(special, plain)
			if at < 0 || at > 1 || len(special)-len(plain)-at > 1 {
				t.Errorf("with special tokens %v, without %v", special, plain)
			}
		}},
		{"empty", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			if ids := sh.tokenize(t, "", false, false); len(ids) != 0 {
				t.Errorf("no text is %v", ids)
			}
			if got, err := sh.text.Detokenize(t.Context(), nil, false); err != nil || len(got) != 0 {
				t.Errorf("no tokens are %q, %v", got, err)
			}
		}},
		{"invalid_utf8_is_taken_byte_by_byte", s.needs(AnyBytes, func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			if ids := sh.tokenize(t, "a\xff\xfeb", false, false); len(ids) == 0 {
				t.Error("invalid UTF-8 gave no token")
			}
		})},
		{"token_out_of_range", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			for _, id := range []engine.TokenID{engine.TokenID(sh.info.Vocab), 1<<32 - 1} {
				_, err := sh.text.Detokenize(t.Context(), []engine.TokenID{1, id}, false)
				wantCode(t, err, engine.TokenOutOfRange)
			}
		}},
		{"every_token_can_be_written", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			for id := range engine.TokenID(sh.info.Vocab) {
				if _, err := sh.text.Detokenize(t.Context(), []engine.TokenID{id}, true); err != nil {
					t.Fatalf("token %d: %v", id, err)
				}
			}
		}},
		{"every_shard_answers_alike", func(t *testing.T) {
			whole := s.load(t, engine.LayerRange{})
			want := whole.tokenize(t, sentence, true, true)
			for _, sh := range s.loadChain(t, whole.info.NLayer, s.cuts(whole.info.NLayer)...) {
				if got := sh.tokenize(t, sentence, true, true); !slices.Equal(got, want) {
					t.Errorf("layers %s: %v, want %v", sh.info.Layers, got, want)
				}
				if sh.text.HasChatTemplate() != whole.text.HasChatTemplate() {
					t.Errorf("layers %s disagree about the chat template", sh.info.Layers)
				}
			}
		}},
		{"from_many_goroutines", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			want := fmt.Sprint(sh.tokenize(t, sentence, true, true))
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					for range 20 {
						ids, err := sh.text.Tokenize(t.Context(), sentence, true, true)
						if err != nil || fmt.Sprint(ids) != want {
							t.Errorf("%v, %v, want %s", ids, err, want)
						}
					}
				})
			}
			within(t, "tokenizing", group.Wait)
		}},
	}
}

func (sh *shard) tokenize(t *testing.T, text string, addSpecial, parseSpecial bool) []engine.TokenID {
	t.Helper()
	ids, err := sh.text.Tokenize(t.Context(), text, addSpecial, parseSpecial)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// indexOf is where part stands in whole, or −1.
func indexOf(whole, part []engine.TokenID) int {
	for i := 0; i+len(part) <= len(whole); i++ {
		if slices.Equal(whole[i:i+len(part)], part) {
			return i
		}
	}
	return -1
}
