package houserules

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// CheckModules finds modules that cannot be built alone: every sibling that a module needs, also by way of another
// sibling, must be required and replaced by its folder, for a replace speaks only in the main module.
func CheckModules(modules []workspace.Module) []Finding {
	byPath := map[string]workspace.Module{}
	for _, m := range modules {
		byPath[m.Path] = m
	}
	var found []Finding
	for _, m := range modules {
		file := m.Dir + "/go.mod"
		for _, need := range needed(m, byPath) {
			sibling := byPath[need]
			want := relative(m.Dir, sibling.Dir)
			switch have, ok := m.Replaced[need]; {
			case !ok:
				found = append(found, Finding{file, fmt.Sprintf("needs %s; add: replace %s => %s", sibling.Dir, need, want)})
			case path.Join(m.Dir, have) != sibling.Dir:
				found = append(found, Finding{file, fmt.Sprintf("replaces %s by %s; it is at %s", need, have, want)})
			}
		}
		for replaced := range m.Replaced {
			if _, ok := byPath[replaced]; !ok {
				found = append(found, Finding{file, fmt.Sprintf("replaces %s, which is no module of go.work", replaced)})
			}
		}
	}
	return found
}

// needed are the siblings that a module requires, directly or by way of others, in alphabetical order.
func needed(m workspace.Module, byPath map[string]workspace.Module) []string {
	seen := map[string]bool{}
	var visit func(workspace.Module)
	visit = func(m workspace.Module) {
		for _, r := range m.Required {
			if sibling, ok := byPath[r]; ok && !seen[r] {
				seen[r] = true
				visit(sibling)
			}
		}
	}
	visit(m)
	delete(seen, m.Path)
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// relative is how a folder is written in a replace of another.
func relative(from, to string) string {
	rel, err := filepath.Rel(filepath.FromSlash(from), filepath.FromSlash(to))
	if err != nil {
		return to // both are folders from the root, so this cannot be
	}
	rel = filepath.ToSlash(rel)
	if !strings.HasPrefix(rel, ".") {
		rel = "./" + rel
	}
	return rel
}
