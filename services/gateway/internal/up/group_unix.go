//go:build unix

package up

import "syscall"

// ownGroup keeps signals of the terminal away from a child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
