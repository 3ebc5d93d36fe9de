//go:build unix

package child

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// doorbell is one end of the steps socket. A ring says how many bytes of shared memory are meant. Reads block the thread.
type doorbell struct{ fd int }

// ring is what one side tells the other: the batch by its number, and how much of shared memory it fills.
type ring struct {
	batch  uint64
	header uint64 // bytes of what is encoded
	total  uint64 // bytes with the rows behind it
}

const ringBytes = 24

func (d doorbell) ring(r ring) error {
	var b [ringBytes]byte
	binary.LittleEndian.PutUint64(b[0:], r.batch)
	binary.LittleEndian.PutUint64(b[8:], r.header)
	binary.LittleEndian.PutUint64(b[16:], r.total)
	for rest := b[:]; len(rest) > 0; {
		n, err := unix.SendmsgN(d.fd, rest, nil, nil, noSignal)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("sendmsg", err)
		default:
			rest = rest[n:]
		}
	}
	return nil
}

// wait blocks until the other side rings. io.EOF: it is gone.
func (d doorbell) wait() (ring, error) {
	var b [ringBytes]byte
	for got := 0; got < len(b); {
		n, err := unix.Read(d.fd, b[got:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return ring{}, os.NewSyscallError("read", err)
		case n == 0:
			return ring{}, io.EOF
		default:
			got += n
		}
	}
	return ring{
		batch: binary.LittleEndian.Uint64(b[0:]), header: binary.LittleEndian.Uint64(b[8:]), total: binary.LittleEndian.Uint64(b[16:]),
	}, nil
}

// hangUp wakes whoever waits on either side.
func (d doorbell) hangUp() { _ = unix.Shutdown(d.fd, unix.SHUT_RDWR) }

func (d doorbell) close() { _ = unix.Close(d.fd) }
