package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Verify proves the pin, the source and the queue: pin and patches are what the series says, byte for byte; every patch
// says why it exists and when it can go; the pristine source has the pinned tree, byte for byte; the patches apply in
// order and in their exact places, give the promised trees, and taken back in reverse order they leave the pristine tree.
// The error says which of these does not hold, and of which file and hunk.
func (s *Store) Verify(ctx context.Context) error {
	series, err := s.Series()
	if err != nil {
		return err
	}
	s.report(fmt.Sprintf("%s and %d patches are as %s says", pinFile, len(series.Patches), seriesFile))
	for _, p := range series.Patches {
		if err := checkHeader(filepath.Join(s.patches(), p.File)); err != nil {
			return err
		}
	}
	pristine, err := s.Fetch(ctx)
	if err != nil {
		return err
	}
	s.report(fmt.Sprintf("the source has tree %s, byte for byte", s.pin.Tree))

	tmp, remove, err := s.temporary("verify")
	if err != nil {
		return err
	}
	defer remove()
	work := filepath.Join(tmp, "tree")
	if err := clone(ctx, pristine, work); err != nil {
		return err
	}
	for _, p := range series.Patches {
		if err := s.applyPatch(ctx, work, p); err != nil {
			return err
		}
		s.report(fmt.Sprintf("%s applies exactly and gives tree %s", p.File, p.Tree))
	}
	if err := s.takeBack(ctx, work, series); err != nil {
		return err
	}
	s.report("the queue taken back leaves tree " + s.pin.Tree)
	return nil
}

func (s *Store) takeBack(ctx context.Context, work string, series Series) error {
	g := git{dir: work}
	for i := len(series.Patches) - 1; i >= 0; i-- {
		p := series.Patches[i]
		if _, err := g.run(ctx, "apply", "--reverse", "--index", "--whitespace=nowarn", filepath.Join(s.patches(), p.File)); err != nil {
			return fmt.Errorf("patch %s cannot be taken back: %w", p.File, err)
		}
	}
	tree, err := g.run(ctx, "write-tree")
	if err != nil {
		return err
	}
	if tree = strings.TrimSpace(tree); tree != s.pin.Tree {
		return fmt.Errorf("the queue taken back leaves tree %s, the pin is %s", tree, s.pin.Tree)
	}
	return nil
}

// checkHeader wants the two paragraphs that every patch begins with.
func checkHeader(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	header, _, _ := strings.Cut(string(data), "\ndiff --git ")
	for _, paragraph := range []string{"\n\nWhy: ", "\n\nUnnecessary when: "} {
		if !strings.Contains(header, paragraph) {
			return fmt.Errorf("the header of patch %s has no paragraph %q", filepath.Base(file), strings.TrimSpace(paragraph))
		}
	}
	return nil
}
