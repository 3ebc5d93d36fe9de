package bpe

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const text = "The head is the first shard.\n\nThe tail is the last shard; the tail chooses the token.\n"

func TestTextComesBack(t *testing.T) {
	v := Train(text, 290)
	cases := []string{
		"", " ", "  two  spaces ", "\n", "\n\n a \n", text, "nothing of this was seen: ÄÖÜ, 漢字, 🦙",
		"\xff\xfe broken \xc3", "tab\tand\r\n", "<s></s><unk><0x41>", strings.Repeat("shard ", 50),
	}
	for _, c := range cases {
		if got := v.Decode(v.Encode(c)); got != c {
			t.Errorf("%q comes back as %q", c, got)
		}
	}
}

func TestAnyBytesComeBack(t *testing.T) {
	v := Train(text, 290)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		raw := make([]byte, rng.IntN(40))
		for i := range raw {
			raw[i] = byte(rng.IntN(256))
		}
		s := strings.ReplaceAll(string(raw), space, " ")
		if got := v.Decode(v.Encode(s)); got != s {
			t.Fatalf("%q comes back as %q", s, got)
		}
	}
}

func TestEncodeMergesByRank(t *testing.T) {
	v := Train("ab ab ab abc abc bc bc bc bc bc", 264)
	if got, want := v.Tokens[Smallest:], []string{"bc", space + "bc", space + "a", space + "ab"}; !slices.Equal(got, want) {
		t.Fatalf("merges are %q, want %q", got, want)
	}
	// "bc" was merged first, so the b of abc is taken when a looks for it.
	if got, want := v.Encode("abc"), []int{BOS, firstByte + 'a', Smallest}; !slices.Equal(got, want) {
		t.Errorf("abc is %v, want %v", got, want)
	}
	if got, want := v.Encode(" ab bc"), []int{BOS, Smallest + 3, Smallest + 1}; !slices.Equal(got, want) {
		t.Errorf(" ab bc is %v, want %v", got, want)
	}
}

func TestTrainIsDeterministicAndBounded(t *testing.T) {
	a, b := Train(text, 290), Train(text, 290)
	if !slices.Equal(a.Tokens, b.Tokens) {
		t.Error("the same text gave two vocabularies")
	}
	if len(a.Tokens) != 290 {
		t.Errorf("vocabulary has %d tokens, want 290", len(a.Tokens))
	}
	if n := len(Train("ab", 10_000).Tokens); n != Smallest+1 {
		t.Errorf("a text with one pair gave %d tokens, want %d", n, Smallest+1)
	}
}

func TestNewReadsAHeaderBack(t *testing.T) {
	v := Train(text, 290)
	back, err := New(v.Tokens)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := back.Encode(text), v.Encode(text); !slices.Equal(got, want) {
		t.Errorf("read back, the text is %v, want %v", got, want)
	}
	if _, err := New(v.Tokens[:100]); err == nil {
		t.Error("a vocabulary without all bytes was accepted")
	}
	if _, err := New(append([]string{"<pad>"}, v.Tokens...)); err == nil {
		t.Error("a vocabulary of another order was accepted")
	}
}

func TestHeaderListsFollowTheOrderOfMerges(t *testing.T) {
	v := Train(text, 290)
	for id, want := range map[int]Type{0: Unknown, 1: Control, 2: Control, 3: Byte, 258: Byte, 259: Normal, 289: Normal} {
		if got := v.Type(id); got != want {
			t.Errorf("token %d has type %d, want %d", id, got, want)
		}
	}
	for id := Smallest + 1; id < len(v.Tokens); id++ {
		if v.Score(id) >= v.Score(id-1) {
			t.Errorf("merge %d has score %g, not below %g of the one before", id, v.Score(id), v.Score(id-1))
		}
	}
	if v.Score(spaceID) >= v.Score(len(v.Tokens)-1) {
		t.Error("a lone space scores no less than a merge")
	}
}
