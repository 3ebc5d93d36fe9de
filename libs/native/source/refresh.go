package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Refresh writes the queue anew, with its series, for the source that pin.json names.
//
// With an empty worktree the present queue is applied to that source, merging where lines have moved. Where a patch
// conflicts, the error names a git work tree to finish `git am` in; pass that directory as worktree afterwards. A given
// worktree must have the pinned tree as an ancestor, and nothing that is not committed; its commits behind that become
// the queue.
func (s *Store) Refresh(ctx context.Context, worktree string) error {
	if worktree == "" {
		pristine, err := s.Fetch(ctx)
		if err != nil {
			return err
		}
		tmp, remove, err := s.temporary("refresh")
		if err != nil {
			return err
		}
		worktree = filepath.Join(tmp, "tree")
		if err := clone(ctx, pristine, worktree); err != nil {
			remove()
			return err
		}
		// A conflict is worked on in this directory.
		if err := s.rebase(ctx, worktree); err != nil {
			return err
		}
		defer remove()
	}
	return s.export(ctx, worktree)
}

func (s *Store) rebase(ctx context.Context, work string) error {
	series, err := readSeries(filepath.Join(s.patches(), seriesFile))
	if err != nil {
		return err
	}
	var files []string
	for _, p := range series.Patches {
		files = append(files, filepath.Join(s.patches(), p.File))
	}
	if len(files) == 0 {
		return nil
	}
	if err := s.lendOldSource(ctx, series, files, work); err != nil {
		return err
	}
	_, err = git{dir: work}.run(ctx, append([]string{"am", "-q", "--3way", "--keep-cr", "--keep-non-patch"}, files...)...)
	if err != nil {
		return fmt.Errorf("the queue does not apply to %s %s: %w; finish `git am` in %s, then run `dgr-native patch refresh --from %s`",
			s.pin.Name, s.pin.Tag, err, work, work)
	}
	return nil
}

// lendOldSource gives work the files that the present queue was made for, before and after each patch, so that git can
// merge. Without them only hunks that fit as they are can be carried over.
func (s *Store) lendOldSource(ctx context.Context, series Series, files []string, work string) error {
	pristine := filepath.Join(s.cache, "src", series.Tree)
	if _, err := os.Stat(pristine); err != nil {
		s.report(fmt.Sprintf("the source of %s %s is not in the cache; hunks whose surroundings changed will not be merged", s.pin.Name, series.Tag))
		return nil
	}
	tmp, remove, err := s.temporary("old")
	if err != nil {
		return err
	}
	defer remove()
	old := filepath.Join(tmp, "tree")
	if err := clone(ctx, pristine, old); err != nil {
		return err
	}
	if _, err := (git{dir: old}).run(ctx, append([]string{"am", "-q", "--keep-cr", "--keep-non-patch"}, files...)...); err != nil {
		return fmt.Errorf("the queue does not apply to the source it was made for, %s %s: %w", s.pin.Name, series.Tag, err)
	}
	_, err = git{dir: work}.run(ctx, "fetch", "-q", "--no-tags", "--update-shallow", old, "HEAD")
	return err
}

// export turns the commits behind the pinned tree into patch files and series.
func (s *Store) export(ctx context.Context, work string) error {
	work, err := filepath.Abs(work)
	if err != nil {
		return err
	}
	g := git{dir: work}
	if out, err := g.run(ctx, "status", "--porcelain"); err != nil {
		return err
	} else if out != "" {
		return fmt.Errorf("%s has changes that are not committed; commit or remove them", work)
	}
	base, err := s.base(ctx, g)
	if err != nil {
		return err
	}
	tmp, remove, err := s.temporary("export")
	if err != nil {
		return err
	}
	defer remove()
	if _, err := g.run(ctx, "format-patch", "-q", "-o", tmp, "--no-numbered", "--zero-commit", "--no-signature",
		"--full-index", "--no-stat", "--no-renames", "--no-base", base+"..HEAD"); err != nil {
		return err
	}
	series, err := s.collect(ctx, g, base, tmp)
	if err != nil {
		return err
	}
	return s.replaceQueue(series, tmp)
}

// base is the last commit that has the pinned tree.
func (s *Store) base(ctx context.Context, g git) (string, error) {
	out, err := g.run(ctx, "log", "--format=%H %T", "HEAD")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if commit, tree, _ := strings.Cut(strings.TrimSpace(line), " "); tree == s.pin.Tree {
			return commit, nil
		}
	}
	return "", fmt.Errorf("no commit in %s has the pinned tree %s", g.dir, s.pin.Tree)
}

func (s *Store) collect(ctx context.Context, g git, base, dir string) (Series, error) {
	series := Series{Tag: s.pin.Tag, Tree: s.pin.Tree, Pin: s.pin.sum}
	out, err := g.run(ctx, "log", "--reverse", "--format=%T", base+"..HEAD")
	if err != nil {
		return Series{}, err
	}
	trees := strings.Fields(out)
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return Series{}, err
	}
	if len(files) != len(trees) {
		return Series{}, fmt.Errorf("%d commits in %s gave %d patches; every commit must change something, and none may merge",
			len(trees), g.dir, len(files))
	}
	for i, file := range files {
		if err := checkHeader(file); err != nil {
			return Series{}, err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return Series{}, err
		}
		series.Patches = append(series.Patches, Patch{File: filepath.Base(file), SHA256: sumHex(data), Tree: trees[i]})
	}
	return series, nil
}

func (s *Store) replaceQueue(series Series, from string) error {
	if err := os.MkdirAll(s.patches(), 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(s.patches(), "*.patch"))
	if err != nil {
		return err
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	for _, p := range series.Patches {
		data, err := os.ReadFile(filepath.Join(from, p.File))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.patches(), p.File), data, 0o644); err != nil {
			return err
		}
	}
	if err := series.write(filepath.Join(s.patches(), seriesFile)); err != nil {
		return err
	}
	s.report(fmt.Sprintf("%d patches written for %s %s", len(series.Patches), s.pin.Name, s.pin.Tag))
	return nil
}
