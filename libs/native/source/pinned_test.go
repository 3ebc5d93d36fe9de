package source

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The queue of this repository on the pinned llama.cpp.
func TestPinnedQueue(t *testing.T) {
	s, err := Open(Options{Module: ".."})
	require.NoError(t, err)
	series, err := s.Series()
	require.NoError(t, err)
	require.NotEmpty(t, series.Patches)
	if testing.Short() {
		t.Skip("-short: the proof on the whole source takes seconds")
	}
	if !s.Cached() {
		t.Skipf("%s %s is not in the cache %s; `mage native:build` fetches it", s.Pin().Name, s.Pin().Tag, s.Cache())
	}
	require.NoError(t, s.Verify(t.Context()))
}
