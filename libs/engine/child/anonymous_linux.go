package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// anonymousFile is memory that the system counts as this process's and its child's.
func anonymousFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("dgr-engine", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "dgr-engine"), nil
}
