//go:build unix

package child

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// region is memory that two processes share. One side alone writes it and may make it greater; the other reads.
type region struct {
	file *os.File
	data []byte // what is mapped here
}

const pageBytes = 64 << 10 // growth goes in multiples of this, a page of every system

// newRegion makes an empty region that no name leads to.
func newRegion() (*region, error) {
	file, err := anonymousFile()
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	return &region{file: file}, nil
}

// grow makes at least n bytes writable, keeping what they hold.
func (r *region) grow(n int) error {
	if n <= len(r.data) {
		return nil
	}
	n = max(n, len(r.data)+len(r.data)/2)
	n = (n + pageBytes - 1) / pageBytes * pageBytes
	if err := r.file.Truncate(int64(n)); err != nil {
		return fmt.Errorf("make shared memory of %d bytes: %w", n, err)
	}
	return r.remap(n, unix.PROT_READ|unix.PROT_WRITE)
}

// view is the first n bytes, which the other side has written.
func (r *region) view(n int) ([]byte, error) {
	if n > len(r.data) {
		info, err := r.file.Stat()
		if err != nil {
			return nil, err
		}
		if int64(n) > info.Size() {
			return nil, fmt.Errorf("%d bytes are announced, shared memory has %d", n, info.Size())
		}
		if err := r.remap(int(info.Size()), unix.PROT_READ); err != nil {
			return nil, err
		}
	}
	return r.data[:n:n], nil
}

func (r *region) remap(n, protection int) error {
	data, err := unix.Mmap(int(r.file.Fd()), 0, n, protection, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes of shared memory: %w", n, err)
	}
	if r.data != nil {
		_ = unix.Munmap(r.data)
	}
	r.data = data
	return nil
}

func (r *region) close() {
	if r.data != nil {
		_ = unix.Munmap(r.data)
		r.data = nil
	}
	_ = r.file.Close()
}
