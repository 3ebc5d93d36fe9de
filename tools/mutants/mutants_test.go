package mutants

import (
	"bytes"
	"context"
	"path/filepath"
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
	err := Proof{Space: open(t)}.Mutants(ctx, some, &told)
	if err == nil || !strings.Contains(err.Error(), "no-go does not build") {
		t.Errorf("the mutant that is no Go gave %v", err)
	}
	for _, want := range []string{"attempt.same-again: attempt.same (1)", "chain.token-of-any-index: peer.token-out-of-order (3)", "2 of 2 faults caught (100.0 %)"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("%q is missing in\n%s", want, told.String())
		}
	}
}

func TestAnEscapeIsAFailure(t *testing.T) {
	t.Parallel()
	var told bytes.Buffer
	err := table(&told, []Verdict{{Mutant: Mutant{Name: "a"}, Mark: Mark{Case: "x.y", Hops: 3}}, {Mutant: Mutant{Name: "b"}}})
	if err == nil || !strings.Contains(err.Error(), "no case catches b") {
		t.Errorf("%v", err)
	}
	if text := told.String(); !strings.Contains(text, "x.y (3)") || !strings.Contains(text, escaped) || !strings.Contains(text, "1 of 2 faults caught (50.0 %)") {
		t.Errorf("the table is\n%s", text)
	}
}

// A run that was broken off goes on where it was, over the same sources only; a whole one leaves its hints.
func TestARunIsGoneOnWith(t *testing.T) {
	t.Parallel()
	space := open(t)
	hints, state := filepath.Join(t.TempDir(), "caught.json"), filepath.Join(t.TempDir(), "state.json")
	openIt := func() *ledger {
		l, err := openLedger(space, hints, state)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := openIt()
	all := []Mutant{{Name: "a"}, {Name: "b"}}
	for _, v := range []Verdict{{Mutant: all[0], Mark: Mark{Case: "x.y", Hops: 3}}, {Mutant: all[1]}, {Mutant: Mutant{Name: "gone"}, Mark: Mark{Case: "z", Hops: 1}}} {
		if err := l.note(v); err != nil {
			t.Fatal(err)
		}
	}
	l = openIt()
	if v, ok := l.verdict(all[0]); !ok || v.Mark != (Mark{Case: "x.y", Hops: 3}) || v.Mutant.Name != "a" {
		t.Errorf("a is %+v, %v", v, ok)
	}
	l.sources = "others"
	if err := l.note(Verdict{Mutant: all[0], Mark: Mark{Case: "x.y", Hops: 3}}); err != nil {
		t.Fatal(err)
	}
	if _, ok := openIt().verdict(all[0]); ok {
		t.Error("what other sources gave is believed")
	}
	if err := l.over(all); err != nil {
		t.Fatal(err)
	}
	l = openIt()
	if _, ok := l.verdict(all[0]); ok || l.hint("a") != (Mark{Case: "x.y", Hops: 3}) || l.hint("b") != (Mark{}) || l.hint("gone") != (Mark{}) {
		t.Errorf("after the end: %+v, %+v", l.known, l.done)
	}
}
