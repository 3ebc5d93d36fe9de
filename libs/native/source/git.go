package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/native/internal/command"
)

const (
	localTime   = 3 * time.Minute  // bound of a git command on this machine
	networkTime = 20 * time.Minute // bound of a download
)

// git runs git commands in one directory, free of the caller's git environment. Local commands are free of the user's
// git configuration too; commands that use the network keep it, for proxies and credentials.
type git struct {
	dir     string
	network bool
	extra   []string // environment
}

// commandError is a git command that ended with an error.
type commandError struct {
	command string
	stderr  string
	cause   error
}

func (e *commandError) Error() string {
	if line := firstLine(e.stderr); line != "" {
		return fmt.Sprintf("%s: %s", e.command, line)
	}
	return fmt.Sprintf("%s: %v", e.command, e.cause)
}

func (e *commandError) Unwrap() error { return e.cause }

// run returns standard output; the error is a *commandError, or the context's.
func (g git) run(ctx context.Context, args ...string) (string, error) {
	out, _, err := g.output(ctx, args...)
	return out, err
}

func (g git) output(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	if g.network {
		ctx, cancel := context.WithTimeout(ctx, networkTime)
		defer cancel()
		return g.start(ctx, args)
	}
	ctx, cancel := context.WithTimeout(ctx, localTime)
	defer cancel()
	return g.start(ctx, args)
}

func (g git) start(ctx context.Context, args []string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, "git", append(settings(), args...)...)
	cmd.Dir = g.dir
	cmd.Env = g.environment()
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	command.EndGroup(cmd)
	err = cmd.Run()
	if err == nil {
		return o.String(), e.String(), nil
	}
	if ctx.Err() != nil {
		return "", "", fmt.Errorf("git %s: %w", args[0], context.Cause(ctx))
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "", "", errors.New("git is not installed; install it (apt install git, dnf install git, brew install git)")
	}
	return o.String(), e.String(), &commandError{command: "git " + args[0], stderr: e.String(), cause: err}
}

// settings keep a user's configuration, where git reads it, from changing bytes, and git from leaving work in the
// background.
func settings() []string {
	var args []string
	for _, s := range []string{"core.autocrlf=false", "core.safecrlf=false", "core.hooksPath=" + os.DevNull, "commit.gpgsign=false",
		"gc.auto=0", "maintenance.auto=false"} {
		args = append(args, "-c", s)
	}
	return args
}

func (g git) environment() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if strings.HasPrefix(name, "GIT_") && (!g.network || repositoryVariable(name)) {
			continue
		}
		env = append(env, v)
	}
	env = append(env,
		"LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_CEILING_DIRECTORIES="+filepath.Dir(g.dir),
		"GIT_AUTHOR_NAME=DGR", "GIT_AUTHOR_EMAIL=dgr@localhost", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z",
		"GIT_COMMITTER_NAME=DGR", "GIT_COMMITTER_EMAIL=dgr@localhost", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z")
	if !g.network {
		env = append(env, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull)
	}
	return append(env, g.extra...)
}

// repositoryVariable says whether a variable ties git to a repository that is not ours.
func repositoryVariable(name string) bool {
	switch name {
	case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
		"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX":
		return true
	}
	return false
}

// tree is the tree hash of a commit.
func (g git) tree(ctx context.Context, commit string) (string, error) {
	out, err := g.run(ctx, "rev-parse", "--verify", "--quiet", commit+"^{tree}")
	return strings.TrimSpace(out), err
}

// firstLine is the first line that says something, without git's prefix.
func firstLine(s string) string {
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "hint:") || strings.HasPrefix(line, "warning:") {
			continue
		}
		return strings.TrimPrefix(strings.TrimPrefix(line, "fatal: "), "error: ")
	}
	return ""
}
