package tablegen

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
)

// Taxonomy is errors.v1.yaml.
type Taxonomy struct {
	Version int         `yaml:"version"`
	Errors  []ErrorLine `yaml:"errors"`
}

// ErrorLine is one code of the taxonomy.
type ErrorLine struct {
	Code     string `yaml:"code"`     // without the prefix ERROR_CODE_
	Number   int    `yaml:"number"`   // of the enum, ≥ 1
	GRPC     string `yaml:"grpc"`     // name of the gRPC status, upper case
	Scope    string `yaml:"scope"`    // without the prefix ERROR_SCOPE_
	Recovery string `yaml:"recovery"` // without the prefix RECOVERY_
	Since    int    `yaml:"since"`    // revision that introduced it, ≥ 1
	Instead  string `yaml:"instead"`  // older code that a caller of an older revision is told; exactly where since is above 1
	Sentence string `yaml:"sentence"` // for a person; ends with a full stop

	line int
}

// UnmarshalYAML keeps the line, for messages, and refuses unknown keys.
func (e *ErrorLine) UnmarshalYAML(node *yaml.Node) error {
	type plain ErrorLine
	if err := onlyKeys(node, "code", "number", "grpc", "scope", "recovery", "since", "instead", "sentence"); err != nil {
		return err
	}
	if err := node.Decode((*plain)(e)); err != nil {
		return err
	}
	e.line = node.Line
	return nil
}

// Has says whether the taxonomy knows a code.
func (t *Taxonomy) Has(code string) bool {
	return slices.ContainsFunc(t.Errors, func(e ErrorLine) bool { return e.Code == code })
}

var (
	scopes     = []string{"STEP", "SESSION", "SHARD", "WORKER"}
	recoveries = []string{"NEVER", "FIX_REQUEST", "RETRY_SAME", "RETRY_OTHER", "RESYNC", "REPLAY"}
)

// ParseTaxonomy reads and checks errors.v1.yaml; file is its name in messages.
func ParseTaxonomy(file string, data []byte) (*Taxonomy, error) {
	var t Taxonomy
	if err := decodeStrict(data, &t); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	f := faults{file: file}
	if t.Version != 1 {
		f.add(0, "version is %d; this generator reads version 1", t.Version)
	}
	if len(t.Errors) == 0 {
		f.add(0, "errors is empty")
	}
	byCode, byNumber := map[string]int{}, map[int]string{}
	for _, e := range t.Errors {
		checkErrorLine(&f, e)
		if first, double := byCode[e.Code]; double {
			f.add(e.line, "code %s is already at line %d", e.Code, first)
		}
		if other, double := byNumber[e.Number]; double {
			f.add(e.line, "number %d of %s belongs to %s already", e.Number, e.Code, other)
		}
		byCode[e.Code], byNumber[e.Number] = e.line, e.Code
	}
	for _, e := range t.Errors {
		checkInstead(&f, &t, e)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	slices.SortFunc(t.Errors, func(a, b ErrorLine) int { return a.Number - b.Number })
	return &t, nil
}

func checkErrorLine(f *faults, e ErrorLine) {
	if !isUpperName(e.Code) {
		f.add(e.line, "code %q is no name in upper case", e.Code)
	}
	if e.Number < 1 {
		f.add(e.line, "%s: number is %d; numbers begin at 1", e.Code, e.Number)
	}
	if c, ok := grpcCode(e.GRPC); !ok || c == codes.OK {
		f.add(e.line, "%s: grpc %q is no gRPC status of an error", e.Code, e.GRPC)
	}
	if !slices.Contains(scopes, e.Scope) {
		f.add(e.line, "%s: scope %q is none of %s", e.Code, e.Scope, strings.Join(scopes, ", "))
	}
	if !slices.Contains(recoveries, e.Recovery) {
		f.add(e.line, "%s: recovery %q is none of %s", e.Code, e.Recovery, strings.Join(recoveries, ", "))
	}
	if e.Since < 1 {
		f.add(e.line, "%s: since is %d; revisions begin at 1", e.Code, e.Since)
	}
	if !strings.HasSuffix(e.Sentence, ".") {
		f.add(e.line, "%s: sentence %q does not end with a full stop", e.Code, e.Sentence)
	}
}

// checkInstead finds a younger code that older callers cannot be told.
func checkInstead(f *faults, t *Taxonomy, e ErrorLine) {
	i := slices.IndexFunc(t.Errors, func(other ErrorLine) bool { return other.Code == e.Instead })
	switch {
	case e.Since <= 1 && e.Instead != "":
		f.add(e.line, "%s: instead is %s, but every caller knows a code of revision 1", e.Code, e.Instead)
	case e.Since > 1 && (i < 0 || t.Errors[i].Since >= e.Since):
		f.add(e.line, "%s: instead is %q; it must be a code that callers of older revisions than %d know", e.Code, e.Instead, e.Since)
	}
}

// grpcCode reads the upper-case name of a gRPC status.
func grpcCode(name string) (codes.Code, bool) {
	var c codes.Code
	if err := c.UnmarshalJSON([]byte(`"` + name + `"`)); err != nil {
		return codes.OK, false
	}
	return c, true
}
