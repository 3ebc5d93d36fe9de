// Package reload keeps what is made of files that others replace while the program runs: certificates, keys, tokens.
//
// There is no watcher: whoever needs the value asks for it, and the files are looked at then. A change that cannot be used
// is told to the log, and what was there before stays.
package reload

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	fileBytes = 1 << 20         // most of one file
	settle    = 2 * time.Second // file systems tell times apart no better than so
)

// Value is what is made of some files. All methods may be called from any goroutine.
type Value[T any] struct {
	paths []string
	make  func(contents [][]byte) (T, error)
	log   *slog.Logger

	mu       sync.Mutex
	now      T
	stats    []os.FileInfo // of the files as they were last read
	settled  bool          // a change after that would show in stats
	digest   [sha256.Size]byte
	complain string // what was last logged
}

// Open reads the files for the first time. make gets their contents in the order of paths; its error must not repeat them,
// for it is logged.
//
// Errors: a file that cannot be read or is larger than 1 MiB; make's.
func Open[T any](log *slog.Logger, make func(contents [][]byte) (T, error), paths ...string) (*Value[T], error) {
	v := &Value[T]{paths: paths, make: make, log: log}
	if err := v.renew(); err != nil {
		return nil, err
	}
	return v, nil
}

// Get is the value of the files as they are now, or of the last ones that could be used.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.unchanged() {
		return v.now
	}
	err := v.renew()
	switch {
	case err == nil:
		v.complain = ""
	case err.Error() != v.complain:
		v.complain = err.Error()
		v.log.Error("changed files cannot be used; what they held before stays in use", "files", v.paths, "cause", err)
	}
	return v.now
}

// unchanged says whether the files are certainly those that were read.
func (v *Value[T]) unchanged() bool {
	if !v.settled {
		return false
	}
	for i, path := range v.paths {
		now, err := os.Stat(path)
		if err != nil || !now.ModTime().Equal(v.stats[i].ModTime()) || now.Size() != v.stats[i].Size() || !os.SameFile(now, v.stats[i]) {
			return false
		}
	}
	return true
}

// renew reads the files, and makes the value if they hold anything new.
func (v *Value[T]) renew() error {
	v.settled = false
	contents := make([][]byte, len(v.paths))
	stats := make([]os.FileInfo, len(v.paths))
	settled := true
	hash := sha256.New()
	for i, path := range v.paths {
		var err error
		if contents[i], stats[i], err = read(path); err != nil {
			return err
		}
		settled = settled && time.Since(stats[i].ModTime()) > settle
		part := sha256.Sum256(contents[i])
		hash.Write(part[:])
	}
	digest := [sha256.Size]byte(hash.Sum(nil))
	if digest != v.digest {
		made, err := v.make(contents)
		if err != nil {
			return err
		}
		if v.stats != nil {
			v.log.Info("files changed and are in use", "files", v.paths)
		}
		v.now, v.digest = made, digest
	}
	v.stats, v.settled = stats, settled
	return nil
}

// read returns a file and how it looked just before.
func read(path string) ([]byte, os.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() // it was only read
	stat, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !stat.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is no regular file", path)
	}
	content, err := io.ReadAll(io.LimitReader(f, fileBytes+1))
	if err != nil {
		return nil, nil, err
	}
	if len(content) > fileBytes {
		return nil, nil, errors.New(path + " is larger than 1 MiB")
	}
	return content, stat, nil
}
