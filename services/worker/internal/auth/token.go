package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/libs/client/reload"
)

// byToken is how principals begin that a token proved.
const byToken = "token:"

// Tokens knows peers by bearer tokens, of which a file holds the hashes.
type Tokens struct{ file *reload.Value[tokens] }

// tokens are the lines of the file.
type tokens struct {
	all    []token
	grants grants
}

type token struct {
	name string
	hash [sha256.Size]byte
}

// NewTokens reads a file of lines NAME: HASH: OPERATIONS, and again when it changes. HASH is the SHA-256 of the token in 64 hex
// digits; a token should be drawn at random, at least 128 bits. A name may have several lines, so that tokens can be
// replaced one after the other; all must have the same operations.
func NewTokens(log *slog.Logger, path string) (*Tokens, error) {
	if stat, err := os.Stat(path); err == nil && stat.Mode().Perm()&0o004 != 0 {
		log.Warn("everybody on this machine can read the token file; chmod 600 it", "file", path)
	}
	file, err := reload.Open(log, func(contents [][]byte) (tokens, error) { return parseTokens(contents[0]) }, path)
	return &Tokens{file}, err
}

func parseTokens(content []byte) (tokens, error) {
	t := tokens{grants: grants{}}
	err := lines(content, func(line string) error {
		name, rest, _ := strings.Cut(line, ":")
		digits, list, ok := strings.Cut(rest, ":")
		hash, err := hex.DecodeString(strings.TrimSpace(digits))
		if name = strings.TrimSpace(name); !ok || name == "" || name == "*" || err != nil || len(hash) != sha256.Size {
			return errors.New("write NAME: SHA-256 of the token in 64 hex digits: OPERATIONS")
		}
		set, err := parseOperations(list)
		if err != nil { // its words could be a token in the wrong place
			return errors.New("the last part is no list of operations; there are " + joined(operations()) + " and all")
		}
		if before, ok := t.grants[name]; ok && joined(before) != joined(set) {
			return errors.New("this name had other operations on a line above")
		}
		t.all = append(t.all, token{name, [sha256.Size]byte(hash)})
		t.grants[name] = set
		return nil
	})
	return t, err
}

// Authenticate compares with every line, in a time that does not tell which was met.
func (t *Tokens) Authenticate(_ context.Context, p Peer) (Principal, error) {
	secret, ok := bearer(p.Authorization)
	if !ok {
		return "", errors.New("it showed no bearer token")
	}
	hash := sha256.Sum256([]byte(secret))
	found := Principal("")
	for _, known := range t.file.Get().all {
		if subtle.ConstantTimeCompare(hash[:], known.hash[:]) == 1 {
			found = Principal(byToken + known.name)
		}
	}
	if found == "" {
		return "", errors.New("its bearer token is not known")
	}
	return found, nil
}

// Authorize allows what the name of a token is listed for.
func (t *Tokens) Authorize(_ context.Context, who Principal, _ Peer, what Operation) error {
	name, ok := strings.CutPrefix(string(who), byToken)
	if !ok {
		return errors.New("it was not known by a token")
	}
	return t.file.Get().grants.allow(name, what)
}

// bearer is the token of an Authorization header.
func bearer(header string) (string, bool) {
	scheme, secret, ok := strings.Cut(header, " ")
	secret = strings.TrimSpace(secret)
	return secret, ok && strings.EqualFold(scheme, "bearer") && secret != ""
}
