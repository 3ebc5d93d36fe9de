package tablegen

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Revisions is revisions.v1.yaml, and the younger codes of the taxonomy.
type Revisions struct {
	Version int        `yaml:"version"`
	Min     int        `yaml:"min"` // least revision that this code speaks, ≥ 1
	Max     int        `yaml:"max"` // greatest, ≥ min
	Added   []Addition `yaml:"added"`
}

// Addition is a field or an enum value that revision 1 does not have; exactly one of Field and Value is set.
type Addition struct {
	Field   string `yaml:"field"`   // from the package, as Step.priority
	Value   string `yaml:"value"`   // as FINISH_EVICTED
	Since   int    `yaml:"since"`   // revision that added it, ≥ 2
	Instead string `yaml:"instead"` // older value that callers of older revisions are told; with Value only

	line int
}

// Name is the element, from the package.
func (a Addition) Name() string { return a.Field + a.Value }

// UnmarshalYAML keeps the line, for messages, and refuses unknown keys.
func (a *Addition) UnmarshalYAML(node *yaml.Node) error {
	type plain Addition
	if err := onlyKeys(node, "field", "value", "since", "instead"); err != nil {
		return err
	}
	if err := node.Decode((*plain)(a)); err != nil {
		return err
	}
	a.line = node.Line
	return nil
}

// errorCode begins the values of the enum that the taxonomy keeps.
const errorCode = "ERROR_CODE_"

var fieldName = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*(\.[A-Z][A-Za-z0-9]*)*\.[a-z][a-z0-9_]*$`)

// ParseRevisions reads and checks revisions.v1.yaml; file is its name in messages. The younger codes of t are added.
func ParseRevisions(file string, data []byte, t *Taxonomy) (*Revisions, error) {
	var r Revisions
	if err := decodeStrict(data, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	f := faults{file: file}
	if r.Version != 1 {
		f.add(0, "version is %d; this generator reads version 1", r.Version)
	}
	if r.Min < 1 || r.Max < r.Min {
		f.add(0, "min is %d and max %d; 1 ≤ min ≤ max is due", r.Min, r.Max)
	}
	for _, a := range r.Added {
		checkAddition(&f, &r, a)
	}
	for _, e := range t.Errors {
		if e.Since > r.Max {
			f.add(0, "%s is since %d in %s, but max is %d", e.Code, e.Since, taxonomyFile, r.Max)
		}
		if e.Since > 1 {
			r.Added = append(r.Added, Addition{Value: errorCode + e.Code, Since: e.Since, Instead: errorCode + e.Instead})
		}
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	slices.SortFunc(r.Added, func(a, b Addition) int { return strings.Compare(a.Name(), b.Name()) })
	return &r, nil
}

func checkAddition(f *faults, r *Revisions, a Addition) {
	if (a.Field == "") == (a.Value == "") {
		f.add(a.line, "exactly one of field and value is due")
		return
	}
	if a.Since < 2 || a.Since > r.Max {
		f.add(a.line, "%s: since is %d; an addition is since 2 to %d", a.Name(), a.Since, r.Max)
	}
	if slices.IndexFunc(r.Added, func(b Addition) bool { return b.Name() == a.Name() && b.line < a.line }) >= 0 {
		f.add(a.line, "%s is listed twice", a.Name())
	}
	switch {
	case a.Field != "" && !fieldName.MatchString(a.Field):
		f.add(a.line, "field %q is no name like Step.priority", a.Field)
	case a.Field != "" && a.Instead != "":
		f.add(a.line, "%s is a field: older callers ignore it, there is no instead", a.Field)
	case strings.HasPrefix(a.Value, errorCode):
		f.add(a.line, "%s is an error code; its since and instead stand in %s", a.Value, taxonomyFile)
	case a.Value != "" && !isUpperName(a.Value):
		f.add(a.line, "value %q is no name in upper case", a.Value)
	case a.Value != "" && (!isUpperName(a.Instead) || !older(r, a)):
		f.add(a.line, "%s: instead is %q; it must be a value that callers of older revisions than %d know", a.Value, a.Instead, a.Since)
	}
}

// older says whether what stands for a is older than a.
func older(r *Revisions, a Addition) bool {
	i := slices.IndexFunc(r.Added, func(b Addition) bool { return b.Value == a.Instead })
	return i < 0 || r.Added[i].Since < a.Since
}
