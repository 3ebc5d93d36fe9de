package mutants

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

func open(t *testing.T) *workspace.Workspace {
	t.Helper()
	w, err := workspace.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestMutantsFitTheTree(t *testing.T) {
	t.Parallel()
	w := open(t)
	all := All()
	if len(all) < 60 {
		t.Errorf("%d mutants", len(all))
	}
	seen := map[string]bool{}
	for _, m := range all {
		if seen[m.Name] || m.Name == "" || len(m.Clauses) == 0 {
			t.Errorf("mutant %q stands twice, or has no name or clause", m.Name)
		}
		seen[m.Name] = true
		text, err := m.mutated(w)
		if err != nil {
			t.Error(err)
			continue
		}
		if m.Old == m.New || len(text) == 0 {
			t.Errorf("mutant %s changes nothing", m.Name)
		}
	}
}

func TestAMutantThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	w := open(t)
	for _, m := range []Mutant{
		{Name: "gone", File: checkOpen, Old: "no such text"},
		{Name: "twice", File: checkOpen, Old: "malformed("},
		{Name: "no-file", File: "services/worker/no-such.go", Old: "x"},
	} {
		if _, err := m.mutated(w); err == nil || !strings.Contains(err.Error(), m.Name) {
			t.Errorf("mutant %s: %v", m.Name, err)
		}
	}
}

// Three faults for real: one that a single worker shows, one that a route of three shows, one that is no Go.
func TestFaultsAreCaught(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var some []Mutant
	for _, m := range All() {
		if slices.Contains([]string{"attempt.same-again", "chain.token-of-any-index"}, m.Name) {
			some = append(some, m)
		}
	}
	some = append(some, Mutant{Name: "no-go", Clauses: []string{"OPN-4"}, File: checkOpen, Old: "package session", New: "package"})
	var told bytes.Buffer
	err := Prove(ctx, open(t), some, &told)
	if err == nil || !strings.Contains(err.Error(), "no-go does not build") {
		t.Errorf("the mutant that is no Go gave %v", err)
	}
	for _, want := range []string{"attempt.same-again: attempt.same (1)", "chain.token-of-any-index: peer.token-out-of-order (3)", "2 of 2 faults caught"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("%q is missing in\n%s", want, told.String())
		}
	}
}

func TestAnEscapeIsAFailure(t *testing.T) {
	t.Parallel()
	var told bytes.Buffer
	err := table(&told, []Verdict{{Mutant: Mutant{Name: "a"}, Case: "x.y", Hops: 3}, {Mutant: Mutant{Name: "b"}}})
	if err == nil || !strings.Contains(err.Error(), "no case catches b;") {
		t.Errorf("%v", err)
	}
	if text := told.String(); !strings.Contains(text, "x.y (3)") || !strings.Contains(text, escaped) || !strings.Contains(text, "1 of 2 faults caught") {
		t.Errorf("the table is\n%s", text)
	}
}
