package enginecases

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

const printed = `{"Action":"run","Test":"TestEngine"}
{"Action":"run","Test":"TestEngine/any"}
{"Action":"run","Test":"TestEngine/any/target"}
{"Action":"pass","Test":"TestEngine/any/target"}
{"Action":"run","Test":"TestEngine/any/open"}
{"Action":"run","Test":"TestEngine/any/open/twice"}
{"Action":"pass","Test":"TestEngine/any/open/twice"}
{"Action":"run","Test":"TestEngine/any/open/parts"}
{"Action":"run","Test":"TestEngine/any/open/parts/1"}
{"Action":"pass","Test":"TestEngine/any/open/parts/1"}
{"Action":"run","Test":"TestEngine/any/open/parts/2"}
{"Action":"output","Test":"TestEngine/any/open/parts/2","Output":"    x.go:1: without slowness: it is quick\n"}
{"Action":"skip","Test":"TestEngine/any/open/parts/2"}
{"Action":"pass","Test":"TestEngine/any/open/parts"}
{"Action":"run","Test":"TestEngine/any/open/bare"}
{"Action":"output","Test":"TestEngine/any/open/bare","Output":"    x.go:1: not today\n"}
{"Action":"skip","Test":"TestEngine/any/open/bare"}
{"Action":"run","Test":"TestEngine/any/open/bad"}
{"Action":"fail","Test":"TestEngine/any/open/bad"}
{"Action":"fail","Test":"TestEngine/any/open"}
{"Action":"run","Test":"TestEngine/other/open/twice"}
`

func TestRead(t *testing.T) {
	r, err := Read(strings.NewReader(printed), "TestEngine/any")
	require.NoError(t, err)
	require.Equal(t, map[string]Case{
		"open/twice": {Outcome: Passed},
		"open/parts": {Outcome: Skipped, Ability: "slowness", Reason: "it is quick"},
		"open/bare":  {Outcome: Skipped, Reason: "x.go:1: not today"},
		"open/bad":   {Outcome: Failed},
	}, r.Cases)
	require.Equal(t, []string{"open/twice", "open/parts", "open/bare", "open/bad"}, r.Order)
	_, err = Read(strings.NewReader("ok  \tsome/package\n"), "TestEngine")
	require.Error(t, err)
}

func TestDifferences(t *testing.T) {
	bad, err := Read(strings.NewReader(printed), "TestEngine/any")
	require.NoError(t, err)
	bad.Engine = "bad"
	good := Report{Engine: "good", Cases: map[string]Case{"more/one": {Outcome: Passed}}, Order: []string{"more/one"}}
	for _, name := range bad.Order {
		good.Cases[name] = Case{Outcome: Passed}
		good.Order = append(good.Order, name)
	}
	require.Empty(t, Differences([]Report{good, good}))
	require.ElementsMatch(t, []string{
		"bad has no case more/one, and other engines have",
		"bad fails open/bad",
		`bad skips open/bare without naming the ability that it lacks: "x.go:1: not today"`,
		"silent ran no case at all",
	}, Differences([]Report{good, bad, {Engine: "silent"}}))
}

// What is looked at is there: each engine's package has its test.
func TestEveryEngineHasItsTest(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	for _, e := range append(Pure(), Native(nil)...) {
		test := strings.Split(e.Root, "/")[0]
		require.True(t, strings.HasPrefix(e.Test, "^"+test+"$"), e.Name)
		files, err := filepath.Glob(w.Path(e.Dir, strings.TrimPrefix(e.Pkg, "./"), "*_test.go"))
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(files, func(name string) bool {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			return strings.Contains(string(text), "\nfunc "+test+"(t *testing.T) {")
		}), "%s: no %s in %s", e.Name, test, e.Pkg)
	}
}
