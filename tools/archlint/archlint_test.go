package archlint

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/sourcetree"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// No import of the repository runs against the arrows.
func TestArrows(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	tree, err := sourcetree.Load(w)
	require.NoError(t, err)
	require.Greater(t, len(tree.Files), 50, "the tree was not read")
	for _, line := range Check(tree, Rules()) {
		t.Error(line)
	}
}

// Each rule catches the arrow that it names as its example, and the reverse of nothing.
func TestEachRuleCatchesItsExample(t *testing.T) {
	for i, r := range Rules() {
		file, to := r.Example[0], r.Example[1]
		t.Run(fmt.Sprintf("%s to %s", path.Dir(file), to), func(t *testing.T) {
			found := Check(made(t, file, to), []Rule{r})
			require.Len(t, found, 1)
			require.Contains(t, found[0], file+" imports "+to)
			require.Contains(t, found[0], r.Why)
			require.Empty(t, Check(made(t, file, "strings"), Rules()), "rule %d forbids the standard library", i)
		})
	}
}

// A rule that speaks of production code alone lets tests through, and the others do not.
func TestTestFiles(t *testing.T) {
	for _, r := range Rules() {
		file := strings.TrimSuffix(r.Example[0], ".go") + "_test.go"
		found := Check(made(t, file, r.Example[1]), []Rule{r})
		require.Equal(t, r.Tests, len(found) == 1, file)
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		name, pattern string
		want          bool
	}{
		{"libs/engine", "libs/engine/...", true},
		{"libs/engine/fake", "libs/engine/...", true},
		{"libs/enginetest", "libs/engine/...", false},
		{"libs/engine/fake", "libs/engine", false},
		{"google.golang.org/grpc", "*.*/...", true},
		{"encoding/json", "*.*/...", false},
	} {
		require.Equal(t, c.want, matches(c.name, []string{c.pattern}), "%s and %s", c.name, c.pattern)
	}
}

// made is a tree of one file with one import.
func made(t *testing.T, file, to string) *sourcetree.Tree {
	t.Helper()
	for _, p := range ours {
		if matches(to, []string{p}) {
			to = sourcetree.Prefix + to
		}
	}
	tree := &sourcetree.Tree{}
	require.NoError(t, tree.Add(file, []byte("package p\n\nimport _ \""+to+"\"\n")))
	return tree
}
