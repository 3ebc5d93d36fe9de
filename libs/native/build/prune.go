package build

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	keep = 6                  // how many builds, compile trees and patched sources stay in the cache
	idle = 7 * 24 * time.Hour // how long any other must be unused before it goes
)

// used marks a directory of the cache as used now.
func used(dir string) {
	now := time.Now()
	_ = os.Chtimes(dir, now, now)
}

// prune removes what nobody has used for long. It is a courtesy: what cannot be removed stays.
func (b *Builder) prune() {
	for kind, keep := range map[string]int{"build": keep, "work": keep, "patched": keep, "tmp": 0} {
		dirs := byAge(filepath.Join(b.store.Cache(), kind))
		for _, d := range dirs[min(keep, len(dirs)):] {
			if time.Since(d.time) > idle {
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
