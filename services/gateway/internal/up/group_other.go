//go:build !unix

package up

import "syscall"

// ownGroup: there are no process groups here.
func ownGroup() *syscall.SysProcAttr { return nil }
