// Package houserules holds the rules of this house that no general linter knows, each with what to do instead.
//
// Which package may import which is the business of archlint.
package houserules

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/sourcetree"
)

// Rule is one rule over Go files that a person wrote.
type Rule struct {
	Name    string // as `no init`
	Instead string // what to do, as a full sentence
	Check   func(h *House, f *sourcetree.File) []Finding

	// Bad is a file that breaks the rule once, for the test: its path and its text. Good breaks no rule.
	Bad, Good [2]string
}

// Finding is one breach.
type Finding struct {
	Where string // file and line
	What  string
}

// String is as `libs/engine/x.go:3: func init`.
func (f Finding) String() string { return f.Where + ": " + f.What }

// maxLines is the longest a file may be.
const maxLines = 600

// Backgrounds are the production files that may call context.Background: file to reason. An owner that keeps its life and
// the end of it in its fields (`x.life, x.end = context.WithCancel(context.Background())`) needs no entry.
func Backgrounds() map[string]string {
	return map[string]string{
		"libs/native/gguf/write.go":                     "Write is the form without a ctx, for callers that have nothing to stop it with",
		"services/gateway/internal/up/up.go":            "workers are stopped when the caller's ctx has ended already; the stop has a bound of its own",
		"services/worker/internal/session/live/live.go": "a session's core asks what is wrong with a grammar and waits for nothing; the engine bounds the work",
		"services/worker/internal/rpc/server.go":        "the watch over the shard lives as long as the server; Stop ends it",
		"services/worker/internal/batch/scheduler.go":   "a native call serves several sessions, so no caller's ctx may end it; the scheduler cancels it",
	}
}

// doc is the package comment of the examples.
const doc = "// Package client is an example for the test.\n"

// Rules are the rules of the house.
func Rules() []Rule {
	return []Rule{
		{
			Name: "no init", Instead: "Make the value in a constructor and pass it on; main alone wires things.",
			Check: funcs(func(d *ast.FuncDecl) string {
				if d.Recv == nil && d.Name.Name == "init" {
					return "func init"
				}
				return ""
			}),
			Bad:  [2]string{"libs/client/a.go", doc + "package client\n\nfunc init() {}\n"},
			Good: [2]string{"libs/client/a.go", doc + "package client\n\ntype T struct{}\n\nfunc (T) init() {}\n"},
		},
		{
			Name: "libraries do not print", Instead: "Return an error, or log to the slog.Logger that was passed in.",
			Check: func(h *House, f *sourcetree.File) []Finding {
				if f.Main() || f.Test() || !under(f, "libs", "services") {
					return nil
				}
				return h.uses(f, "fmt.Print", "fmt.Println", "fmt.Printf", "print", "println")
			},
			Bad:  [2]string{"libs/client/a.go", doc + "package client\n\nimport \"fmt\"\n\nfunc f() { fmt.Println(1) }\n"},
			Good: [2]string{"libs/client/a.go", doc + "package client\n\nimport \"fmt\"\n\nfunc f() string { return fmt.Sprint(1) }\n"},
		},
		{
			Name: "no context out of nothing", Instead: "Take a ctx from the caller; an owner of goroutines keeps `x.life, x.end = context.WithCancel(…)` in its fields. Or list the file in Backgrounds with the reason.",
			Check: func(h *House, f *sourcetree.File) []Finding {
				if _, listed := Backgrounds()[f.Path]; listed || f.Main() || f.Test() || testSuite(f) {
					return nil
				}
				return h.rootless(f)
			},
			Bad:  [2]string{"libs/client/a.go", doc + "package client\n\nimport \"context\"\n\nvar _ = context.Background()\n"},
			Good: [2]string{"libs/client/a.go", doc + "package client\n\nimport \"context\"\n\nfunc f(x *T) { x.life, x.end = context.WithCancel(context.Background()) }\n"},
		},
		{
			Name: "tests do not sleep", Instead: "Wait for the event itself, or use testing/synctest.",
			Check: func(h *House, f *sourcetree.File) []Finding {
				if !f.Test() && !testSuite(f) || synctested(f) {
					return nil
				}
				return h.uses(f, "time.Sleep")
			},
			Bad:  [2]string{"libs/client/a_test.go", doc + "package client\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"},
			Good: [2]string{"libs/client/a_test.go", doc + "package client\n\nimport (\n\t\"testing/synctest\"\n\t\"time\"\n)\n\nvar _ = synctest.Wait\n\nfunc f() { time.Sleep(1) }\n"},
		},
		{
			Name: "a skip says why", Instead: "Say what is absent and how to get it: t.Skip(\"no C++ compiler: …\").",
			Check: func(h *House, f *sourcetree.File) []Finding {
				return h.methods(f, func(name string, c *ast.CallExpr) bool {
					return name == "SkipNow" || name == "Skip" && len(c.Args) == 0
				})
			},
			Bad:  [2]string{"libs/client/a_test.go", doc + "package client\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.SkipNow() }\n"},
			Good: [2]string{"libs/client/a_test.go", doc + "package client\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { t.Skip(\"no model\") }\n"},
		},
		{
			Name: "no package variable changes", Instead: "Put it into a struct that main makes, or return it from a function.",
			Check: mutableGlobals,
			Bad:   [2]string{"libs/client/a.go", doc + "package client\n\nvar n = 1\n\nfunc f() { n++ }\n"},
			Good:  [2]string{"libs/client/a.go", doc + "package client\n\nvar n = 1\n\nfunc f() int { n := n; n++; return n }\n"},
		},
		{
			Name: "no room for odds and ends", Instead: "Name the package after what it is about.",
			Check: oddNames,
			Bad:   [2]string{"libs/client/util/a.go", "// Package util is for odds and ends.\npackage util\n"},
			Good:  [2]string{"libs/client/util.go", doc + "package client\n"},
		},
		{
			Name: "a room says what it is for", Instead: "Write a package comment: what the package is for and what must stay out of it.",
			Check: undocumented,
			Bad:   [2]string{"libs/client/a.go", "// A comment about something else.\n\npackage client\n"},
			Good:  [2]string{"libs/client/a_test.go", doc + "package client\n"},
		},
		{
			Name: "a file is one room", Instead: fmt.Sprintf("Split it by subject; the limit is %d lines.", maxLines),
			Check: func(_ *House, f *sourcetree.File) []Finding {
				if f.Lines <= maxLines {
					return nil
				}
				return []Finding{{f.Path, fmt.Sprintf("%d lines", f.Lines)}}
			},
			Bad:  [2]string{"libs/client/a.go", doc + "package client\n" + strings.Repeat("\n", maxLines)},
			Good: [2]string{"libs/client/a.go", doc + "package client\n" + strings.Repeat("\n", maxLines-2)},
		},
		{
			Name: "nothing is left for later", Instead: "Do it now, or write down in the evidence what is missing.",
			Check: unfinished,
			Bad:   [2]string{"libs/client/a.go", doc + "package client\n\n// TO" + "DO: write this.\n"},
			Good:  [2]string{"libs/client/a.go", doc + "package client\n\n// Todos are kept elsewhere.\n"},
		},
	}
}

// Check runs a rule over every file that a person wrote.
func Check(h *House, r Rule) []Finding {
	var found []Finding
	for _, f := range h.tree.Files {
		if !f.Generated() {
			found = append(found, r.Check(h, f)...)
		}
	}
	return found
}

// under says whether the file is below one of the folders of the root.
func under(f *sourcetree.File, roots ...string) bool {
	first, _, _ := strings.Cut(f.Path, "/")
	return slices.Contains(roots, first)
}

// testSuite says whether the package exists to be called by tests.
func testSuite(f *sourcetree.File) bool { return strings.HasSuffix(f.Dir(), "test") }

// synctested says whether the file runs on the clock of testing/synctest, where a sleep is a synchronisation.
func synctested(f *sourcetree.File) bool { return slices.Contains(f.Imports(), "testing/synctest") }

var oddPackages = []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "manager", "managers", "shared", "lib"}

func oddNames(_ *House, f *sourcetree.File) []Finding {
	name := strings.TrimSuffix(f.Syntax.Name.Name, "_test")
	for _, n := range []string{name, path.Base(f.Dir())} {
		if slices.Contains(oddPackages, n) {
			return []Finding{{f.Path, "package " + n}}
		}
	}
	return nil
}

// undocumented finds packages without a package comment, at their first file.
func undocumented(h *House, f *sourcetree.File) []Finding {
	for _, other := range h.tree.Files {
		if other.Dir() != f.Dir() || other.Test() {
			continue
		}
		if doc := other.Syntax.Doc; doc != nil && len(doc.Text()) > 20 {
			return nil
		}
	}
	for _, other := range h.tree.Files {
		if other.Dir() == f.Dir() && !other.Test() {
			if other != f {
				return nil
			}
			return []Finding{{f.Path, "package " + f.Syntax.Name.Name + " has no comment"}}
		}
	}
	return nil
}

var laterWords = regexp.MustCompile(`\b(TODO|FIXME|XXX)\b`)

func unfinished(h *House, f *sourcetree.File) []Finding {
	var found []Finding
	for _, group := range f.Syntax.Comments {
		for _, c := range group.List {
			if word := laterWords.FindString(c.Text); word != "" {
				found = append(found, Finding{h.tree.At(c), "comment with " + word})
			}
		}
	}
	return found
}
