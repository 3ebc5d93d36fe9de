// Package enginecases runs the suite of libs/engine/enginetest on every engine that the repository has and lays the results side by
// side: the same cases under the same names, each passed, or skipped by an ability that the engine is known to lack.
//
// The engines and their suites live elsewhere, in ordinary tests; here are only their places. What a case means stays in
// enginetest.
package enginecases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Engine is where the suite runs on an engine.
type Engine struct {
	Name string   // as people call it
	Dir  string   // module, from the root
	Pkg  string   // package, from the module
	Test string   // the test, as go test -run takes it
	Root string   // path of the suite's test, as TestEngine/any
	Args []string // further flags of go test
	Env  []string // as KEY=VALUE
}

// Pure are the engines that need no C++ compiler.
func Pure() []Engine {
	return []Engine{
		{Name: "fake", Dir: "libs/engine", Pkg: "./fake", Test: "^TestEngine$/^any$", Root: "TestEngine/any"},
		{Name: "fake in a child process", Dir: "libs/engine", Pkg: "./child", Test: "^TestEngine$", Root: "TestEngine"},
		{Name: "decorated by gomock", Dir: "tools", Pkg: "./enginecases", Test: "^TestDecoratedEngine$", Root: "TestDecoratedEngine"},
		{Name: "remote worker", Dir: "services/worker", Pkg: "./internal/rpc", Test: "^TestEngineBehindTheWire$", Root: "TestEngineBehindTheWire"},
	}
}

// Native are the engines on llama.cpp; env is what Go code with the tag llama is built with.
func Native(env []string) []Engine {
	tag := []string{"-tags", "llama"}
	return []Engine{
		{Name: "llama.cpp", Dir: "libs/native", Pkg: "./llama", Test: "^TestSuite$/^llama$", Root: "TestSuite/llama", Args: tag, Env: env},
		{Name: "llama.cpp in a child process", Dir: "libs/native", Pkg: "./llama", Test: "^TestSuiteInAProcessOfItsOwn$", Root: "TestSuiteInAProcessOfItsOwn", Args: tag, Env: env},
	}
}

// Run runs the suite on each engine, prints the cases with the results and returns an error that names every difference. Results
// that go test has kept count as run.
func Run(ctx context.Context, w *workspace.Workspace, engines []Engine, out io.Writer) error {
	var reports []Report
	var failed []error
	for _, e := range engines {
		args := append([]string{"test", "-json", "-run", e.Test}, e.Args...)
		cmd := w.Command(ctx, e.Dir, e.Env, "go", append(args, e.Pkg)...)
		var stdout strings.Builder
		cmd.Stdout = &stdout
		err := cmd.Run()
		r, unread := Read(strings.NewReader(stdout.String()), e.Root)
		r.Engine = e.Name
		reports = append(reports, r)
		if err = errors.Join(err, unread); err != nil {
			failed = append(failed, fmt.Errorf("the suite on %s (go test -run '%s' %s in %s): %w", e.Name, e.Test, e.Pkg, e.Dir, err))
		}
	}
	Print(out, reports)
	for _, line := range Differences(reports) {
		failed = append(failed, errors.New(line))
	}
	return errors.Join(failed...)
}

// Differences are the sentences that must be none: about cases that not every engine has, that failed, or that were skipped
// without naming an ability.
func Differences(reports []Report) []string {
	var found []string
	all := names(reports)
	for _, r := range reports {
		if len(r.Cases) == 0 {
			found = append(found, fmt.Sprintf("%s ran no case at all", r.Engine))
			continue
		}
		for _, name := range all {
			c, has := r.Cases[name]
			switch {
			case !has:
				found = append(found, fmt.Sprintf("%s has no case %s, and other engines have", r.Engine, name))
			case c.Outcome == Failed:
				found = append(found, fmt.Sprintf("%s fails %s", r.Engine, name))
			case c.Outcome == Skipped && c.Ability == "":
				found = append(found, fmt.Sprintf("%s skips %s without naming the ability that it lacks: %q", r.Engine, name, c.Reason))
			}
		}
	}
	return found
}

// names are those of all cases, in the order of the first engine that has them.
func names(reports []Report) []string {
	var all []string
	seen := map[string]bool{}
	for _, r := range reports {
		for _, name := range r.Order {
			if !seen[name] {
				seen[name] = true
				all = append(all, name)
			}
		}
	}
	return all
}

// Print writes a line per case, with a column per engine, and the abilities that engines lack.
func Print(out io.Writer, reports []Report) {
	marks := map[Outcome]string{Passed: "ok", Skipped: "–", Failed: "FAIL"}
	for i, r := range reports {
		passed := 0
		for _, c := range r.Cases {
			if c.Outcome == Passed {
				passed++
			}
		}
		fmt.Fprintf(out, "%d: %s, %d cases, %d passed\n", i+1, r.Engine, len(r.Cases), passed)
	}
	for _, name := range names(reports) {
		fmt.Fprintf(out, "%-72s", name)
		for _, r := range reports {
			fmt.Fprintf(out, " %-4s", cmp.Or(marks[r.Cases[name].Outcome], "none"))
		}
		fmt.Fprintln(out)
	}
	for _, r := range reports {
		lacks := map[string]string{}
		for _, c := range r.Cases {
			if c.Outcome == Skipped {
				lacks[c.Ability] = c.Reason
			}
		}
		for _, ability := range slices.Sorted(maps.Keys(lacks)) {
			fmt.Fprintf(out, "%s, without %s: %s\n", r.Engine, ability, lacks[ability])
		}
	}
}
