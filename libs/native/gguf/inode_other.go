//go:build !unix

package gguf

import "io/fs"

// inode is 0: this system numbers no files where fs.FileInfo shows it.
func inode(fs.FileInfo) uint64 { return 0 }
