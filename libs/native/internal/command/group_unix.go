//go:build unix

package command

import (
	"os/exec"
	"syscall"
)

// endGroup asks: ninja keeps each compiler in a group of its own, and only it can end those.
func endGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}
