package tablegen

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	upperName  = regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)
	lowerName  = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	camelName  = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	effectName = regexp.MustCompile(`^[a-z][a-z0-9]*(_[A-Za-z0-9]+)*$`)
)

func isUpperName(s string) bool  { return upperName.MatchString(s) }
func isLowerName(s string) bool  { return lowerName.MatchString(s) }
func isCamelName(s string) bool  { return camelName.MatchString(s) }
func isEffectName(s string) bool { return effectName.MatchString(s) }

// goName turns a name of a table (UPPER_CASE, snake_case, mixed_CASE, CamelCase) into CamelCase.
func goName(s string) string {
	if isCamelName(s) && strings.ToUpper(s) != s {
		return s
	}
	var b strings.Builder
	for word := range strings.SplitSeq(s, "_") {
		if word == "" {
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]) + strings.ToLower(word[1:]))
	}
	return b.String()
}

// decodeStrict reads one YAML document and refuses unknown keys.
func decodeStrict(data []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	return d.Decode(into)
}

// onlyKeys refuses a mapping with a key beside the given ones; a decoder's strictness does not reach into UnmarshalYAML.
func onlyKeys(node *yaml.Node, keys ...string) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: not a mapping", node.Line)
	}
	for i := 0; i < len(node.Content); i += 2 {
		if key := node.Content[i]; !slices.Contains(keys, key.Value) {
			return fmt.Errorf("line %d: unknown key %q; keys are %s", key.Line, key.Value, strings.Join(keys, ", "))
		}
	}
	return nil
}
