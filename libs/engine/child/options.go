package child

import (
	"io"
	"os/exec"
	"time"
)

// Options say how children are started and what is expected of them.
type Options struct {
	// Command makes the command whose process calls Serve. Its standard files and ExtraFiles are set by New. Required.
	Command func() *exec.Cmd
	// Output gets what the child prints; nil: standard error.
	Output io.Writer
	// Patience is how long native code may go on after its work was cancelled or closed, and how long a call that
	// computes nothing may take. Then it counts as hung, and the process is killed. 0: 30 s.
	Patience time.Duration
}

const defaultPatience = 30 * time.Second
