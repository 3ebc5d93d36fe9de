package gguf

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// lockPoll is how often a process asks whether another has finished reading the model.
const lockPoll = 100 * time.Millisecond

// lockManifest keeps other processes of this user from making the same manifest at the same time: five workers that start
// at once on one machine would read the whole model five times. It waits until ctx ends, and the system frees the lock of
// a process that died. Where a lock cannot be had at all it goes on without: the manifest is then made twice, not wrong.
func (m *Model) lockManifest(ctx context.Context) (unlock func(), err error) {
	none := func() {}
	places := m.cachePaths()
	if len(places) < 2 {
		return none, nil // no cache directory
	}
	path := places[1] + ".lock"
	if os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return none, nil
	}
	lock := flock.New(path)
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return none, nil
	}
	return func() { _ = lock.Close() }, nil // closing frees it
}
