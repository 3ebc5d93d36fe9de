package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Apply gives a directory with the patched source, made from the pristine one if it is not in the cache. The directory
// was compared with the tree hash that the series promises; do not write to it.
func (s *Store) Apply(ctx context.Context) (dir string, err error) {
	series, err := s.Series()
	if err != nil {
		return "", err
	}
	pristine, err := s.Fetch(ctx)
	if err != nil {
		return "", err
	}
	name := s.pin.Tree[:16] + "-" + series.Hash()[:16]
	unlock, err := s.Lock(ctx, "patched-"+name)
	if err != nil {
		return "", err
	}
	defer unlock()

	dir = filepath.Join(s.cache, "patched", name)
	if _, err := os.Stat(dir); err == nil {
		fault := checkContent(ctx, dir, series.Result())
		if fault == nil {
			return dir, nil
		}
		if ctx.Err() != nil {
			return "", fault
		}
		s.report(fmt.Sprintf("%v; making the patched source anew", fault))
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	tmp, remove, err := s.temporary("patched")
	if err != nil {
		return "", err
	}
	defer remove()
	work := filepath.Join(tmp, "tree")
	if err := clone(ctx, pristine, work); err != nil {
		return "", err
	}
	for _, p := range series.Patches {
		if err := s.applyPatch(ctx, work, p); err != nil {
			return "", err
		}
	}
	if err := checkContent(ctx, work, series.Result()); err != nil {
		return "", err
	}
	if err := publish(work, dir); err != nil {
		return "", fmt.Errorf("keep the patched source: %w", err)
	}
	s.report(fmt.Sprintf("%s %s: %d patches applied", s.pin.Name, s.pin.Tag, len(series.Patches)))
	return dir, nil
}

// clone makes work a repository of its own with the files of the pristine commit, as one commit without a history: what
// is compiled tells the name of its commit, and that must not depend on where the source came from.
func clone(ctx context.Context, pristine, work string) error {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	g := git{dir: work}
	for _, args := range [][]string{
		{"init", "-q"},
		{"fetch", "-q", "--no-tags", "--update-shallow", pristine, "HEAD"},
	} {
		if _, err := g.run(ctx, args...); err != nil {
			return fmt.Errorf("copy the pristine source: %w", err)
		}
	}
	root, err := g.run(ctx, "commit-tree", "-m", "Pinned source", "FETCH_HEAD^{tree}")
	if err != nil {
		return fmt.Errorf("copy the pristine source: %w", err)
	}
	if _, err := g.run(ctx, "checkout", "-q", "--detach", strings.TrimSpace(root)); err != nil {
		return fmt.Errorf("copy the pristine source: %w", err)
	}
	return nil
}

// applyPatch puts one patch on the work tree and commits it: in its exact place, and with the tree hash that the series
// promises.
func (s *Store) applyPatch(ctx context.Context, work string, p Patch) error {
	file := filepath.Join(s.patches(), p.File)
	if err := checkExact(ctx, work, file); err != nil {
		return err
	}
	if _, err := (git{dir: work}).run(ctx, "am", "-q", "--no-3way", "--keep-cr", "--keep-non-patch", file); err != nil {
		return fmt.Errorf("patch %s cannot be committed: %w", p.File, err)
	}
	tree, err := git{dir: work}.tree(ctx, "HEAD")
	if err != nil {
		return err
	}
	if tree != p.Tree {
		return fmt.Errorf("patch %s gives tree %s, %s says %s", p.File, tree, seriesFile, p.Tree)
	}
	return nil
}
