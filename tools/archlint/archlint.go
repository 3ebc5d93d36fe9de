// Package archlint knows which way imports may run, as data with reasons, and finds those that run against it.
//
// How code looks inside a package is the business of houserules.
package archlint

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/sourcetree"
)

// Rule forbids arrows. Patterns are folders from the root, or import paths of libraries; `x/...` is x and all below it.
type Rule struct {
	From   []string // these packages …
	Except []string // … but not these …
	To     []string // … must not import these …
	Allow  []string // … but may import these
	Tests  bool     // holds for test files too
	Why    string

	// Example is an arrow that the rule forbids: the importing file and what it imports. A test proves it.
	Example [2]string
}

var ours = []string{"gen/...", "libs/...", "services/...", "tools/..."}

// Rules are the arrows that DGR forbids.
func Rules() []Rule {
	return []Rule{
		{
			From: []string{"libs/engine/..."}, To: ours, Allow: []string{"libs/engine/..."}, Tests: true,
			Why:     "the engine's interface is pure Go of its own: it knows neither the wire nor anybody who uses it",
			Example: [2]string{"libs/engine/step.go", "gen/workerpb"},
		},
		{
			From: []string{"libs/engine"}, To: []string{"*.*/..."}, Allow: ours,
			Why:     "an engine author should need nothing but the standard library to implement the interface",
			Example: [2]string{"libs/engine/step.go", "google.golang.org/grpc"},
		},
		{
			From: []string{"gen/..."}, Except: []string{"gen/mocks"}, To: ours, Allow: []string{"gen/..."}, Tests: true,
			Why:     "the generated contract imports libraries only, so that anybody can take it without the rest",
			Example: [2]string{"gen/tables/session.go", "libs/client/fault"},
		},
		{
			From: []string{"gen/mocks"}, To: ours, Allow: []string{"libs/engine"}, Tests: true,
			Why:     "mocks stand for the engine's interfaces and for nothing else",
			Example: [2]string{"gen/mocks/engine.go", "libs/native/llama"},
		},
		{
			From: []string{"libs/native/..."}, To: []string{"services/...", "libs/client/...", "tools/..."}, Tests: true,
			Why:     "native code is below the services: it implements the engine and knows no wire",
			Example: [2]string{"libs/native/llama/engine.go", "libs/client/fault"},
		},
		{
			From: []string{"libs/client/..."}, To: []string{"services/...", "libs/native/...", "tools/..."}, Tests: true,
			Why:     "a client needs the contract and an endpoint, no worker and no native code",
			Example: [2]string{"libs/client/dial.go", "services/worker/internal/rpc"},
		},
		{
			From: []string{"services/worker/..."}, To: []string{"services/gateway/...", "tools/..."}, Tests: true,
			Why:     "services are deployed alone and meet over the contract only",
			Example: [2]string{"services/worker/internal/rpc/session.go", "services/gateway/internal/plan"},
		},
		{
			From: []string{"services/gateway/..."}, To: []string{"services/worker/...", "tools/..."}, Tests: true,
			Why:     "services are deployed alone and meet over the contract only",
			Example: [2]string{"services/gateway/internal/up/up.go", "services/worker/internal/shard"},
		},
		{
			From: []string{"services/..."}, Except: []string{"services/worker/cmd/...", "services/gateway/cmd/..."},
			To:      []string{"libs/native/llama/..."},
			Why:     "main alone chooses the native engine; everything else takes a factory and runs without a C++ compiler",
			Example: [2]string{"services/worker/internal/shard/shard.go", "libs/native/llama"},
		},
		{
			From: []string{"..."}, Except: []string{"libs/native/...", "gen/workerpb"}, To: []string{"C", "unsafe"}, Tests: true,
			Why:     "code that meets C or raw memory lives in libs/native or nowhere",
			Example: [2]string{"services/worker/internal/batch/batch.go", "C"},
		},
		{
			From: []string{"services/...", "libs/..."}, To: []string{"log", "github.com/sirupsen/logrus", "go.uber.org/zap"},
			Why:     "logs are structured: log/slog, with the logger passed in",
			Example: [2]string{"services/worker/internal/rpc/session.go", "log"},
		},
	}
}

// Check lists every import that a rule forbids, with the reason. Generated files are held to the rules as well.
func Check(t *sourcetree.Tree, rules []Rule) []string {
	var found []string
	for _, f := range t.Files {
		for _, r := range rules {
			if f.Test() && !r.Tests || !matches(f.Dir(), r.From) || matches(f.Dir(), r.Except) {
				continue
			}
			for _, to := range f.Imports() {
				if matches(to, r.To) && !matches(to, r.Allow) {
					found = append(found, fmt.Sprintf("%s imports %s: %s", f.Path, to, r.Why))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// matches says whether a folder or import path is one of the patterns.
func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		switch {
		case p == "...":
			return true
		case p == "*.*/...":
			return library(name)
		case strings.HasSuffix(p, "/..."):
			dir := strings.TrimSuffix(p, "/...")
			return name == dir || strings.HasPrefix(name, dir+"/")
		}
		return path.Clean(p) == name
	})
}

// library says whether an import path is of somebody else's module: its first element has a dot.
func library(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return strings.Contains(first, ".")
}
