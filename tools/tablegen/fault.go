package tablegen

import (
	"errors"
	"fmt"
)

// faults collects every fault of one file, so that one run reports them all.
type faults struct {
	file string
	all  []error
}

// add notes a fault at a line of the file; line 0 speaks of the file as a whole.
func (f *faults) add(line int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if line > 0 {
		f.all = append(f.all, fmt.Errorf("%s:%d: %s", f.file, line, text))
		return
	}
	f.all = append(f.all, fmt.Errorf("%s: %s", f.file, text))
}

// err joins what was found, nil when nothing was.
func (f *faults) err() error { return errors.Join(f.all...) }
