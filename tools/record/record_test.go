package record

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// The project's own record is true.
func TestTheRecord(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	require.NoError(t, Verify(t.Context(), w))
}

const goodPRD = `{
  "project": "DGR", "description": "A record for the test.",
  "qualityGates": [{"id": "G1", "demands": "Tests pass.", "class": "default", "command": "go tool mage test"}],
  "userStories": [
    {
      "id": "DGR-001", "title": "The first", "origin": "given", "objective": "To be the first.", "milestone": "M1", "priority": "p0",
      "dependsOn": [], "evidenceClass": "model-free", "hardware": "none", "issue": ".scratch/distributed-gguf-runtime/issues/001-first.md",
      "acceptanceCriteria": ["It is there first.", "It stays there."], "passes": true,
      "evidence": ".scratch/distributed-gguf-runtime/evidence/DGR-001/README.md"
    },
    {
      "id": "DGR-002", "title": "The second", "origin": "defined here", "objective": "To be the second.", "milestone": "M1", "priority": "p1",
      "dependsOn": ["DGR-001"], "evidenceClass": "native", "hardware": "none", "issue": ".scratch/distributed-gguf-runtime/issues/002-second.md",
      "acceptanceCriteria": ["It comes behind."], "passes": false,
      "evidence": ".scratch/distributed-gguf-runtime/evidence/DGR-002/README.md"
    }
  ]
}`

const goodREADME = "# DGR-001: The first\n\n" +
	"## Claims\n\n1. proved: the test TestFirst\n   says so.\n2. proved: it was looked at again.\n\n" +
	"## Commands and results\n\n### `go tool mage test`\n\nResult: passed in 3 s\n\n```\n## ok\n```\n\n" +
	"## Changed files\n\n- `first.go`: it\n\n" +
	"## Environment\n\nGo 1.26.\n\n## Limitations\n\nNo third was tried.\n\n## Hand-off\n\n- DGR-002: can come behind.\n"

// world is a made-up repository.
type world struct {
	texts    map[string]string
	files    []string
	commands []string
}

func (w world) Text(name string) (string, error) {
	if text, ok := w.texts[name]; ok {
		return text, nil
	}
	return "", fmt.Errorf("open %s: no such file", name)
}

func (w world) Committed(name string) bool { return slices.Contains(w.files, name) }

func (w world) Command(line string) error {
	if slices.Contains(w.commands, line) {
		return nil
	}
	return errors.New("no command " + line)
}

const (
	readme1 = ".scratch/distributed-gguf-runtime/evidence/DGR-001/README.md"
	issue1  = ".scratch/distributed-gguf-runtime/issues/001-first.md"
)

func goodWorld() world {
	return world{
		texts: map[string]string{
			readme1: goodREADME,
			issue1:  "1. It is there\n   first.\n2. It stays there.\n",
			".scratch/distributed-gguf-runtime/issues/002-second.md": "1. It comes behind.\n",
		},
		files: []string{"first.go"}, commands: []string{"go tool mage test"},
	}
}

func TestAGoodRecordPasses(t *testing.T) {
	p, err := Parse([]byte(goodPRD))
	require.NoError(t, err)
	require.NoError(t, Check(p, goodWorld()))
}

func TestBrokenPRDs(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"no JSON":             {`"project"`, `project`, "parse as JSON"},
		"no project":          {`"project": "DGR", `, ``, "missing property 'project'"},
		"unknown key":         {`"project": "DGR"`, `"project": "DGR", "owner": "x"`, "additional properties 'owner' not allowed"},
		"passes is a word":    {`"passes": true`, `"passes": "yes"`, "/userStories/0/passes: got string, want boolean"},
		"bad id":              {`"id": "DGR-002"`, `"id": "DGR-2"`, "/userStories/1/id"},
		"unknown class":       {`"class": "default"`, `"class": "daily"`, "/qualityGates/0/class"},
		"no criterion":        {`["It comes behind."]`, `[]`, "/userStories/1/acceptanceCriteria: minItems"},
		"story twice":         {`"id": "DGR-002"`, `"id": "DGR-001"`, "story DGR-001 is there twice"},
		"unknown dependency":  {`["DGR-001"]`, `["DGR-009"]`, "DGR-002: depends on DGR-009, which is no story"},
		"circle":              {`"dependsOn": []`, `"dependsOn": ["DGR-002"]`, "DGR-001: depends on itself"},
		"evidence of another": {`evidence/DGR-002/`, `evidence/DGR-001/`, "DGR-002: evidence is"},
		"issue of another":    {`issues/002-`, `issues/003-`, "DGR-002: issue is"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(goodPRD, c.from, c.to, 1)
			require.NotEqual(t, goodPRD, text, "the case changes nothing")
			_, err := Parse([]byte(text))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestBrokenEvidence(t *testing.T) {
	for name, c := range map[string]struct{ from, to, want string }{
		"heading is missing":      {"## Limitations\n", "", "headings are"},
		"headings out of order":   {"## Claims", "## Claim", "headings are"},
		"claim out of form":       {"1. proved: the", "1. It works: the", "is no claim"},
		"criterion left out":      {"2. proved: it was looked at again.\n", "", "nothing is claimed of criterion 2"},
		"criterion not proved":    {"2. proved", "2. not proved", "criterion 2 is not proved, yet the story passes"},
		"criterion too many":      {"2. proved: it was", "2. proved: x\n3. proved: it was", "claims criterion 3; the story has 2"},
		"no file":                 {"- `first.go`: it\n", "", "names no changed file"},
		"file that is not there":  {"`first.go`", "`second.go`", "changed file second.go is not in the last commit"},
		"no command":              {"### `go tool mage test`\n", "", "names no command"},
		"command out of form":     {"### `go tool mage test`", "### tests", "is no command in backticks"},
		"command does not exist":  {"### `go tool mage test`", "### `go tool mage tset`", "no command go tool mage tset"},
		"no result":               {"Result: passed in 3 s\n", "", "has no result"},
		"no output":               {"## ok\n", "", "has no result"},
		"not run":                 {"Result: passed in 3 s", "Result: not run here", "not run here, yet the story passes"},
		"failed":                  {"Result: passed in 3 s", "Result: failed", "failed, yet the story passes"},
		"no environment":          {"Go 1.26.", "", "says nothing of the environment"},
		"no limitation":           {"No third was tried.", "", "names no limitation"},
		"nothing handed off":      {"- DGR-002: can come behind.\n", "", "hands nothing off to DGR-002"},
		"fence is not closed":     {"## ok\n```\n", "## ok\n", "a fence (```) is not closed"},
		"a heading inside output": {"## ok\n```\n", "## ok\n```\n\n## Notes\n", "headings are"},
	} {
		t.Run(name, func(t *testing.T) {
			w := goodWorld()
			w.texts[readme1] = strings.Replace(goodREADME, c.from, c.to, 1)
			require.NotEqual(t, goodREADME, w.texts[readme1], "the case changes nothing")
			p, err := Parse([]byte(goodPRD))
			require.NoError(t, err)
			err = Check(p, w)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "DGR-001: "+readme1)
		})
	}
}

func TestWhatEvidenceCannotMend(t *testing.T) {
	p, err := Parse([]byte(goodPRD))
	require.NoError(t, err)

	w := goodWorld()
	delete(w.texts, readme1)
	require.ErrorContains(t, Check(p, w), "DGR-001: passes without evidence")

	w = goodWorld()
	w.texts[issue1] = "1. It is there first.\n"
	require.ErrorContains(t, Check(p, w), "DGR-001: criterion 2 is not in "+issue1)

	w = goodWorld()
	delete(w.texts, issue1)
	require.ErrorContains(t, Check(p, w), "DGR-001: no specification")

	w = goodWorld()
	p.Gates[0].Command = "go tool mage tset"
	require.ErrorContains(t, Check(p, w), "gate G1: no command go tool mage tset")
}

// Evidence of a story that does not pass may be thin, but not untrue.
func TestUnfinishedEvidence(t *testing.T) {
	p, err := Parse([]byte(strings.Replace(goodPRD, `"passes": true`, `"passes": false`, 1)))
	require.NoError(t, err)
	w := goodWorld()
	w.texts[readme1] = strings.Replace(goodREADME, "2. proved", "2. not proved", 1)
	require.NoError(t, Check(p, w))
	w.texts[readme1] = strings.Replace(goodREADME, "`first.go`", "`second.go`", 1)
	require.ErrorContains(t, Check(p, w), "changed file second.go is not in the last commit")
}

// Commands are looked up in the repository itself.
func TestCommandsOfTheRepository(t *testing.T) {
	w, err := workspace.Open(".")
	require.NoError(t, err)
	targets, err := Targets(w)
	require.NoError(t, err)
	r := &repository{t.Context(), w, targets}
	for _, good := range []string{
		"go tool mage gen test", "go tool mage -v patch:verify", "go test -race ./tools/record", "CGO_ENABLED=0 go build ./tools/...", "gen-tables in out",
		".build/bin/gen-tables in out", "go -C tools test ./record/...",
	} {
		require.NoError(t, r.Command(good), good)
	}
	for bad, want := range map[string]string{
		"go tool mage tset":         "the magefile has no target tset",
		"go tool mage gen patch:it": "the magefile has no target patch:it",
		"go tool mage":              "names no target",
		"go test ./libs/nothing":    "there is no libs/nothing",
		"./scripts/run":             "there is no ./scripts/run",
		"dgr-nothing --now":         "neither installed nor a program of this repository",
		"A=b":                       "is empty",
	} {
		require.ErrorContains(t, r.Command(bad), want, bad)
	}
	require.True(t, r.Committed("go.work"))
	require.False(t, r.Committed("go.works"))
	require.False(t, r.Committed("tools"), "a folder is no exact file")
}
