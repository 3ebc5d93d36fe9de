package build

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/native/internal/command"
)

const (
	compileTime   = 2 * time.Hour // bound of one build, on the slowest machine
	reportEvery   = 5 * time.Second
	failureLines  = 30
	compileLog    = "build.log"
	shimCopy      = "shim" // in the compile tree: cmake holds a tree to one source directory, and checkouts share trees
	sourceVarName = "DGR_LLAMA_SOURCE"
)

// Targets of the shim's CMakeLists.txt.
var (
	libraryTargets = []string{"dgr_shim", benchProgram}
	allTargets     = []string{"all"}
)

// compile runs cmake and ninja in the recipe's compile tree. The caller holds the lock of the recipe's base.
func (b *Builder) compile(ctx context.Context, t tools, r recipe, targets []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, compileTime, fmt.Errorf("the build was not finished in %s", compileTime))
	defer cancel()
	patched, err := b.store.Apply(ctx)
	if err != nil {
		return err
	}
	tree := b.compileTree(r)
	used(patched)
	defer used(tree)
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return fmt.Errorf("make the build directory: %w", err)
	}
	log, err := os.Create(filepath.Join(tree, compileLog))
	if err != nil {
		return fmt.Errorf("make the build log: %w", err)
	}
	defer log.Close()

	shim := filepath.Join(tree, shimCopy)
	if err := mirror(r.shimDir, shim); err != nil {
		return fmt.Errorf("copy the shim into the compile tree: %w", err)
	}
	configure := append([]string{
		"-G", "Ninja", "-S", shim, "-B", tree,
		"-DCMAKE_MAKE_PROGRAM=" + t.ninja,
		"-D" + sourceVarName + "=" + patched,
		"-DDGR_PIN_TREE=" + r.series.Tree,
		"-DDGR_PATCHES_HASH=" + r.series.Hash(),
		"-DDGR_BUILD_KEY=" + r.key(),
	}, r.flags...)
	b.report("native: configuring")
	if err := b.step(ctx, t, log, t.cmake, configure...); err != nil {
		return err
	}
	build := append([]string{"--build", tree, "--parallel", fmt.Sprint(runtime.NumCPU()), "--target"}, targets...)
	if err := b.step(ctx, t, log, t.cmake, build...); err != nil {
		return err
	}
	// What was compiled must be what the key was made of.
	now, err := hashFiles(shim)
	if err != nil {
		return fmt.Errorf("read the shim: %w", err)
	}
	if now != r.shim {
		return fmt.Errorf("%s was changed while it was compiled; run this again", r.shimDir)
	}
	return nil
}

// step runs one program of the build, with its output in the log and progress in the report.
func (b *Builder) step(ctx context.Context, t tools, log *os.File, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(append(os.Environ(), t.compilers...), "NINJA_STATUS=[%f/%t] ", "LC_ALL=C")
	tail := &progress{started: time.Now(), report: b.report}
	out := io.MultiWriter(log, tail)
	cmd.Stdout, cmd.Stderr = out, out
	command.EndGroup(cmd)
	err := cmd.Run()
	tail.flush()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("build the native library: %w", context.Cause(ctx))
	}
	for _, line := range tail.relevant() {
		b.report("native: | " + line)
	}
	return fmt.Errorf("%s failed: %w; the whole output is in %s", filepath.Base(program), err, log.Name())
}

// progress reads the output of cmake and ninja: it reports how far ninja is, and keeps the lines that explain a failure.
type progress struct {
	started time.Time
	said    time.Time
	report  func(string)
	partial []byte
	lines   []string
}

var ninjaStatus = regexp.MustCompile(`^\[(\d+)/(\d+)\]`)

func (p *progress) Write(data []byte) (int, error) {
	p.partial = append(p.partial, data...)
	for {
		i := bytes.IndexByte(p.partial, '\n')
		if i < 0 {
			return len(data), nil
		}
		p.line(string(p.partial[:i]))
		p.partial = p.partial[i+1:]
	}
}

func (p *progress) flush() {
	if len(p.partial) > 0 {
		p.line(string(p.partial))
		p.partial = nil
	}
}

func (p *progress) line(line string) {
	if m := ninjaStatus.FindStringSubmatch(line); m != nil {
		if time.Since(p.said) >= reportEvery {
			p.said = time.Now()
			p.report(fmt.Sprintf("native: compiling %s of %s (%s)", m[1], m[2], time.Since(p.started).Round(time.Second)))
		}
		return
	}
	p.lines = append(p.lines, line)
	if len(p.lines) > 4*failureLines {
		p.lines = p.lines[len(p.lines)-2*failureLines:]
	}
}

// relevant is what to show of a failed step: from the first error on, or the last lines.
func (p *progress) relevant() []string {
	lines := p.lines
	for i, line := range lines {
		if strings.HasPrefix(line, "FAILED:") || strings.Contains(line, "error:") || strings.HasPrefix(line, "CMake Error") {
			lines = lines[i:]
			return lines[:min(len(lines), failureLines)]
		}
	}
	return lines[max(0, len(lines)-failureLines):]
}

// cacheEntries reads the variables of a cmake cache.
func cacheEntries(tree string) (map[string]string, error) {
	f, err := os.Open(filepath.Join(tree, "CMakeCache.txt"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries := map[string]string{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), "=")
		if name, _, typed := strings.Cut(name, ":"); ok && typed && !strings.HasPrefix(name, "#") && !strings.HasPrefix(name, "//") {
			entries[name] = value
		}
	}
	return entries, lines.Err()
}
