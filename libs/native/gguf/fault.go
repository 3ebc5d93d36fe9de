package gguf

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// What a reader of an error can do.
const (
	fetchAgain   = "fetch the file again"
	convertAgain = "the file is broken or was made by a faulty converter: fetch or convert it again"
)

// bad is a BAD_MODEL_FILE about one file.
func bad(path, format string, args ...any) *engine.Error {
	return &engine.Error{Code: engine.BadModelFile, Message: fmt.Sprintf("model file %q ", path) + fmt.Sprintf(format, args...)}
}

// badIO is a BAD_MODEL_FILE for a failed system call on a file.
func badIO(path string, err error) *engine.Error {
	e := bad(path, "cannot be read (%s): check the disk and the permissions", reason(err))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e = bad(path, "does not exist: check the path")
	case errors.Is(err, fs.ErrPermission):
		e = bad(path, "may not be read by this user: change its permissions")
	}
	e.Err = err
	return e
}

// reason is what the system said, without the path that the sentence names already.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
