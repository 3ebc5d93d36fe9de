package child

import "golang.org/x/sys/unix"

// noSignal keeps a write to a peer that is gone an error.
const noSignal = unix.MSG_NOSIGNAL
