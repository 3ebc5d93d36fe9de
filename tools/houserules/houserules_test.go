package houserules

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/sourcetree"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// The house keeps its rules; each failure says what to do instead.
func TestHouse(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	tree, err := sourcetree.Load(w)
	require.NoError(t, err)
	require.Greater(t, len(tree.Files), 50, "the tree was not read")
	house := NewHouse(tree)
	for _, r := range Rules() {
		t.Run(r.Name, func(t *testing.T) {
			for _, f := range Check(house, r) {
				t.Errorf("%v\n    %s", f, r.Instead)
			}
		})
	}
}

// Each rule finds exactly one breach in its bad example, and the whole house none in the good one.
func TestEachRuleCatchesItsExample(t *testing.T) {
	for _, r := range Rules() {
		t.Run(r.Name, func(t *testing.T) {
			found := Check(made(t, r.Bad), r)
			require.Len(t, found, 1, "%v", found)
			require.Contains(t, found[0].Where, r.Bad[0])
			for _, other := range Rules() {
				require.Empty(t, Check(made(t, r.Good), other), "%s in the good example", other.Name)
			}
		})
	}
}

// Generated files are nobody's style.
func TestGeneratedFilesAreLeftAlone(t *testing.T) {
	for _, r := range Rules() {
		file := [2]string{"gen/" + r.Bad[0], r.Bad[1]}
		require.Empty(t, Check(made(t, file), r), r.Name)
	}
}

// The list of exceptions names files that exist and still need it, each with a reason.
func TestBackgroundsAreNeeded(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	tree, err := sourcetree.Load(w)
	require.NoError(t, err)
	house := NewHouse(tree)
	for file, why := range Backgrounds() {
		require.NotEmpty(t, why, file)
		needed := false
		for _, f := range tree.Files {
			needed = needed || f.Path == file && len(house.rootless(f)) > 0
		}
		require.True(t, needed, "%s is listed and does not call context.Background", file)
	}
}

func made(t *testing.T, file [2]string) *House {
	t.Helper()
	tree := &sourcetree.Tree{}
	require.NoError(t, tree.Add(file[0], []byte(file[1])))
	return NewHouse(tree)
}
