package task

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAListGoesOnAfterAFailureAndNamesIt(t *testing.T) {
	var out bytes.Buffer
	l := New(&out)
	var ran []string
	do := func(name string, err error) {
		l.Do(name, func() error { ran = append(ran, name); return err })
	}
	do("first", nil)
	do("second", errors.New("it broke"))
	l.Skip("third", "no compiler")
	do("fourth", nil)
	require.EqualError(t, l.End(), "failed: second")
	require.Equal(t, []string{"first", "second", "fourth"}, ran)
	for _, want := range []string{"ok       first", "FAILED   second", "it broke", "NOT RUN  third", "no compiler", "ok       fourth", "1 of 4 failed"} {
		require.Contains(t, out.String(), want)
	}
}

func TestAListWithoutFailuresIsGood(t *testing.T) {
	l := New(&bytes.Buffer{})
	l.Do("first", func() error { return nil })
	l.Skip("second", "not here")
	require.NoError(t, l.End())
}
