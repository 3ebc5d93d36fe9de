package build

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// keep is how many builds, and as many compile trees, stay in the cache.
const keep = 6

// idle is how long a directory must be unused before it goes.
const idle = 24 * time.Hour

// prune removes old builds and compile trees. It is a courtesy: what cannot be removed stays.
func (b *Builder) prune(r recipe) {
	for kind, mine := range map[string]string{"build": r.key(), "work": r.base()[:32]} {
		dirs := byAge(filepath.Join(b.store.Cache(), kind))
		for _, d := range dirs[min(keep, len(dirs)):] {
			if d.name != mine && time.Since(d.time) > idle {
				_ = os.RemoveAll(filepath.Join(b.store.Cache(), kind, d.name))
			}
		}
	}
}

type aged struct {
	name string
	time time.Time
}

// byAge lists the directories in dir, the youngest first.
func byAge(dir string) []aged {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var dirs []aged
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() {
			dirs = append(dirs, aged{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(dirs, func(a, b aged) int { return cmp.Compare(b.time.UnixNano(), a.time.UnixNano()) })
	return dirs
}
