package cachehash

import (
	"encoding/hex"
	"testing"
)

// The vectors were computed apart from this code, with another language's SHA-256, from fingerprint 00 01 … 1f.
func TestGoldenVectors(t *testing.T) {
	var fingerprint [32]byte
	for i := range fingerprint {
		fingerprint[i] = byte(i)
	}
	chain := NewChain(fingerprint)
	chain.Append(1, 403, 0xffffffff)
	for length, want := range []string{
		"630dcd2966c4336691125448bbb25b4f",
		"d679fafc822373b60cae6954b7e2fed2",
		"5799a224e06a562a0686e6c058eba444",
		"d9e83c395590d412f3727250eb2b7b7c",
	} {
		got, ok := chain.At(uint32(length))
		if !ok || hex.EncodeToString(got[:]) != want {
			t.Errorf("hash at length %d is %x, want %s", length, got, want)
		}
	}
}

func TestTruncateThenAppendEqualsFresh(t *testing.T) {
	var fingerprint [32]byte
	chain, fresh := NewChain(fingerprint), NewChain(fingerprint)
	chain.Append(5, 6, 7, 8)
	chain.Truncate(9)
	if chain.Len() != 4 {
		t.Fatalf("truncating beyond the end changed the length to %d", chain.Len())
	}
	chain.Truncate(2)
	chain.Append(9)
	fresh.Append(5, 6, 9)
	if chain.Last() != fresh.Last() || chain.Len() != 3 {
		t.Errorf("truncated chain %x of length %d differs from fresh chain %x", chain.Last(), chain.Len(), fresh.Last())
	}
	if _, ok := chain.At(4); ok {
		t.Error("a hash beyond the end was given")
	}
}

func TestModelsDoNotShareHashes(t *testing.T) {
	if Start([32]byte{1}) == Start([32]byte{2}) {
		t.Error("two models start with the same hash")
	}
}
