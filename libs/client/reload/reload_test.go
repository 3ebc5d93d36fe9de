package reload_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/client/reload"
)

// pair is two files that belong together: their texts must be equal.
func pair(t *testing.T) (value *reload.Value[string], first, second string, made *int, log *bytes.Buffer) {
	t.Helper()
	folder := t.TempDir()
	first, second = filepath.Join(folder, "first"), filepath.Join(folder, "second")
	put(t, first, "one")
	put(t, second, "one")
	made, log = new(int), new(bytes.Buffer)
	value, err := reload.Open(slog.New(slog.NewTextHandler(log, nil)), func(contents [][]byte) (string, error) {
		*made++
		if !bytes.Equal(contents[0], contents[1]) {
			return "", errors.New("they differ")
		}
		return string(contents[0]), nil
	}, first, second)
	if err != nil {
		t.Fatal(err)
	}
	return value, first, second, made, log
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAChangeCountsOnceItIsWhole(t *testing.T) {
	value, first, second, _, log := pair(t)
	put(t, first, "two")
	for range 3 {
		if got := value.Get(); got != "one" {
			t.Errorf("half changed it is %q", got)
		}
	}
	if n := strings.Count(log.String(), "they differ"); n != 1 {
		t.Errorf("the log says so %d times: %s", n, log)
	}
	put(t, second, "two")
	if got := value.Get(); got != "two" {
		t.Errorf("changed it is %q", got)
	}
}

func TestALostFileKeepsTheLast(t *testing.T) {
	value, first, _, _, log := pair(t)
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	if got := value.Get(); got != "one" || !strings.Contains(log.String(), "no such file") {
		t.Errorf("it is %q: %s", got, log)
	}
	put(t, first, "one")
	if got := value.Get(); got != "one" {
		t.Errorf("found again it is %q", got)
	}
}

// Files whose times are long past are looked at and not read; new ones of the same size and time, put in their place, are.
func TestOldFilesAreNotReadAgain(t *testing.T) {
	value, first, second, made, _ := pair(t)
	past := time.Now().Add(-time.Hour)
	age := func() {
		for _, path := range []string{first, second} {
			if err := os.Chtimes(path, past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	age()
	value.Get()
	put(t, first, "two")
	put(t, second, "two")
	age() // the same files, sizes and times: nobody can see this without reading
	if got := value.Get(); got != "one" || *made != 1 {
		t.Errorf("it is %q, made %d times", got, *made)
	}
	for _, path := range []string{first, second} {
		put(t, path+".new", "two")
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	age()
	if got := value.Get(); got != "two" {
		t.Errorf("replaced it is %q", got)
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	folder := t.TempDir()
	huge := filepath.Join(folder, "huge")
	put(t, huge, strings.Repeat("x", 1<<20+1))
	for _, path := range []string{folder, huge, filepath.Join(folder, "none")} {
		_, err := reload.Open(slog.New(slog.DiscardHandler), func([][]byte) (int, error) { return 0, nil }, path)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
