package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/native/internal/command"
)

const (
	minCMakeMajor, minCMakeMinor = 3, 21

	// What the Python package index is asked for where cmake or ninja are missing.
	cmakePackage = "cmake==3.31.6"
	ninjaPackage = "ninja==1.11.1.4"

	installTime = 10 * time.Minute
	askTime     = time.Minute
)

// tools are the programs that a build runs.
type tools struct {
	cmake, ctest, ninja string
	compilers           []string // environment
}

// finder looks programs up; tests put another one in its place.
type finder struct {
	getenv   func(string) string
	lookPath func(string) (string, error)
}

// missingError names what must be installed.
type missingError struct {
	what   string
	reason string // why it could not be had otherwise; may be empty
	apt    string
	dnf    string
	brew   string
}

func (e *missingError) Error() string {
	reason := ""
	if e.reason != "" {
		reason = " (" + e.reason + ")"
	}
	return fmt.Sprintf("%s not found%s; install with `apt install %s`, `dnf install %s` or `brew install %s`",
		e.what, reason, e.apt, e.dnf, e.brew)
}

// compilers finds the C and C++ compilers: $CC and $CXX where set, else the usual names.
func (f finder) compilers() (cc, cxx []string, err error) {
	cc, errC := f.compiler("CC", "cc", "gcc", "clang")
	cxx, errX := f.compiler("CXX", "c++", "g++", "clang++")
	if errC != nil || errX != nil {
		return nil, nil, &missingError{what: "a C and C++ compiler was", reason: errors.Join(errC, errX).Error(),
			apt: "build-essential", dnf: "gcc-c++", brew: "llvm"}
	}
	return cc, cxx, nil
}

func (f finder) compiler(variable string, names ...string) ([]string, error) {
	if set := strings.Fields(f.getenv(variable)); len(set) > 0 {
		program, err := f.lookPath(set[0])
		if err != nil {
			return nil, fmt.Errorf("%s names %s, which does not exist", variable, set[0])
		}
		return append([]string{program}, set[1:]...), nil
	}
	for _, name := range names {
		if program, err := f.lookPath(name); err == nil {
			return []string{program}, nil
		}
	}
	return nil, fmt.Errorf("none of %s", strings.Join(names, ", "))
}

// tools gives what a build of r needs. cmake and ninja that are missing or too old are put into a Python environment in
// the cache.
func (b *Builder) tools(ctx context.Context, r recipe) (tools, error) {
	t := tools{compilers: []string{"CC=" + strings.Join(r.cc, " "), "CXX=" + strings.Join(r.cxx, " ")}}
	var err error
	if _, err := b.finder.lookPath("git"); err != nil {
		return t, &missingError{what: "git was", apt: "git", dnf: "git", brew: "git"}
	}
	if t.cmake, err = b.recentCMake(ctx); err == nil {
		t.ctest, err = b.finder.lookPath("ctest")
	}
	if err == nil {
		t.ninja, err = b.finder.lookPath("ninja")
		if err != nil {
			err = errors.New("no ninja")
		}
	}
	if err == nil {
		return t, nil
	}
	if ctx.Err() != nil {
		return t, context.Cause(ctx)
	}
	bin, failed := b.environment(ctx, err)
	if failed != nil {
		if ctx.Err() != nil {
			return t, context.Cause(ctx)
		}
		return t, &missingError{what: fmt.Sprintf("cmake (at least %d.%d) and ninja were", minCMakeMajor, minCMakeMinor),
			reason: fmt.Sprintf("%v, and %v", err, failed), apt: "cmake ninja-build", dnf: "cmake ninja-build", brew: "cmake ninja"}
	}
	t.cmake, t.ctest, t.ninja = filepath.Join(bin, "cmake"), filepath.Join(bin, "ctest"), filepath.Join(bin, "ninja")
	return t, nil
}

var cmakeVersion = regexp.MustCompile(`cmake version (\d+)\.(\d+)`)

func (b *Builder) recentCMake(ctx context.Context) (string, error) {
	program, err := b.finder.lookPath("cmake")
	if err != nil {
		return "", errors.New("no cmake")
	}
	out, err := ask(ctx, program, "--version")
	if err != nil {
		return "", fmt.Errorf("cmake does not run: %w", err)
	}
	m := cmakeVersion.FindStringSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s does not tell its version", program)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < minCMakeMajor || major == minCMakeMajor && minor < minCMakeMinor {
		return "", fmt.Errorf("%s is only version %d.%d", program, major, minor)
	}
	return program, nil
}

// environment gives the directory of programs of a Python environment with cmake and ninja.
func (b *Builder) environment(ctx context.Context, why error) (bin string, err error) {
	python, err := b.finder.lookPath("python3")
	if err != nil {
		return "", errors.New("there is no python3 to install them by")
	}
	name := strings.NewReplacer("==", "-").Replace(cmakePackage + "-" + ninjaPackage)
	unlock, err := b.store.Lock(ctx, "tools-"+name)
	if err != nil {
		return "", err
	}
	defer unlock()

	dir := filepath.Join(b.store.Cache(), "tools", name)
	bin = filepath.Join(dir, "bin")
	if runtime.GOOS == "windows" {
		bin = filepath.Join(dir, "Scripts")
	}
	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err == nil {
		return bin, nil
	}
	b.report(fmt.Sprintf("native: %v; installing %s and %s into a Python environment", why, cmakePackage, ninjaPackage))
	ctx, cancel := context.WithTimeoutCause(ctx, installTime, fmt.Errorf("not finished in %s", installTime))
	defer cancel()
	// Programs of such an environment know its path: it is made in its place, and marked when whole.
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if _, err := run(ctx, python, "-m", "venv", dir); err != nil {
		return "", fmt.Errorf("`python3 -m venv` failed: %w", err)
	}
	if _, err := run(ctx, filepath.Join(bin, "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
		"--no-input", cmakePackage, ninjaPackage); err != nil {
		return "", fmt.Errorf("`pip install cmake ninja` failed: %w", err)
	}
	return bin, os.WriteFile(done, nil, 0o644)
}

// ask runs a program that answers at once.
func ask(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("no answer in %s", askTime))
	defer cancel()
	return run(ctx, program, args...)
}

// run gives standard output; the error has the last line of standard error.
func run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	command.EndGroup(cmd)
	err := cmd.Run()
	switch {
	case err == nil:
		return stdout.String(), nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	}
	if lines := strings.Split(strings.TrimSpace(stderr.String()), "\n"); lines[len(lines)-1] != "" {
		return "", errors.New(lines[len(lines)-1])
	}
	return "", err
}
