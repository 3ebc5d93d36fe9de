package gguf

import (
	"io/fs"
	"os"
)

// Part is one file of a model.
type Part struct {
	Path  string
	State FileState // as it was when its header was read
}

// Open finds all files of a model from the path of any of them, reads their headers and checks them. Nothing stays open.
//
// A file is part of a split model when its own header says so (split.count of 2 or more), whatever its name looks like;
// the others then lie beside it, named `…-0000k-of-0000n.gguf`.
//
// Every error is BAD_MODEL_FILE; where a file is missing it is also fs.ErrNotExist.
func Open(path string) (*Model, error) {
	first, part, err := readFile(path)
	if err != nil {
		return nil, err
	}
	heads, parts := []*header{first}, []Part{part}
	split, err := splitOf(first)
	if err != nil {
		return nil, err
	}
	if split.count > 1 {
		if heads, parts, err = openParts(first, part, split); err != nil {
			return nil, err
		}
	}
	return assemble(heads, parts)
}

// readFile reads and checks the header of one file.
func readFile(path string) (*header, Part, error) {
	// before opening: a named pipe would block
	info, err := os.Stat(path)
	if err != nil {
		return nil, Part{}, badIO(path, err)
	}
	switch {
	case info.IsDir():
		return nil, Part{}, bad(path, "is a directory: name the .gguf file in it")
	case info.Mode().Type() != 0:
		return nil, Part{}, bad(path, "is no regular file (%s): name a .gguf file", info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, Part{}, badIO(path, err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, Part{}, badIO(path, err)
	}
	h, err := readHeader(path, f, uint64(info.Size()))
	return h, Part{Path: path, State: stateOf(info)}, err
}

// FileState tells whether a file is still the one that was read. Two states of the same file are equal (==) unless
// somebody wrote to it or put another in its place.
type FileState struct {
	Size    int64  `json:"size"`     // bytes
	ModTime int64  `json:"mtime_ns"` // nanoseconds since 1970
	Inode   uint64 `json:"inode"`    // 0 where the system has none
}

func stateOf(info fs.FileInfo) FileState {
	return FileState{Size: info.Size(), ModTime: info.ModTime().UnixNano(), Inode: inode(info)}
}

// open opens a part again and makes sure that it is the file whose header was read.
func (p Part) open() (*os.File, error) {
	f, err := os.Open(p.Path)
	if err != nil {
		return nil, badIO(p.Path, err)
	}
	if err := p.check(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// check says whether an open file is still as it was.
func (p Part) check(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return badIO(p.Path, err)
	}
	if stateOf(info) != p.State {
		return bad(p.Path, "changed while it was read: wait until nothing writes to it, then try again")
	}
	return nil
}
