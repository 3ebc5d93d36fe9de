package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Mutant is one fault.
type Mutant struct {
	Name    string   // unique, as step.hash-not-compared
	Clauses []string // of contracts/SPEC.md that it breaks; cases that cite them are tried first
	File    string   // from the root, with slashes
	Old     string   // stands exactly once in File
	New     string
}

// All are all mutants, by what they break.
func All() []Mutant {
	var all []Mutant
	for _, group := range [][]Mutant{
		openMutants(), routeMutants(), attemptMutants(), strictMutants(), stepMutants(), samplingMutants(), fenceMutants(), flowMutants(), limitMutants(),
		runMutants(), timeMutants(), cacheMutants(), errorMutants(), chainMutants(), serviceMutants(), lossMutants(), outsideMutants(), detailMutants(), markMutants(), prefixMutants(), ringMutants(), hearsayMutants(),
	} {
		all = append(all, group...)
	}
	return all
}

// mutated is the file with the fault in it.
func (m Mutant) mutated(w *workspace.Workspace) ([]byte, error) {
	text, err := os.ReadFile(w.Path(filepath.FromSlash(m.File)))
	if err != nil {
		return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
	}
	if n := bytes.Count(text, []byte(m.Old)); n != 1 {
		return nil, fmt.Errorf("mutant %s: its text stands %d times in %s, once is due; seed the fault in what stands there now", m.Name, n, m.File)
	}
	return bytes.Replace(text, []byte(m.Old), []byte(m.New), 1), nil
}

// build makes a dgr-worker with the fault in folder dir and returns its path.
func (m Mutant) build(ctx context.Context, w *workspace.Workspace, dir string) (string, error) {
	text, err := m.mutated(w)
	if err != nil {
		return "", err
	}
	replaced, overlay, program := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "dgr-worker")
	if err := os.WriteFile(replaced, text, 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {w.Path(filepath.FromSlash(m.File)): replaced}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	if _, err := w.Output(ctx, "", []string{"CGO_ENABLED=0"}, "go", "build", "-p=2", "-ldflags=-s -w", "-overlay", overlay, "-o", program, "./services/worker/cmd/dgr-worker"); err != nil {
		return "", fmt.Errorf("mutant %s does not build: %w", m.Name, err)
	}
	return program, nil
}
