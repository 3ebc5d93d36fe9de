package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// checkContent proves that the work tree in dir is the tree of that hash: the commit has it, every file has the bytes of
// the commit, and nothing else lies about. Git's own record of file times is not trusted.
func checkContent(ctx context.Context, dir, want string) error {
	index, err := os.CreateTemp(filepath.Dir(dir), ".index-")
	if err != nil {
		return err
	}
	_ = index.Close()
	_ = os.Remove(index.Name())
	defer os.Remove(index.Name())

	g := git{dir: dir, extra: []string{"GIT_INDEX_FILE=" + index.Name()}}
	got, err := g.tree(ctx, "HEAD")
	if err != nil {
		return fmt.Errorf("%s holds no git commit: %w", dir, err)
	}
	if got != want {
		return fmt.Errorf("%s has tree %s, want %s", dir, got, want)
	}
	if _, err := g.run(ctx, "read-tree", "HEAD"); err != nil {
		return fmt.Errorf("read the tree of %s: %w", dir, err)
	}
	// The status is non-zero when files differ; diff-files names them.
	if _, err := g.run(ctx, "update-index", "-q", "--refresh"); err != nil && ctx.Err() != nil {
		return err
	}
	changed, err := g.run(ctx, "diff-files", "--name-only", "-z")
	if err != nil {
		return fmt.Errorf("compare %s with its tree: %w", dir, err)
	}
	if names := zeroSplit(changed); len(names) > 0 {
		return fmt.Errorf("source file %s was changed%s", filepath.Join(dir, names[0]), andMore(names))
	}
	extra, err := g.run(ctx, "ls-files", "--others", "-z")
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	if names := zeroSplit(extra); len(names) > 0 {
		return fmt.Errorf("source file %s does not belong there%s", filepath.Join(dir, names[0]), andMore(names))
	}
	return nil
}

func zeroSplit(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == 0 })
}

func andMore(names []string) string {
	if len(names) == 1 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", len(names)-1)
}
