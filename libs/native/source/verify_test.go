package source

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func queued(t *testing.T) (module, upstream) {
	t.Helper()
	u := newUpstream(t)
	m := newModule(t, u.tree, gitSource(u))
	m.queue()
	return m, u
}

// copy is a module of its own with the same files and cache.
func (m module) copy(t *testing.T) module {
	t.Helper()
	c := module{t: t, dir: t.TempDir(), cache: t.TempDir(), said: &transcript{}}
	require.NoError(t, os.CopyFS(c.dir, os.DirFS(m.dir)))
	require.NoError(t, os.CopyFS(c.cache, os.DirFS(m.cache)))
	return c
}

func TestVerifyAcceptsTheQueue(t *testing.T) {
	m, _ := queued(t)
	require.NoError(t, m.open().Verify(t.Context()))
	require.Contains(t, m.said.all(), "0002-Say-NINE.patch applies exactly")
}

// One byte of anything that decides the bits is changed; Verify names the thing.
func TestVerifyNamesWhatWasChanged(t *testing.T) {
	whole, _ := queued(t)
	for name, c := range map[string]struct {
		change func(t *testing.T, m module)
		want   []string
	}{
		"patch": {
			func(t *testing.T, m module) { tamper(t, m.patch(2), "+NINE", "+NINA") },
			[]string{"patch 0002-Say-NINE.patch was changed"},
		},
		"header of a patch": {
			func(t *testing.T, m module) { tamper(t, m.patch(1), "a test", "a tesT") },
			[]string{"patch 0001-Say-TWO.patch was changed"},
		},
		"tag of the pin": {
			func(t *testing.T, m module) { tamper(t, filepath.Join(m.dir, pinFile), `"v1"`, `"v2"`) },
			[]string{"pin.json was changed", "tag v2", "v1"},
		},
		"tree of the pin": {
			func(t *testing.T, m module) {
				p := m.open().Pin()
				digit := map[bool]string{true: "1", false: "0"}[p.Tree[0] == '0']
				tamper(t, filepath.Join(m.dir, pinFile), p.Tree, digit+p.Tree[1:])
			},
			[]string{"pin.json was changed", "tree"},
		},
		"another byte of the pin": {
			func(t *testing.T, m module) { tamper(t, filepath.Join(m.dir, pinFile), "made up", "made  up") },
			[]string{"pin.json was changed", "SHA-256"},
		},
		"source file": {
			func(t *testing.T, m module) {
				tamper(t, filepath.Join(m.open().pristine(), "src", "model.cpp"), "five", "fivE")
			},
			[]string{filepath.Join("src", "model.cpp") + " was changed"},
		},
		"missing source file": {
			func(t *testing.T, m module) {
				require.NoError(t, os.Remove(filepath.Join(m.open().pristine(), "README.md")))
			},
			[]string{"README.md was changed"},
		},
		"foreign source file": {
			func(t *testing.T, m module) {
				write(t, filepath.Join(m.open().pristine(), "src", "more.cpp"), "int x;\n")
			},
			[]string{filepath.Join("src", "more.cpp") + " does not belong there"},
		},
		"foreign patch": {
			func(t *testing.T, m module) { write(t, filepath.Join(m.dir, patchesDir, "0003-More.patch"), "x") },
			[]string{"0003-More.patch is not in series.json"},
		},
		"tree in the series": {
			func(t *testing.T, m module) {
				file := filepath.Join(m.dir, patchesDir, seriesFile)
				s, err := readSeries(file)
				require.NoError(t, err)
				tamper(t, file, s.Patches[0].Tree, s.Patches[1].Tree)
			},
			[]string{"patch 0001-Say-TWO.patch gives tree"},
		},
		"patch that is listed and does not match": {
			func(t *testing.T, m module) { tamper(t, m.patch(2), "\n eight\n", "\n ache\n"); m.sign() },
			[]string{"patch 0002-Say-NINE.patch does not apply", "hunk 1 of src/model.cpp (line 6)"},
		},
		"patch without a reason": {
			func(t *testing.T, m module) { tamper(t, m.patch(1), "Why: ", "Wherefore: "); m.sign() },
			[]string{"0001-Say-TWO.patch", "Why:"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := whole.copy(t)
			c.change(t, m)
			err := m.open().Verify(t.Context())
			require.Error(t, err)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// A hunk that git would move to where it fits is refused.
func TestVerifyRefusesMovedHunk(t *testing.T) {
	m, _ := queued(t)
	tamper(t, m.patch(2), "@@ -6,5 +6,5 @@", "@@ -4,5 +4,5 @@")
	m.sign()
	err := m.open().Verify(t.Context())
	require.ErrorContains(t, err, "patch 0002-Say-NINE.patch is not exact: hunk 1 of src/model.cpp applies at line 6, 2 lines from")
}

// A hunk that names a file outside the tree, or none, is refused and not skipped.
func TestVerifyRefusesForeignPath(t *testing.T) {
	m, _ := queued(t)
	data, err := os.ReadFile(m.patch(1))
	require.NoError(t, err)
	write(t, m.patch(1), string(data)+"diff --git a/src/other.cpp b/src/other.cpp\n--- a/src/other.cpp\n+++ b/src/other.cpp\n@@ -1 +1 @@\n-a\n+b\n")
	m.sign()
	require.ErrorContains(t, m.open().Verify(t.Context()), "src/other.cpp: No such file or directory")
}

func TestApply(t *testing.T) {
	m, _ := queued(t)
	s := m.open()
	dir, err := s.Apply(t.Context())
	require.NoError(t, err)
	file := filepath.Join(dir, "src", "model.cpp")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "one\nTWO\nthree\nfour\nfive\nsix\nseven\neight\nNINE\nten\n", string(data))

	again, err := s.Apply(t.Context())
	require.NoError(t, err)
	require.Equal(t, dir, again)

	// The patched source is made anew when something has changed in it.
	tamper(t, file, "TWO", "TOO")
	_, err = s.Apply(t.Context())
	require.NoError(t, err)
	mended, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(data), string(mended))
	require.Contains(t, m.said.all(), filepath.Join("src", "model.cpp")+" was changed; making the patched source anew")
}

// The compiled library tells its commit: it must not depend on where the source came from.
func TestApplyGivesTheSameCommitFromAnySource(t *testing.T) {
	m, u := queued(t)
	dir, err := m.open().Apply(t.Context())
	require.NoError(t, err)

	files := t.TempDir()
	write(t, filepath.Join(files, "src", "model.cpp"), original)
	write(t, filepath.Join(files, "README.md"), "made up\n")
	plain := newModule(t, u.tree, pathSource)
	plain.host = bareHost(map[string]string{"MADE_UP_SOURCE": files})
	plain.queue()
	other, err := plain.open().Apply(t.Context())
	require.NoError(t, err)
	require.Equal(t, runGit(t, dir, "rev-parse", "HEAD"), runGit(t, other, "rev-parse", "HEAD"))
}

// Upstream moves on: the queue is carried to the new version, or the work tree to finish in is named.
func TestRefreshOntoNewPin(t *testing.T) {
	m, u := queued(t)
	write(t, filepath.Join(u.dir, "src", "model.cpp"), "zero\n"+original)
	u.git("commit", "-q", "-a", "-m", "v2")
	u.git("tag", "v2")
	next := Pin{Name: "made up", Tag: "v2", Tree: u.git("rev-parse", "HEAD^{tree}"),
		Sources: []Location{{Kind: KindGit, Repository: u.dir, Ref: "refs/tags/v2"}}}
	m.pin(next)
	require.ErrorContains(t, m.open().Verify(t.Context()), "mage patch:refresh")
	require.NoError(t, m.open().Refresh(t.Context(), ""))
	require.NoError(t, m.open().Verify(t.Context()))

	write(t, filepath.Join(u.dir, "src", "model.cpp"), "nothing is left\n")
	u.git("commit", "-q", "-a", "-m", "v3")
	u.git("tag", "v3")
	next.Tag, next.Tree, next.Sources[0].Ref = "v3", u.git("rev-parse", "HEAD^{tree}"), "refs/tags/v3"
	m.pin(next)
	before, err := os.ReadFile(m.patch(1))
	require.NoError(t, err)
	require.ErrorContains(t, m.open().Refresh(t.Context(), ""), "finish `git am` in ")
	after, err := os.ReadFile(m.patch(1))
	require.NoError(t, err)
	require.Equal(t, before, after)
}
