package verify

import (
	"bytes"
	"io"
)

// quiet passes on what go test prints, save the lines about packages that have no tests.
type quiet struct {
	to   io.Writer
	rest []byte // the line that has not ended yet
}

// Write takes any piece; lines are passed on whole.
func (q *quiet) Write(data []byte) (int, error) {
	q.rest = append(q.rest, data...)
	for {
		end := bytes.IndexByte(q.rest, '\n')
		if end < 0 {
			return len(data), nil
		}
		line := q.rest[:end+1]
		q.rest = q.rest[end+1:]
		if bytes.HasPrefix(line, []byte("?   \t")) && bytes.HasSuffix(line, []byte("[no test files]\n")) {
			continue
		}
		if _, err := q.to.Write(line); err != nil {
			return 0, err
		}
	}
}

// flush passes on a last line without an end.
func (q *quiet) flush() error {
	_, err := q.to.Write(q.rest)
	q.rest = nil
	return err
}
