package houserules

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// maxTracked is the largest file that belongs into the repository, bytes: the embedded model and a little more.
const maxTracked = 2200 << 10

// Tracked lists the files of the repository, from the root: those that git knows or would take. Outside git it is every
// file that is no build output.
func Tracked(ctx context.Context, w *workspace.Workspace) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = w.Root
	if out, err := cmd.Output(); err == nil {
		names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		return slices.DeleteFunc(names, func(name string) bool {
			info, err := os.Lstat(w.Path(name))
			return err != nil || !info.Mode().IsRegular()
		}), nil
	}
	var names []string
	err := filepath.WalkDir(w.Root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(w.Root, file)
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", ".bin", ".build"}, name) {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() {
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	return names, err
}

// text is a pattern that no tracked file may hold.
type text struct {
	what    string
	pattern *regexp.Regexp
	skip    func(name string) bool
}

// homes are the paths of somebody's machine. A bare `/home` is a word that rules may use.
var homes = regexp.MustCompile(`(/home/|/Users/)[A-Za-z0-9._-]+/|(^|[^A-Za-z0-9._-])/roo[t]/`)

// registries are the hosts of package registries, written so that this file does not hold them.
func registries() *regexp.Regexp {
	hosts := []string{
		"npmjs" + ".org", "npmjs" + ".com", "proxy.golang" + ".org", "sum.golang" + ".org", "pypi" + ".org",
		"pythonhosted" + ".org", "crates" + ".io", "yarnpkg" + ".com",
	}
	for i, h := range hosts {
		hosts[i] = regexp.QuoteMeta(h)
	}
	return regexp.MustCompile(strings.Join(hosts, "|"))
}

func texts() []text {
	return []text{
		{"a path of somebody's machine", homes, func(string) bool { return false }},
		{"the host of a package registry; let the package manager's own settings decide", registries(), func(name string) bool {
			return path.Ext(name) == ".sum" || strings.Contains(path.Base(name), "lock")
		}},
	}
}

// CheckText finds what no tracked file may hold; a file with a zero byte is no text.
func CheckText(name string, data []byte) []Finding {
	if slices.Contains(data[:min(len(data), 8000)], 0) {
		return nil
	}
	var found []Finding
	for _, rule := range texts() {
		if rule.skip(name) {
			continue
		}
		for _, at := range rule.pattern.FindAllIndex(data, -1) {
			line := 1 + strings.Count(string(data[:at[0]]), "\n")
			found = append(found, Finding{fmt.Sprintf("%s:%d", name, line), rule.what})
		}
	}
	return found
}

// CheckSize finds files that are too large to be tracked, C++ files that are more than one room, and Python, which no gate
// compiles.
func CheckSize(name string, data []byte) []Finding {
	var found []Finding
	if len(data) > maxTracked {
		found = append(found, Finding{name, fmt.Sprintf("%d KiB; at most %d KiB are tracked", len(data)>>10, maxTracked>>10)})
	}
	if path.Ext(name) == ".py" {
		found = append(found, Finding{name, "Python; write it in Go, or add a gate that compiles it"})
	}
	if ext := path.Ext(name); slices.Contains([]string{".cpp", ".h", ".c", ".hpp"}, ext) && !strings.HasPrefix(name, "gen/") {
		if lines := strings.Count(string(data), "\n"); lines > maxLines {
			found = append(found, Finding{name, fmt.Sprintf("%d lines; split it by subject, the limit is %d", lines, maxLines)})
		}
	}
	return found
}
