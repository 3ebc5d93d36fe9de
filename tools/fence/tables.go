package fence

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/tools/tablegen"
)

// Tables are the lifecycle tables that the models run on.
type Tables struct{ session, shard, step *lifecycle }

// lifecycle is a table with its names as numbers, as states hold them.
type lifecycle struct {
	*tablegen.Lifecycle
	rows map[pair]tablegen.Row
}

type pair struct{ state, event string }

// ReadTables reads and checks the tables of a folder like contracts/tables.
func ReadTables(dir string) (*Tables, error) {
	const taxonomyFile = "errors.v1.yaml"
	data, err := os.ReadFile(filepath.Join(dir, taxonomyFile))
	if err != nil {
		return nil, fmt.Errorf("read the error taxonomy: %w", err)
	}
	taxonomy, err := tablegen.ParseTaxonomy(taxonomyFile, data)
	if err != nil {
		return nil, err
	}
	var t Tables
	for name, to := range map[string]**lifecycle{"session": &t.session, "shard": &t.shard, "step": &t.step} {
		file := name + ".v1.yaml"
		if data, err = os.ReadFile(filepath.Join(dir, file)); err != nil {
			return nil, fmt.Errorf("read a lifecycle table: %w", err)
		}
		table, err := tablegen.ParseLifecycle(file, data, taxonomy)
		if err != nil {
			return nil, err
		}
		*to = index(table)
	}
	return &t, nil
}

func index(table *tablegen.Lifecycle) *lifecycle {
	l := &lifecycle{Lifecycle: table, rows: map[pair]tablegen.Row{}}
	for _, r := range table.Rows {
		l.rows[pair{r.State, r.Event}] = r
	}
	return l
}

// with is the table with one row changed.
func (l *lifecycle) with(state, event string, change func(*tablegen.Row)) *lifecycle {
	table := *l.Lifecycle
	table.Rows = slices.Clone(table.Rows)
	for i := range table.Rows {
		if r := &table.Rows[i]; r.State == state && r.Event == event {
			r.Effects = slices.Clone(r.Effects)
			change(r)
		}
	}
	return index(&table)
}

// number is a state as states of a model hold it; 0 is none.
func (l *lifecycle) number(state string) byte { return byte(slices.Index(l.States, state) + 1) }

// name is the state of a number; a thing that has none is in the initial state.
func (l *lifecycle) name(number byte) string {
	if number == 0 {
		return l.Initial
	}
	return l.States[number-1]
}
