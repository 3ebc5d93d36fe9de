package source

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func npmSource(integrity string) Location {
	return Location{Kind: KindNPM, Package: "made-up", Version: "1.0.0", Bundle: "llama/release.bundle", Integrity: integrity}
}

var pathSource = Location{Kind: KindPath, Variable: "MADE_UP_SOURCE"}

// The first source that answers is taken, and the report says which were passed over and why.
func TestFetchTriesSourcesInOrder(t *testing.T) {
	u := newUpstream(t)
	gone := Location{Kind: KindGit, Repository: filepath.Join(t.TempDir(), "gone"), Ref: "refs/tags/v1"}
	file, integrity := packageFile(t, u.bundle())
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/made-up/-/made-up-1.0.0.tgz" {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, file)
	}))
	defer registry.Close()
	plain := t.TempDir()
	write(t, filepath.Join(plain, "src", "model.cpp"), original)
	write(t, filepath.Join(plain, "README.md"), "made up\n")

	for name, c := range map[string]struct {
		sources   []Location
		variables map[string]string
		want      string   // source that answers
		passed    []string // sources passed over, with why
	}{
		"git first": {
			[]Location{gitSource(u), npmSource(integrity)}, nil,
			"from git repository " + u.dir, nil,
		},
		"package from the registry": {
			[]Location{gone, npmSource(integrity), pathSource},
			map[string]string{"NPM_CONFIG_REGISTRY": registry.URL + "/"},
			"from npm package made-up@1.0.0", []string{"passed over git repository " + gone.Repository},
		},
		"repository at a path": {
			[]Location{gone, npmSource(integrity), pathSource}, map[string]string{"MADE_UP_SOURCE": u.dir},
			"from path in $MADE_UP_SOURCE", []string{"passed over npm package made-up@1.0.0: npm is not installed"},
		},
		"bundle at a path": {
			[]Location{pathSource}, map[string]string{"MADE_UP_SOURCE": u.bundle()},
			"from path in $MADE_UP_SOURCE", nil,
		},
		"directory at a path": {
			[]Location{pathSource}, map[string]string{"MADE_UP_SOURCE": plain},
			"from path in $MADE_UP_SOURCE", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModule(t, u.tree, c.sources...)
			m.host = bareHost(c.variables)
			s := m.open()
			require.False(t, s.Cached())
			dir, err := s.Fetch(t.Context())
			require.NoError(t, err)
			require.True(t, s.Cached())
			require.Contains(t, m.said.all(), c.want)
			for _, p := range c.passed {
				require.Contains(t, m.said.all(), p)
			}
			data, err := os.ReadFile(filepath.Join(dir, "src", "model.cpp"))
			require.NoError(t, err)
			require.Equal(t, original, string(data))
		})
	}
}

// npm itself is used where it exists.
func TestFetchByNPM(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the stand-in for npm is a shell script")
	}
	u := newUpstream(t)
	file, integrity := packageFile(t, u.bundle())
	npm := filepath.Join(t.TempDir(), "npm")
	script := `#!/bin/sh
test "$1" = pack || exit 1
while [ $# -gt 1 ]; do test "$1" = --pack-destination && to="$2"; shift; done
test "$1" = made-up@1.0.0 || exit 1
cp ` + file + ` "$to/"
`
	require.NoError(t, os.WriteFile(npm, []byte(script), 0o755))
	m := newModule(t, u.tree, npmSource(integrity))
	m.host = bareHost(nil)
	m.host.lookPath = func(string) (string, error) { return npm, nil }
	_, err := m.open().Fetch(t.Context())
	require.NoError(t, err)
}

func TestFetchRefusesChangedPackage(t *testing.T) {
	u := newUpstream(t)
	file, integrity := packageFile(t, u.bundle())
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
	defer registry.Close()
	m := newModule(t, u.tree, npmSource(integrity), gitSource(u))
	m.host = bareHost(map[string]string{"npm_config_registry": registry.URL})
	_, err = m.open().Fetch(t.Context())
	require.ErrorContains(t, err, "integrity")
	require.ErrorContains(t, err, integrity)
}

// A source that answers with another tree ends the fetch, even where a later one would be right.
func TestFetchRefusesOtherTree(t *testing.T) {
	u, other := newUpstream(t), newUpstream(t)
	edit(t, filepath.Join(other.dir, "README.md"), "made", "Made")
	other.git("commit", "-q", "-a", "-m", "other")
	other.git("tag", "-f", "v1")
	tree := other.git("rev-parse", "HEAD^{tree}")

	m := newModule(t, u.tree, gitSource(other), gitSource(u))
	s := m.open()
	_, err := s.Fetch(t.Context())
	for _, want := range []string{"git repository " + other.dir + " gave tree " + tree, u.tree, "nothing is built from it"} {
		require.ErrorContains(t, err, want)
	}
	require.False(t, s.Cached())
}

func TestFetchSaysWhatToDoWhenNothingAnswers(t *testing.T) {
	m := newModule(t, strings.Repeat("0", 40), npmSource("sha512-x"), pathSource)
	m.host = bareHost(nil)
	_, err := m.open().Fetch(t.Context())
	for _, want := range []string{"no source of made up v1 answered", "install npm", "NPM_CONFIG_REGISTRY", "$MADE_UP_SOURCE", "the variable is not set"} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "\n")
}

// A server that accepts and never speaks costs the bound, not more.
func TestFetchPassesOverSilentServer(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	u := newUpstream(t)
	m := newModule(t, u.tree, Location{Kind: KindGit, Repository: "git://" + silent.Addr().String() + "/made-up", Ref: "refs/tags/v1"}, gitSource(u))
	m.host = bareHost(nil)
	m.host.connect = 300 * time.Millisecond
	_, err = m.open().Fetch(t.Context())
	require.NoError(t, err)
	require.Contains(t, m.said.all(), "no answer in 300ms")
}

// Many fetch at once into one cache: one does the work, all get the same.
func TestFetchTogether(t *testing.T) {
	u := newUpstream(t)
	m := newModule(t, u.tree, gitSource(u))
	var all errgroup.Group
	for range 4 {
		all.Go(func() error {
			_, err := m.open().Fetch(t.Context())
			return err
		})
	}
	require.NoError(t, all.Wait())
	require.Equal(t, 1, strings.Count(m.said.all(), "trying "))
}

// A lock that another holds is waited for no longer than the context allows.
func TestFetchWaitsForLock(t *testing.T) {
	u := newUpstream(t)
	m := newModule(t, u.tree, gitSource(u))
	unlock, err := m.open().Lock(t.Context(), "src-"+u.tree)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = m.open().Fetch(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Contains(t, m.said.all(), "waiting for another process")
	unlock()
	_, err = m.open().Fetch(t.Context())
	require.NoError(t, err)
}

// A git hook's variables must not turn the commands to another repository.
func TestFetchIgnoresCallersRepository(t *testing.T) {
	u := newUpstream(t)
	m := newModule(t, u.tree, gitSource(u))
	t.Setenv("GIT_DIR", filepath.Join(t.TempDir(), "elsewhere"))
	t.Setenv("GIT_INDEX_FILE", filepath.Join(t.TempDir(), "index"))
	_, err := m.open().Fetch(t.Context())
	require.NoError(t, err)
}

func TestOpenRefusesBadPin(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":       {"{", "is not valid"},
		"unknown field": {`{"nam": "x"}`, "nam"},
		"all faults":    {`{"name":"x","tag":"v1","tree":"12","sources":[{"kind":"ftp"}]}`, `tree "12" is not 40 hexadecimal digits; sources[0] (source of unknown kind "ftp")`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, pinFile), c.text)
			_, err := Open(Options{Module: dir, Cache: t.TempDir()})
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestOpenFindsTheModule(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "libs", "native", pinFile), `{"name":"x","tag":"v1","tree":"`+strings.Repeat("a", 40)+`","sources":[{"kind":"path","variable":"X"}]}`)
	deep := filepath.Join(root, "services", "worker")
	require.NoError(t, os.MkdirAll(deep, 0o755))
	t.Chdir(deep)
	s, err := Open(Options{Cache: t.TempDir()})
	require.NoError(t, err)
	require.Equal(t, "native", filepath.Base(s.Module()))
	t.Chdir(t.TempDir())
	_, err = Open(Options{Cache: t.TempDir()})
	require.ErrorContains(t, err, "run this inside the repository")
}
