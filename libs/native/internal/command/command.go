// Package command bounds child processes: what a context ends, ends with all it has started. What is run, and with which
// arguments, stays with the callers.
package command

import (
	"os/exec"
	"time"
)

// grace is how long pipes may stay open after the end of a command, held by helpers that outlive it.
const grace = 5 * time.Second

// EndGroup makes the end of the command's context end the helpers of the command too. Call it before the command starts.
func EndGroup(cmd *exec.Cmd) {
	cmd.WaitDelay = grace
	endGroup(cmd)
}
