// Package cachehash computes the chain hash by which both ends of a link agree on what a cache holds.
//
// It is a SHA-256 chain and not a fast hash, because prefixes are shared between sessions by it: who could forge a
// collision could read another's cache. Nothing else belongs here.
package cachehash

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Size is the length of a Hash in bytes.
const Size = 16

// Hash names a sequence of tokens of one model.
type Hash [Size]byte

// Start is the hash of the empty sequence: h0 = SHA-256(fingerprint)[:16], where fingerprint is the model's 32 bytes.
func Start(fingerprint [32]byte) Hash {
	sum := sha256.Sum256(fingerprint[:])
	return Hash(sum[:Size])
}

// Next is the hash of the sequence with one token more: h(i+1) = SHA-256(h(i) || le32(token_i))[:16].
func (h Hash) Next(token uint32) Hash {
	var in [Size + 4]byte
	copy(in[:], h[:])
	binary.LittleEndian.PutUint32(in[Size:], token)
	sum := sha256.Sum256(in[:])
	return Hash(sum[:Size])
}

// Chain is the hashes of one session's cache at every length from 0, so that going back costs nothing.
type Chain struct{ at []Hash }

// NewChain is the chain of an empty cache.
func NewChain(fingerprint [32]byte) *Chain { return &Chain{at: []Hash{Start(fingerprint)}} }

// Len is the number of tokens.
func (c *Chain) Len() uint32 { return uint32(len(c.at) - 1) }

// Append adds tokens at the end.
func (c *Chain) Append(tokens ...uint32) {
	last := c.at[len(c.at)-1]
	for _, token := range tokens {
		last = last.Next(token)
		c.at = append(c.at, last)
	}
}

// Truncate forgets all after length tokens; beyond the end it does nothing.
func (c *Chain) Truncate(length uint32) {
	if length < c.Len() {
		c.at = c.at[:length+1]
	}
}

// Clone is a chain of its own of the first length tokens, or of all when there are fewer.
func (c *Chain) Clone(length uint32) *Chain {
	return &Chain{at: slices.Clone(c.at[:min(length, c.Len())+1])}
}

// At is the hash at length tokens; ok is false beyond the end.
func (c *Chain) At(length uint32) (h Hash, ok bool) {
	if length > c.Len() {
		return Hash{}, false
	}
	return c.at[length], true
}

// Last is the hash of the whole sequence.
func (c *Chain) Last() Hash { return c.at[len(c.at)-1] }
