//go:build unix

package gguf

import (
	"io/fs"
	"syscall"
)

// inode is the file's number in its file system.
func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Ino)
	}
	return 0
}
