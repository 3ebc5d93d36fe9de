package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Fetch gives a directory with the pristine source, from the cache or from the first place in the pin that answers. The
// directory is a git repository whose work tree was compared with the pin's tree hash, file by file; do not write to it.
//
// A place that does not answer is passed over and reported; one that answers with another tree ends the fetch. A cached
// file that was changed is an error that names it.
func (s *Store) Fetch(ctx context.Context) (dir string, err error) {
	unlock, err := s.Lock(ctx, "src-"+s.pin.Tree)
	if err != nil {
		return "", err
	}
	defer unlock()

	dir = s.pristine()
	if _, err := os.Stat(dir); err == nil {
		if err := checkContent(ctx, dir, s.pin.Tree); err != nil {
			return "", fmt.Errorf("%w; remove %s to fetch it anew", err, dir)
		}
		return dir, nil
	}
	tmp, remove, err := s.temporary("fetch")
	if err != nil {
		return "", err
	}
	defer remove()

	var passed []string
	for _, l := range s.pin.Sources {
		s.report(fmt.Sprintf("%s %s: trying %s", s.pin.Name, s.pin.Tag, l))
		repo := filepath.Join(tmp, fmt.Sprintf("%d", len(passed)))
		tree, err := s.obtain(ctx, l, repo)
		if err != nil {
			if ctx.Err() != nil {
				return "", fmt.Errorf("fetch %s: %w", s.pin.Name, context.Cause(ctx))
			}
			if !errors.As(err, new(absentError)) {
				return "", fmt.Errorf("fetch %s from %s: %w", s.pin.Name, l, err)
			}
			s.report(fmt.Sprintf("%s %s: passed over %s: %v", s.pin.Name, s.pin.Tag, l, err))
			passed = append(passed, fmt.Sprintf("%s: %v", l, err))
			continue
		}
		if tree != s.pin.Tree {
			return "", fmt.Errorf("%s gave tree %s, but %s pins %s %s to tree %s; nothing is built from it",
				l, tree, pinFile, s.pin.Name, s.pin.Tag, s.pin.Tree)
		}
		if err := s.install(ctx, repo, dir); err != nil {
			return "", fmt.Errorf("fetch %s from %s: %w", s.pin.Name, l, err)
		}
		s.report(fmt.Sprintf("%s %s: tree %s from %s", s.pin.Name, s.pin.Tag, tree, l))
		return dir, nil
	}
	return "", fmt.Errorf("no source of %s %s answered: %s", s.pin.Name, s.pin.Tag, strings.Join(passed, "; "))
}

// install checks a fetched repository out and puts it into the cache.
func (s *Store) install(ctx context.Context, repo, dir string) error {
	if _, err := (git{dir: repo}).run(ctx, "checkout", "-q", "--force", "--detach", "FETCH_HEAD"); err != nil {
		return err
	}
	if err := checkContent(ctx, repo, s.pin.Tree); err != nil {
		return err
	}
	return publish(repo, dir)
}

// absentError says why a place gave no answer; the next place is tried.
type absentError struct{ reason string }

func (e absentError) Error() string { return e.reason }

func absent(format string, args ...any) error { return absentError{fmt.Sprintf(format, args...)} }

// obtain makes repo a repository with the source of l in FETCH_HEAD and returns the tree hash of that.
func (s *Store) obtain(ctx context.Context, l Location, repo string) (tree string, err error) {
	if err := os.MkdirAll(repo, 0o755); err != nil {
		return "", err
	}
	if _, err := (git{dir: repo}).run(ctx, "init", "-q"); err != nil {
		return "", err
	}
	switch l.Kind {
	case KindGit:
		err = s.fromGit(ctx, l, repo)
	case KindNPM:
		err = s.fromPackage(ctx, l, repo)
	case KindPath:
		err = s.fromPath(ctx, l, repo)
	}
	if err != nil {
		return "", err
	}
	return git{dir: repo}.tree(ctx, "FETCH_HEAD")
}

func (s *Store) fromGit(ctx context.Context, l Location, repo string) error {
	g := git{dir: repo, network: true}
	asked, cancel := context.WithTimeoutCause(ctx, s.host.connect, fmt.Errorf("no answer in %s", s.host.connect))
	defer cancel()
	out, err := g.run(asked, "ls-remote", "--exit-code", l.Repository, l.Ref)
	if err != nil {
		return absent("%v", err)
	}
	if strings.TrimSpace(out) == "" {
		return absent("it has no %s", l.Ref)
	}
	if _, err := g.run(ctx, "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60",
		"fetch", "-q", "--no-tags", "--depth", "1", l.Repository, l.Ref); err != nil {
		return absent("%v", err)
	}
	return nil
}

// fromPath takes the HEAD of a repository or bundle, or the files of a plain directory.
func (s *Store) fromPath(ctx context.Context, l Location, repo string) error {
	path := s.host.getenv(l.Variable)
	if path == "" {
		return absent("the variable is not set; set it to a git repository, a git bundle or a directory with %s %s",
			s.pin.Name, s.pin.Tag)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return absent("%v", err)
	}
	if _, err := os.Stat(filepath.Join(path, ".git")); info.IsDir() && err != nil {
		return importDirectory(ctx, path, repo)
	}
	if _, err := (git{dir: repo}).run(ctx, "fetch", "-q", "--no-tags", path, "HEAD"); err != nil {
		return absent("%v", err)
	}
	return nil
}

// importDirectory makes a commit of the files of a directory that is no repository.
func importDirectory(ctx context.Context, path, repo string) error {
	g := git{dir: repo}
	if _, err := g.run(ctx, "--work-tree="+path, "add", "--all", "--force", "."); err != nil {
		return err
	}
	tree, err := g.run(ctx, "write-tree")
	if err != nil {
		return err
	}
	commit, err := g.run(ctx, "commit-tree", "-m", "import", strings.TrimSpace(tree))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(repo, ".git", "FETCH_HEAD"), []byte(strings.TrimSpace(commit)+"\n"), 0o644)
}
