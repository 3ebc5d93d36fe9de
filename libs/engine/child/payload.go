//go:build unix

package child

import "fmt"

// write puts what is encoded and the rows behind it into shared memory, and says how much that is.
func write(r *region, header []byte, rows [][]byte) (ring, error) {
	total := aligned(len(header))
	for _, data := range rows {
		total += len(data)
	}
	if err := r.grow(total); err != nil {
		return ring{}, err
	}
	copy(r.data, header)
	at := aligned(len(header))
	for _, data := range rows {
		at += copy(r.data[at:], data)
	}
	return ring{header: uint64(len(header)), total: uint64(total)}, nil
}

// read is what is encoded, and the rows behind it, as the other side wrote them. Both lie in shared memory.
func read(r *region, told ring) (header []byte, rows *rowReader, err error) {
	const most = 1 << 46 // beyond any memory; keeps the conversion true
	if told.total > most || told.header > told.total || aligned(int(told.header)) > int(told.total) {
		return nil, nil, fmt.Errorf("a batch of %d and %d bytes is announced", told.header, told.total)
	}
	data, err := r.view(int(told.total))
	if err != nil {
		return nil, nil, err
	}
	return data[:told.header], &rowReader{data[aligned(int(told.header)):]}, nil
}

// aligned is where rows begin behind n bytes: native code reads them in place.
func aligned(n int) int { return (n + 63) &^ 63 }

// rowReader hands out rows in the order in which they were written.
type rowReader struct{ rest []byte }

func (r *rowReader) next(n int) ([]byte, error) {
	if n > len(r.rest) {
		return nil, fmt.Errorf("rows of %d bytes are due, %d are left", n, len(r.rest))
	}
	data := r.rest[:n:n]
	r.rest = r.rest[n:]
	return data, nil
}
