package source

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream is a made-up llama.cpp: one commit, tagged v1, with two files.
type upstream struct {
	t    *testing.T
	dir  string
	tree string
}

const original = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n"

func newUpstream(t *testing.T) upstream {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	u := upstream{t: t, dir: filepath.Join(t.TempDir(), "upstream")}
	write(t, filepath.Join(u.dir, "src", "model.cpp"), original)
	write(t, filepath.Join(u.dir, "README.md"), "made up\n")
	u.git("init", "-q")
	u.git("add", "-A")
	u.git("commit", "-q", "-m", "v1")
	u.git("tag", "v1")
	u.tree = u.git("rev-parse", "HEAD^{tree}")
	return u
}

func (u upstream) git(args ...string) string { return runGit(u.t, u.dir, args...) }

// bundle is a git bundle of the upstream.
func (u upstream) bundle() string {
	file := filepath.Join(u.t.TempDir(), "release.bundle")
	u.git("bundle", "create", "-q", file, "HEAD")
	return file
}

func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git{dir: dir}.run(context.Background(), args...)
	require.NoError(t, err)
	return strings.TrimSpace(out)
}

// module is a directory like libs/native with a pin on the upstream and, after queue, patches.
type module struct {
	t     *testing.T
	dir   string
	cache string
	host  *host // nil: this machine's
	said  *transcript
}

type transcript struct {
	mu    sync.Mutex
	lines []string
}

func (s *transcript) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *transcript) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, "\n")
}

func newModule(t *testing.T, tree string, sources ...Location) module {
	t.Helper()
	m := module{t: t, dir: t.TempDir(), cache: t.TempDir(), said: &transcript{}}
	m.pin(Pin{Name: "made up", Tag: "v1", Tree: tree, Sources: sources})
	return m
}

func (m module) pin(p Pin) {
	m.t.Helper()
	data, err := json.MarshalIndent(p, "", "  ")
	require.NoError(m.t, err)
	write(m.t, filepath.Join(m.dir, pinFile), string(data))
}

func (m module) open() *Store {
	m.t.Helper()
	s, err := Open(Options{Module: m.dir, Cache: m.cache, Report: m.said.add})
	require.NoError(m.t, err)
	if m.host != nil {
		s.host = *m.host
	}
	return s
}

// queue writes two patches of model.cpp by Refresh, the way a maintainer would.
func (m module) queue() {
	m.t.Helper()
	s := m.open()
	pristine, err := s.Fetch(m.t.Context())
	require.NoError(m.t, err)
	work := filepath.Join(m.t.TempDir(), "work")
	require.NoError(m.t, clone(m.t.Context(), pristine, work))
	for _, c := range []struct{ subject, from, to string }{
		{"Say TWO", "two", "TWO"},
		{"Say NINE", "nine", "NINE"},
	} {
		edit(m.t, filepath.Join(work, "src", "model.cpp"), c.from, c.to)
		runGit(m.t, work, "commit", "-q", "-a", "-m", c.subject+"\n\nWhy: a test.\n\nUnnecessary when: it ends.")
	}
	require.NoError(m.t, s.Refresh(m.t.Context(), work))
}

func (m module) patch(n int) string {
	m.t.Helper()
	found, err := filepath.Glob(filepath.Join(m.dir, patchesDir, fmt.Sprintf("%04d-*.patch", n)))
	require.NoError(m.t, err)
	require.Len(m.t, found, 1)
	return found[0]
}

// sign makes the series agree with patch files that a test has changed.
func (m module) sign() {
	m.t.Helper()
	file := filepath.Join(m.dir, patchesDir, seriesFile)
	s, err := readSeries(file)
	require.NoError(m.t, err)
	for i, p := range s.Patches {
		data, err := os.ReadFile(filepath.Join(m.dir, patchesDir, p.File))
		require.NoError(m.t, err)
		s.Patches[i].SHA256 = sumHex(data)
	}
	require.NoError(m.t, s.write(file))
}

func gitSource(u upstream) Location {
	return Location{Kind: KindGit, Repository: u.dir, Ref: "refs/tags/v1"}
}

// packageFile is an npm package with a bundle in it, and the package's integrity.
func packageFile(t *testing.T, bundle string) (file, integrity string) {
	t.Helper()
	data, err := os.ReadFile(bundle)
	require.NoError(t, err)
	file = filepath.Join(t.TempDir(), "made-up-1.0.0.tgz")
	f, err := os.Create(file)
	require.NoError(t, err)
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "package/llama/release.bundle", Mode: 0o644, Size: int64(len(data))}))
	_, err = w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	require.NoError(t, f.Close())
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	sum := sha512.Sum512(whole)
	return file, "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// bareHost has none of the programs that a fetch may use, and only the variables given.
func bareHost(variables map[string]string) *host {
	return &host{
		getenv:   func(name string) string { return variables[name] },
		lookPath: func(string) (string, error) { return "", exec.ErrNotFound },
		client:   &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}},
		connect:  10 * time.Second,
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

func edit(t *testing.T, file, from, to string) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(data), from)
	write(t, file, strings.Replace(string(data), from, to, 1))
}

// tamper is edit that keeps the file's time, so that nobody can tell by that.
func tamper(t *testing.T, file, from, to string) {
	t.Helper()
	info, err := os.Stat(file)
	require.NoError(t, err)
	edit(t, file, from, to)
	require.NoError(t, os.Chtimes(file, info.ModTime(), info.ModTime()))
}
