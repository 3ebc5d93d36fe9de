//go:build unix && !linux

package child

// noSignal: the runtime ignores SIGPIPE of files beyond the standard ones.
const noSignal = 0
