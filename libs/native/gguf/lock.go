package gguf

import (
	"context"
	"os"
	"runtime"
	"time"

	"github.com/gofrs/flock"
)

// lockPoll is how often a process asks whether another has finished reading the model.
const lockPoll = 100 * time.Millisecond

// lockManifest keeps other processes from making the same manifest at the same time: five workers that start at once on
// one machine would read the whole model five times. The lock is an advisory one on the (first) file, so that it leaves
// nothing behind and stops nobody who reads the file. It waits until ctx ends, and the system frees the lock of a process
// that died. Where a lock cannot be had at all it goes on without: the manifest is then made twice, not wrong.
func (m *Model) lockManifest(ctx context.Context) (unlock func(), err error) {
	none := func() {}
	if runtime.GOOS == "windows" { // whose locks would stop readers
		return none, nil
	}
	lock := flock.New(m.Paths[0], flock.SetFlag(os.O_RDONLY))
	if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
		_ = lock.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return none, nil
	}
	return func() { _ = lock.Close() }, nil // closing frees it
}
