//go:build unix && !linux

package child

import "os"

// anonymousFile is a temporary file without a name.
func anonymousFile() (*os.File, error) {
	file, err := os.CreateTemp("", "dgr-engine-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
