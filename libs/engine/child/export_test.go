//go:build unix

package child

// Kill ends the child as the system's killer does.
func (e *Engine) Kill() { e.process.kill() }

// PID is the child's.
func (e *Engine) PID() int { return e.process.cmd.Process.Pid }
