package child

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const lineBytes = 4 << 10 // more of one line is not kept

// signs are what stands in the line by which a program says that it gives up.
var signs = []string{"GGML_ASSERT", "GGML_ABORT", "panic: ", "fatal error: ", "terminate called", "SIGSEGV", "SIGBUS"}

// output passes on what a child prints and keeps the line that tells best why it ended.
type output struct {
	through io.Writer

	mu      sync.Mutex
	partial []byte
	last    string
	sign    string // the first line with one: what follows is the trace of it
}

// Write takes what the child printed.
func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for rest := data; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		o.partial = append(o.partial, line[:min(len(line), lineBytes-len(o.partial))]...)
		if whole {
			o.keep()
		}
		rest = after
	}
	return o.through.Write(data)
}

// keep takes the partial line as a whole one.
func (o *output) keep() {
	line := strings.TrimSpace(string(o.partial))
	o.partial = o.partial[:0]
	if line == "" {
		return
	}
	o.last = line
	for _, sign := range signs {
		if o.sign == "" && strings.Contains(line, sign) {
			o.sign = line
		}
	}
}

// telling is the line where something gave up, else the last.
func (o *output) telling() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keep()
	if o.sign != "" {
		return o.sign
	}
	return o.last
}
