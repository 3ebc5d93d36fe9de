package routebench

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const home = "/home"

func TestValidateReportsAll(t *testing.T) {
	good := Options{Workers: 2, Threads: 1, Tokens: 16, Rounds: 1}
	require.NoError(t, good.Validate())
	err := Options{Model: home + "/anna/m.gguf", Workers: 33, Tokens: 15}.Validate()
	for _, want := range []string{"--workers", "--threads", "--tokens", "--rounds", "is under /home"} {
		require.ErrorContains(t, err, want)
	}
}

func TestModelsUnderHomeAreRefused(t *testing.T) {
	for _, bad := range []string{home, home + "/anna/m.gguf", "/mnt/.." + home + "/anna/m.gguf"} {
		require.ErrorContains(t, refuseHome(bad), "is under /home: models of measured runs live in the model store", bad)
	}
	for _, good := range []string{"/mnt/models/m.gguf", "/homes/m.gguf", t.TempDir()} {
		require.NoError(t, refuseHome(good), good)
	}
	link := filepath.Join(t.TempDir(), "store")
	require.NoError(t, os.Symlink(home, link))
	require.Error(t, refuseHome(link), "a link that leads there")
	require.Error(t, refuseHome(filepath.Join(link, "new", "m.gguf")), "a file that is still to be made behind such a link")
}

func TestMediansAreOfRounds(t *testing.T) {
	r := Report{Workers: []Part{{}, {}}, Rounds: []Round{
		{Unsplit: 50, Route: 40}, {Unsplit: 100, Route: 50}, {Unsplit: 40, Route: 36},
	}}
	r.sum()
	require.Equal(t, 50.0, r.Unsplit)
	require.Equal(t, 40.0, r.Route)
	require.Equal(t, 0.8, r.Ratio)
	require.InDelta(t, 2.5, r.HopMS, 1e-9, "5 ms a token more, over two hops")
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
	var out bytes.Buffer
	r.Print(&out)
	require.Contains(t, out.String(), "80.0 % of unsplit")
}

func TestArtifactIsNamedByContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, os.WriteFile(path, []byte("abc"), 0o644))
	a, err := hash(path)
	require.NoError(t, err)
	require.Equal(t, Artifact{"m.gguf", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}, a)
}
