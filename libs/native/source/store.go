package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// CacheVariable names the environment variable that moves the cache.
const CacheVariable = "DGR_NATIVE_CACHE"

// Options say where things are. The zero value is right for a command run inside the repository.
type Options struct {
	Module string            // directory with pin.json and patches/; empty: looked for from the working directory upward
	Cache  string            // root of the cache; empty: $DGR_NATIVE_CACHE, else dgr/native in the user's cache directory
	Report func(line string) // progress for a person, one line a call; nil: none
}

// Store is the pinned source with its cache. Its methods may be called from several goroutines and processes at once:
// file locks in the cache order them.
type Store struct {
	module string
	cache  string
	pin    Pin
	report func(string)
	host   host
}

// Open reads the pin. It touches neither cache nor network.
func Open(o Options) (*Store, error) {
	module := o.Module
	if module == "" {
		var err error
		if module, err = findModule("."); err != nil {
			return nil, err
		}
	}
	module, err := filepath.Abs(module)
	if err != nil {
		return nil, err
	}
	cache, err := cacheRoot(o.Cache)
	if err != nil {
		return nil, err
	}
	pin, err := readPin(filepath.Join(module, pinFile))
	if err != nil {
		return nil, err
	}
	report := o.Report
	if report == nil {
		report = func(string) {}
	}
	return &Store{module: module, cache: cache, pin: pin, report: report, host: thisHost()}, nil
}

func cacheRoot(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv(CacheVariable)
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache directory: %w; set %s", err, CacheVariable)
		}
		dir = filepath.Join(user, "dgr", "native")
	}
	return filepath.Abs(dir)
}

// Pin is what pin.json says.
func (s *Store) Pin() Pin { return s.pin }

// Module is the directory with pin.json, patches/ and shim/.
func (s *Store) Module() string { return s.module }

// Cache is the root of the cache.
func (s *Store) Cache() string { return s.cache }

// Series is the manifest of the patch queue, after the pin and every patch file were compared with it.
func (s *Store) Series() (Series, error) {
	series, err := readSeries(filepath.Join(s.patches(), seriesFile))
	if err != nil {
		return Series{}, err
	}
	return series, series.check(s.pin, s.patches())
}

// Cached says whether a fetched source is in the cache; it does not look into it.
func (s *Store) Cached() bool {
	_, err := os.Stat(s.pristine())
	return err == nil
}

func (s *Store) patches() string  { return filepath.Join(s.module, patchesDir) }
func (s *Store) pristine() string { return filepath.Join(s.cache, "src", s.pin.Tree) }

// Lock holds the cache's lock of that name until the returned function is called. It waits as long as ctx allows and
// reports once that it waits.
func (s *Store) Lock(ctx context.Context, name string) (unlock func(), err error) {
	file := filepath.Join(s.cache, "locks", name+".lock")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, fmt.Errorf("make the cache: %w", err)
	}
	lock := flock.New(file)
	held, err := lock.TryLock()
	if err == nil && !held {
		s.report(fmt.Sprintf("waiting for another process that holds %s", file))
		_, err = lock.TryLockContext(ctx, 100*time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	return func() { _ = lock.Unlock() }, nil
}

// temporary makes a directory in the cache, on the file system of its results; remove it by the returned function.
func (s *Store) temporary(name string) (dir string, remove func(), err error) {
	parent := filepath.Join(s.cache, "tmp")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", nil, fmt.Errorf("make the cache: %w", err)
	}
	dir, err = os.MkdirTemp(parent, name+"-")
	if err != nil {
		return "", nil, fmt.Errorf("make the cache: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}

// publish moves a finished directory to its name in the cache.
func publish(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.Rename(from, to)
}
