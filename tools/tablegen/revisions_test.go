package tablegen

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const goodRevisions = `version: 1
min: 1
max: 3
added:
  - {field: Step.priority, since: 2}
  - {value: FINISH_EVICTED, since: 2, instead: FINISH_CANCELLED}
  - {value: FINISH_LOST, since: 3, instead: FINISH_EVICTED}
`

func parseRevisions(t *testing.T, text, taxonomy string) (*Revisions, error) {
	t.Helper()
	codes, err := ParseTaxonomy("errors.v1.yaml", []byte(taxonomy))
	require.NoError(t, err)
	return ParseRevisions("revisions.v1.yaml", []byte(text), codes)
}

func TestRevisionsHoldTheYoungerCodes(t *testing.T) {
	r, err := parseRevisions(t, goodRevisions, strings.Replace(goodTaxonomy, "recovery: REPLAY, since: 1", "recovery: REPLAY, since: 3, instead: MALFORMED", 1))
	require.NoError(t, err)
	var names []string
	for _, a := range r.Added {
		names = append(names, a.Name())
	}
	require.Equal(t, []string{"ERROR_CODE_INTERNAL", "FINISH_EVICTED", "FINISH_LOST", "Step.priority"}, names)
	require.Equal(t, "ERROR_CODE_MALFORMED", r.Added[0].Instead)
}

func TestRevisionFaultsNameTheirLine(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"unknown key":       {"since: 2}", "since: 2, colour: red}", `line 5: unknown key "colour"`},
		"another version":   {"version: 1", "version: 2", "version is 2"},
		"least of none":     {"min: 1", "min: 0", "min is 0 and max 3"},
		"greatest below":    {"min: 1", "min: 4", "min is 4 and max 3"},
		"field and value":   {"{field: Step.priority,", "{field: Step.priority, value: X,", "revisions.v1.yaml:5: exactly one"},
		"neither":           {"{field: Step.priority, ", "{", "revisions.v1.yaml:5: exactly one"},
		"of the first":      {"priority, since: 2", "priority, since: 1", "Step.priority: since is 1"},
		"of the future":     {"priority, since: 2", "priority, since: 4", "Step.priority: since is 4"},
		"no field's name":   {"Step.priority", "priority", `field "priority"`},
		"field with older":  {"priority, since: 2", "priority, since: 2, instead: X", "Step.priority is a field"},
		"no value's name":   {"value: FINISH_EVICTED", "value: evicted", `value "evicted"`},
		"value alone":       {", instead: FINISH_CANCELLED", "", `FINISH_EVICTED: instead is ""`},
		"younger for older": {"since: 2, instead: FINISH_CANCELLED", "since: 2, instead: FINISH_LOST", `FINISH_EVICTED: instead is "FINISH_LOST"`},
		"code":              {"value: FINISH_EVICTED", "value: ERROR_CODE_X", "ERROR_CODE_X is an error code"},
		"twice":             {"value: FINISH_LOST, since: 3, instead: FINISH_EVICTED", "value: FINISH_EVICTED, since: 3, instead: FINISH_CANCELLED", "FINISH_EVICTED is listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(goodRevisions, c.from, c.to, 1)
			require.NotEqual(t, goodRevisions, text, "the case changes nothing")
			_, err := parseRevisions(t, text, goodTaxonomy)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := parseRevisions(t, goodRevisions, strings.Replace(goodTaxonomy, "recovery: REPLAY, since: 1", "recovery: REPLAY, since: 4, instead: MALFORMED", 1))
	require.ErrorContains(t, err, "INTERNAL is since 4 in errors.v1.yaml, but max is 3")
}
