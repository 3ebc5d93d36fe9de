package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// World answers what of the things that a record names exists.
type World interface {
	// Text is a file's content, by its path from the root.
	Text(name string) (string, error)
	// Committed says whether a file, and no folder, is in the last commit.
	Committed(name string) bool
	// Command says why a command line cannot be run here, nil when it can.
	Command(line string) error
}

// Verify reads the record of a workspace and returns every fault of it and of its evidence, joined.
func Verify(ctx context.Context, w *workspace.Workspace) error {
	p, err := Read(w)
	if err != nil {
		return err
	}
	targets, err := Targets(w)
	if err != nil {
		return err
	}
	return Check(p, &repository{ctx, w, targets})
}

// Check finds every fault of a record in a world.
func Check(p *PRD, world World) error {
	var found []error
	for _, g := range p.Gates {
		if err := world.Command(g.Command); err != nil {
			found = append(found, fmt.Errorf("gate %s: %w", g.ID, err))
		}
	}
	for _, s := range p.Stories {
		for _, err := range append(checkIssue(s, world), checkEvidence(p, s, world)...) {
			found = append(found, fmt.Errorf("%s: %w", s.ID, err))
		}
	}
	return errors.Join(found...)
}

// checkIssue finds criteria that the specification does not have: the record may not be softer than it.
func checkIssue(s Story, world World) []error {
	text, err := world.Text(s.Issue)
	if err != nil {
		return []error{fmt.Errorf("no specification: %w", err)}
	}
	var found []error
	flat := strings.Join(strings.Fields(text), " ")
	for i, c := range s.Criteria {
		if !strings.Contains(flat, strings.Join(strings.Fields(c), " ")) {
			found = append(found, fmt.Errorf("criterion %d is not in %s in these words: %s", i+1, s.Issue, c))
		}
	}
	return found
}

// checkEvidence holds a story to its README. A story that does not pass needs none; what it has must still be true.
func checkEvidence(p *PRD, s Story, world World) []error {
	text, err := world.Text(s.Evidence)
	if err != nil {
		if s.Passes {
			return []error{fmt.Errorf("passes without evidence: %w", err)}
		}
		return nil
	}
	e, err := ParseEvidence(text)
	if err != nil {
		return []error{fmt.Errorf("%s: %w", s.Evidence, err)}
	}
	found := checkNamed(e, world)
	if s.Passes {
		found = append(found, checkProof(p, s, e)...)
	}
	for i, err := range found {
		found[i] = fmt.Errorf("%s: %w", s.Evidence, err)
	}
	return found
}

// checkNamed finds files and commands that do not exist.
func checkNamed(e *Evidence, world World) []error {
	var found []error
	for _, f := range e.Files {
		if !world.Committed(f) {
			found = append(found, fmt.Errorf("changed file %s is not in the last commit", f))
		}
	}
	for _, c := range e.Commands {
		if err := world.Command(c.Command); err != nil {
			found = append(found, err)
		}
	}
	return found
}

// checkProof finds what a story that passes must say and does not.
func checkProof(p *PRD, s Story, e *Evidence) []error {
	var found []error
	add := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	for i := range s.Criteria {
		at := slices.IndexFunc(e.Claims, func(c Claim) bool { return c.Criterion == i+1 })
		switch {
		case at < 0:
			add("nothing is claimed of criterion %d", i+1)
		case !e.Claims[at].Proved:
			add("criterion %d is not proved, yet the story passes", i+1)
		}
	}
	for _, c := range e.Claims {
		if c.Criterion < 1 || c.Criterion > len(s.Criteria) {
			add("claims criterion %d; the story has %d", c.Criterion, len(s.Criteria))
		}
	}
	if len(e.Files) == 0 {
		add("names no changed file")
	}
	if len(e.Commands) == 0 {
		add("names no command")
	}
	for _, c := range e.Commands {
		if c.Result == "" || strings.TrimSpace(c.Output) == "" {
			add("command `%s` has no result: a line `Result: …` and its output in a fence are wanted", c.Command)
		}
		if strings.HasPrefix(c.Result, "not ") || strings.HasPrefix(c.Result, "failed") {
			add("command `%s` %s, yet the story passes", c.Command, c.Result)
		}
	}
	if e.Environment == "" {
		add("says nothing of the environment")
	}
	if e.Limitations == "" {
		add("names no limitation; say at least what was not tried")
	}
	for _, d := range p.Dependents(s.ID) {
		if e.HandOff[d] == "" {
			add("hands nothing off to %s, which depends on it", d)
		}
	}
	return found
}

// repository is the World of a workspace.
type repository struct {
	ctx     context.Context
	w       *workspace.Workspace
	targets []string
}

func (r *repository) Text(name string) (string, error) {
	data, err := os.ReadFile(r.w.Path(name))
	return string(data), err
}

func (r *repository) Committed(name string) bool {
	cmd := exec.CommandContext(r.ctx, "git", "cat-file", "-t", "HEAD:"+name)
	cmd.Dir = r.w.Root
	kind, err := cmd.Output()
	if err != nil && !r.inGit() {
		info, err := os.Stat(r.w.Path(name)) // an unpacked archive: what is there was committed
		return err == nil && info.Mode().IsRegular()
	}
	return err == nil && strings.TrimSpace(string(kind)) == "blob"
}

// inGit says whether the workspace is a git repository with a commit.
func (r *repository) inGit() bool {
	cmd := exec.CommandContext(r.ctx, "git", "rev-parse", "--verify", "--quiet", "HEAD")
	cmd.Dir = r.w.Root
	return cmd.Run() == nil
}

func (r *repository) Command(line string) error {
	_, words := environment(line)
	if len(words) == 0 {
		return fmt.Errorf("command `%s` is empty", line)
	}
	if len(words) >= 3 && slices.Equal(words[:3], []string{"go", "tool", "mage"}) {
		return r.mage(line, words[3:])
	}
	name := words[0]
	if strings.Contains(name, "/") {
		if info, err := os.Stat(r.w.Path(name)); err == nil && !info.IsDir() {
			return nil
		}
		if base := path.Base(name); r.program(base) {
			return nil // a program of ours, once it is built
		}
		return fmt.Errorf("command `%s`: there is no %s in the repository", line, name)
	}
	if _, err := exec.LookPath(name); err == nil {
		return r.packages(line, words)
	}
	if r.program(name) {
		return nil
	}
	return fmt.Errorf("command `%s`: %s is neither installed nor a program of this repository", line, name)
}

// mage finds targets that the magefile does not have.
func (r *repository) mage(line string, words []string) error {
	named := 0
	for _, target := range words {
		if strings.HasPrefix(target, "-") {
			continue
		}
		named++
		if !slices.Contains(r.targets, strings.ToLower(target)) {
			return fmt.Errorf("command `%s`: the magefile has no target %s", line, target)
		}
	}
	if named == 0 && !slices.Contains(words, "-l") {
		return fmt.Errorf("command `%s` names no target", line)
	}
	return nil
}

// packages finds folders, as go test takes them, that do not exist.
func (r *repository) packages(line string, words []string) error {
	if words[0] != "go" {
		return nil
	}
	dir := ""
	for i, word := range words {
		if word == "-C" && i+1 < len(words) {
			dir = words[i+1]
		}
	}
	for _, word := range words {
		if !strings.HasPrefix(word, "./") {
			continue
		}
		folder := strings.TrimSuffix(strings.TrimSuffix(word, "..."), "/")
		if _, err := os.Stat(r.w.Path(dir, folder)); err != nil {
			return fmt.Errorf("command `%s`: there is no %s", line, path.Join(dir, folder))
		}
	}
	return nil
}

// program says whether some module has a command of this name.
func (r *repository) program(name string) bool {
	return slices.ContainsFunc(r.w.Modules, func(m workspace.Module) bool {
		_, err := os.Stat(r.w.Path(m.Dir, "cmd", name))
		return err == nil
	})
}
