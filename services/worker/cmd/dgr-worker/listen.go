package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// listen opens the address that the option flag gave.
func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s is in use by another program; stop that one, or give another address with --%s (port 0 takes a free one)", address, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is no address of this machine; give one that is with --%s", address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("%s may not be listened on by this user; give a port from 1024 with --%s", address, flag)
	}
	return nil, fmt.Errorf("%s cannot be listened on (%w); give another address with --%s", address, err, flag)
}

// nameOf makes a worker's name of the machine's and the port.
func nameOf(l net.Listener) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "worker"
	}
	legal := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}
	host = strings.Map(legal, host)
	return fmt.Sprintf("%.100s-%d", host, l.Addr().(*net.TCPAddr).Port)
}
