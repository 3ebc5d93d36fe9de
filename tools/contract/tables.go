package contract

import (
	"errors"
	"fmt"
	"slices"

	"github.com/distributed-gguf-runtime/dgr/tools/tablegen"
)

// tables are those of one contract.
type tables struct {
	taxonomy   *tablegen.Taxonomy
	revisions  *tablegen.Revisions
	lifecycles []*tablegen.Lifecycle
}

func readTables(dir string) (t tables, err error) {
	t.taxonomy, t.revisions, t.lifecycles, err = tablegen.Read(dir, dir)
	return t, err
}

// keptBy finds what now says otherwise than t, which a caller of a frozen revision relies on: numbers and statuses of codes,
// and what an event does in a state. Effects, sentences and defaults of scope and recovery may change.
func (t tables) keptBy(now tables, revision int) error {
	var found []error
	for _, e := range t.taxonomy.Errors {
		i := slices.IndexFunc(now.taxonomy.Errors, func(n tablegen.ErrorLine) bool { return n.Code == e.Code })
		switch {
		case i < 0:
			found = append(found, fmt.Errorf("the code %s of revision %d is gone from the taxonomy", e.Code, revision))
		case now.taxonomy.Errors[i].Number != e.Number || now.taxonomy.Errors[i].GRPC != e.GRPC || now.taxonomy.Errors[i].Since != e.Since:
			n := now.taxonomy.Errors[i]
			found = append(found, fmt.Errorf("the code %s was number %d, %s, since %d in revision %d, and is number %d, %s, since %d", e.Code, e.Number, e.GRPC, e.Since, revision, n.Number, n.GRPC, n.Since))
		}
	}
	for _, l := range t.lifecycles {
		i := slices.IndexFunc(now.lifecycles, func(n *tablegen.Lifecycle) bool { return n.Table == l.Table })
		if i < 0 {
			found = append(found, fmt.Errorf("the table %s of revision %d is gone", l.Table, revision))
			continue
		}
		for _, row := range l.Rows {
			n, ok := now.lifecycles[i].Find(row.State, row.Event)
			switch {
			case row.Impossible != "": // nobody has met it
			case !ok:
				found = append(found, fmt.Errorf("%s: the row %v of revision %d is gone", l.Table, row, revision))
			case n.Next != row.Next || n.Error != row.Error:
				found = append(found, fmt.Errorf("%s: the row %v of revision %d is answered otherwise", l.Table, row, revision))
			}
		}
	}
	return errors.Join(found...)
}
