package fence

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func contractTables(t *testing.T) *Tables {
	t.Helper()
	tables, err := ReadTables(filepath.Join("..", "..", "contracts", "tables"))
	require.NoError(t, err)
	return tables
}

// The rules hold in the small scenarios, and without each of them there is a counterexample.
func TestSmallCases(t *testing.T) {
	for _, c := range Cases(contractTables(t)) {
		if c.Large {
			continue
		}
		t.Run(c.Set+"/"+c.Name, func(t *testing.T) {
			v := c.Run(Bounds{States: 200_000})
			if err := c.Judge(v); err != nil {
				t.Fatalf("%v\n%v", err, v.Trace)
			}
			require.False(t, v.Bounded, "the search did not finish; a scenario for mage test must be smaller")
			t.Logf("%d states, %d at rest, depth %d: %s\n%v", v.States, v.AtRest, v.Depth, v.Broken, v.Trace)
		})
	}
}

// A counterexample is the same each time.
func TestCounterexamplesAreStable(t *testing.T) {
	tables := contractTables(t)
	compared := 0
	for _, c := range ablateCases(tables) {
		if v := c.Run(Bounds{States: 3000}); v.Broken != "" {
			compared++
			require.Equal(t, v, c.Run(Bounds{States: 3000}), c.Name)
		}
	}
	require.Greater(t, compared, 5)
}

// The worker's scenarios are led as the counterexamples say.
func TestScenariosOfTheWorker(t *testing.T) {
	folder := filepath.Join("..", "..", "services", "worker", "internal", "session", "testdata")
	var want []string
	for _, s := range Scenarios(Cases(contractTables(t))) { // a case without counterexample gives other commands
		want = append(want, filepath.Join(folder, s.Name))
		text, err := os.ReadFile(filepath.Join(folder, s.Name))
		require.NoError(t, err)
		require.Equal(t, Commands(s.Text), Commands(string(text)),
			"run fence-proof --write services/worker/internal/session/testdata, then go test ./internal/session -run Scenarios -rewrite in services/worker")
	}
	there, err := filepath.Glob(filepath.Join(folder, "fence-*.txt"))
	require.NoError(t, err)
	require.ElementsMatch(t, want, there)
	require.Greater(t, len(want), 5)
}

// counting is a system of the numbers up to 9; 7 is wrong if it must be.
type counting struct{ wrong bool }

func (counting) first() int             { return 0 }
func (counting) key(n int) string       { return string(rune('0' + n)) }
func (counting) wrongAtRest(int) string { return "" }

func (c counting) broken(n int) string {
	if c.wrong && n == 7 {
		return "seven"
	}
	return ""
}

func (counting) moves(n int) []move[int] {
	name := func() string { return "more" }
	return slices.DeleteFunc([]move[int]{{name, n + 1}, {name, n + 3}}, func(m move[int]) bool { return m.to > 9 })
}

// A search finds the shortest way, and says when a bound ended it.
func TestSearch(t *testing.T) {
	require.Equal(t, Verdict{States: 10, AtRest: 1, Depth: 4}, search[int](counting{}, Bounds{}))
	v := search[int](counting{wrong: true}, Bounds{})
	require.Equal(t, "seven", v.Broken)
	require.Len(t, v.Trace, 3)
	require.True(t, search[int](counting{}, Bounds{States: 4}).Bounded)
	v = search[int](counting{wrong: true}, Bounds{Depth: 2})
	require.True(t, v.Bounded)
	require.Empty(t, v.Broken)
}

// What tidying leaves is what the whole search finds, tidied: nothing is lost, and nothing is made up.
func TestTidyLosesNothing(t *testing.T) {
	tables := contractTables(t)
	for name, sc := range map[string]openScenario{
		"a newer attempt":              {start: [hops]int8{2, 3, 2}, attempts: 2, steps: 1},
		"a broken link while it opens": {start: [hops]int8{4, 4, 2}, attempts: 2, breaks: 1},
		"broken links":                 {start: [hops]int8{3, 1, 5}, attempts: 1, breaks: 2, steps: 1},
		"a lost engine":                {start: [hops]int8{2, 3, 2}, attempts: 1, losses: 1, breaks: 1, steps: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tidied := &opening{openRules: openRules{held: true, rest: true, newer: true}, openScenario: sc, table: tables.session}
			whole := *tidied
			whole.whole = true
			want, got := map[string]bool{}, map[string]bool{}
			for _, s := range reached(&whole) {
				tidied.tidy(s)
				want[tidied.key(s)] = true
			}
			for _, s := range reached(tidied) {
				got[tidied.key(s)] = true
			}
			require.Equal(t, len(want), len(got))
			require.Equal(t, want, got)
			t.Logf("%d states", len(got))
		})
	}
}

// reached are all states of a model.
func reached(m *opening) []*openState {
	first := m.first()
	seen, all := map[string]bool{m.key(first): true}, []*openState{first}
	for at := 0; at < len(all); at++ {
		for _, to := range m.moves(all[at]) {
			if key := m.key(to.to); !seen[key] {
				seen[key] = true
				all = append(all, to.to)
			}
		}
	}
	return all
}
