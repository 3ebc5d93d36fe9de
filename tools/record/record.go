// Package record reads the project's record, prd.json and the evidence beside it, and finds what it claims without proof.
//
// It judges the form of evidence and whether what it names exists. Whether a proof is convincing is for a reader.
package record

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// File is the record, from the root.
const File = "prd.json"

//go:embed prd.schema.json
var schema []byte

// PRD is prd.json.
type PRD struct {
	Project     string  `json:"project"`
	Description string  `json:"description"`
	Gates       []Gate  `json:"qualityGates"`
	Stories     []Story `json:"userStories"`
}

// Class says where a gate is run.
type Class string

// The classes.
const (
	Default Class = "default" // everywhere
	Native  Class = "native"  // where a C++ compiler is
	OptIn   Class = "opt-in"  // by hand
)

// Gate is a demand on every change and the command that checks it.
type Gate struct {
	ID      string `json:"id"`
	Demands string `json:"demands"`
	Class   Class  `json:"class"`
	Command string `json:"command"`
}

// Story is one user story.
type Story struct {
	ID            string   `json:"id"` // as `DGR-022`
	Title         string   `json:"title"`
	Origin        string   `json:"origin"` // `given`, or `defined here`
	Objective     string   `json:"objective"`
	Milestone     string   `json:"milestone"`
	Priority      string   `json:"priority"`
	DependsOn     []string `json:"dependsOn"`
	EvidenceClass string   `json:"evidenceClass"`
	Hardware      string   `json:"hardware"`
	Issue         string   `json:"issue"` // specification, from the root
	Criteria      []string `json:"acceptanceCriteria"`
	Passes        bool     `json:"passes"`
	Evidence      string   `json:"evidence"` // README, from the root
}

// Dependents are the stories that depend on id, in order.
func (p *PRD) Dependents(id string) []string {
	var ids []string
	for _, s := range p.Stories {
		if slices.Contains(s.DependsOn, id) {
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// Read parses prd.json and holds it to its schema and to itself.
func Read(w *workspace.Workspace) (*PRD, error) {
	data, err := os.ReadFile(w.Path(File))
	if err != nil {
		return nil, fmt.Errorf("read the record: %w", err)
	}
	return Parse(data)
}

// Parse is Read for a text.
func Parse(data []byte) (*PRD, error) {
	if err := validate(data); err != nil {
		return nil, fmt.Errorf("%s does not fit tools/record/prd.schema.json:\n%w", File, err)
	}
	var p PRD
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("parse %s: %w", File, err)
	}
	return &p, p.consistent()
}

func validate(data []byte) error {
	rules, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return fmt.Errorf("parse the schema: %w", err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("prd.schema.json", rules); err != nil {
		return fmt.Errorf("load the schema: %w", err)
	}
	compiled, err := c.Compile("prd.schema.json")
	if err != nil {
		return fmt.Errorf("compile the schema: %w", err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("parse as JSON: %w", err)
	}
	var invalid *jsonschema.ValidationError
	if err := compiled.Validate(value); errors.As(err, &invalid) {
		return errors.New(strings.Join(leaves(invalid), "\n"))
	} else if err != nil {
		return err
	}
	return nil
}

// leaves are the causes at the bottom of a fault, one line each, with their place in the document.
func leaves(e *jsonschema.ValidationError) []string {
	if len(e.Causes) == 0 {
		text := e.ErrorKind.LocalizedString(message.NewPrinter(language.English))
		return []string{"/" + strings.Join(e.InstanceLocation, "/") + ": " + text}
	}
	var lines []string
	for _, cause := range e.Causes {
		lines = append(lines, leaves(cause)...)
	}
	return lines
}

// consistent finds what a schema cannot say: doubles, unknown dependencies, circles, and files called after other stories.
func (p *PRD) consistent() error {
	var found []error
	add := func(format string, args ...any) { found = append(found, fmt.Errorf(format, args...)) }
	gates, stories := map[string]bool{}, map[string]Story{}
	for _, g := range p.Gates {
		if gates[g.ID] {
			add("%s: gate %s is there twice", File, g.ID)
		}
		gates[g.ID] = true
	}
	for _, s := range p.Stories {
		if _, double := stories[s.ID]; double {
			add("%s: story %s is there twice", File, s.ID)
		}
		stories[s.ID] = s
		if !strings.Contains(s.Evidence, "/"+s.ID+"/") {
			add("%s: evidence is %s, the folder of another story", s.ID, s.Evidence)
		}
		if !strings.Contains(s.Issue, "/"+strings.TrimPrefix(s.ID, "DGR-")+"-") {
			add("%s: issue is %s, the specification of another story", s.ID, s.Issue)
		}
	}
	for _, s := range p.Stories {
		for _, d := range s.DependsOn {
			if _, known := stories[d]; !known {
				add("%s: depends on %s, which is no story", s.ID, d)
			}
		}
		if reaches(stories, s.ID, s.ID, map[string]bool{}) {
			add("%s: depends on itself by way of others", s.ID)
		}
	}
	return errors.Join(found...)
}

// reaches says whether following dependencies from one story comes to another.
func reaches(stories map[string]Story, from, to string, seen map[string]bool) bool {
	for _, d := range stories[from].DependsOn {
		if d == to {
			return true
		}
		if !seen[d] {
			seen[d] = true
			if reaches(stories, d, to, seen) {
				return true
			}
		}
	}
	return false
}
