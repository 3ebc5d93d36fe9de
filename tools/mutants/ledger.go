package mutants

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Mark is which case caught a fault, on a route of how many hops, whose caches go back to any length or in mixed ways.
type Mark struct {
	Case  string `json:"case"`
	Hops  int    `json:"hops"`
	Mixed bool   `json:"mixed,omitempty"`
}

// kind is the kind of route that it was caught on.
func (m Mark) kind() kind { return kind{m.Hops, m.Mixed} }

// ledger is what is known from before: which case caught a fault last, to be tried first, and, where a run over the same
// sources was broken off, which faults need not be tried again. A ledger without paths keeps nothing.
type ledger struct {
	hints, state string // files

	mu      sync.Mutex
	known   map[string]Mark    // by name of the fault
	sources string             // hash of what the run is about
	done    map[string]Verdict // of this run
}

// kept is the state file.
type kept struct {
	Sources  string             `json:"sources"`
	Verdicts map[string]Verdict `json:"verdicts"`
}

// openLedger reads both files; one that is not there is empty.
func openLedger(space *workspace.Workspace, hints, state string) (*ledger, error) {
	l := &ledger{hints: hints, state: state, known: map[string]Mark{}, done: map[string]Verdict{}}
	if hints != "" {
		if err := readJSON(hints, &l.known); err != nil {
			return nil, err
		}
	}
	if state == "" {
		return l, nil
	}
	var err error
	if l.sources, err = sources(space); err != nil {
		return nil, err
	}
	var k kept
	if err := readJSON(state, &k); err != nil {
		return nil, err
	}
	if k.Sources == l.sources && k.Verdicts != nil {
		l.done = k.Verdicts
	}
	return l, nil
}

// hint is the case that caught a fault last; empty: not known.
func (l *ledger) hint(name string) Mark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[name]
}

// verdict is what this run already knows of a fault.
func (l *ledger) verdict(m Mutant) (Verdict, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.done[m.Name]
	v.Mutant = m
	return v, ok
}

// note keeps a verdict, at once.
func (l *ledger) note(v Verdict) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[v.Mutant.Name] = v
	if v.Case != "" {
		l.known[v.Mutant.Name] = v.Mark
	}
	if l.state == "" {
		return nil
	}
	return writeJSON(l.state, kept{l.sources, l.done})
}

// over ends a run that tried everything: the next one begins anew, with what this one learned of names that still exist. A
// run without a state tried some alone and writes nothing.
func (l *ledger) over(all []Mutant) error {
	if l.state == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	learned := map[string]Mark{}
	for _, m := range all {
		if mark, ok := l.known[m.Name]; ok {
			learned[m.Name] = mark
		}
	}
	var failed []error
	if l.hints != "" {
		failed = append(failed, writeJSON(l.hints, learned))
	}
	if err := os.Remove(l.state); !errors.Is(err, fs.ErrNotExist) {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// sources is a hash over all that a verdict depends on.
func sources(space *workspace.Workspace) (string, error) {
	h := sha256.New()
	for _, dir := range []string{"services/worker", "libs", "gen", "tools/conformance", "tools/mutants"} {
		err := filepath.WalkDir(space.Path(dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") && d.Name() != "go.sum" {
				return err
			}
			text, err := os.ReadFile(path)
			fmt.Fprintf(h, "%s %d\n", path, len(text))
			h.Write(text)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("read what the faults are seeded into: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w; remove it to begin anew", path, err)
	}
	return nil
}

// writeJSON replaces a file whole, so that a run that is broken off leaves the one before.
func writeJSON(path string, value any) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
