package conformance_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
)

// worker is the binary that the cases are run against.
var worker string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		panic(err)
	}
	worker = filepath.Join(dir, "dgr-worker")
	build := exec.Command("go", "build", "-o", worker, "github.com/distributed-gguf-runtime/dgr/services/worker/cmd/dgr-worker")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build dgr-worker: %v\n%s", err, out))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// notYet are clauses that no case proves yet, each with the reason. A clause that gets its case must leave the list.
var notYet = map[string]string{
	"ACC-1": "callers with and without rights are needed, which the worker's own tests have",
	"ACC-2": "rights must change meanwhile, as the worker's own tests make them",
	"ACC-3": "a worker that asks who calls is needed, as the worker's own tests have it",
}

var clause = regexp.MustCompile(`(?m)^- \*\*([A-Z]{3}-\d+)\*\* ((?:.|\n  )*)`)

// clauses are the clauses of SPEC.md with their texts.
func clauses(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../contracts/SPEC.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, m := range clause.FindAllStringSubmatch(string(text), -1) {
		if found[m[1]] != "" {
			t.Errorf("clause %s stands twice", m[1])
		}
		found[m[1]] = m[2]
	}
	if len(found) < 100 {
		t.Fatalf("%d clauses were found; has the form of SPEC.md changed?", len(found))
	}
	return found
}

func TestEveryClauseHasACase(t *testing.T) {
	t.Parallel()
	cited := map[string]bool{}
	for _, c := range conformance.Cases() {
		for _, id := range c.Clauses {
			cited[id] = true
		}
	}
	spec := clauses(t)
	for id := range cited {
		if spec[id] == "" {
			t.Errorf("a case cites %s, which is not in SPEC.md", id)
		}
	}
	for id, text := range spec {
		binds := strings.Contains(text, "MUST") && !strings.HasPrefix(text, "*(")
		_, excused := notYet[id]
		switch {
		case binds && !cited[id] && !excused:
			t.Errorf("no case proves %s: %s", id, text)
		case cited[id] && excused:
			t.Errorf("%s has a case now: take it off the list of those that have none", id)
		}
	}
}

func TestCasesAreNamedAndMany(t *testing.T) {
	t.Parallel()
	ids := conformance.IDs()
	if len(ids) < 250 {
		t.Errorf("%d cases", len(ids))
	}
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != len(conformance.IDs()) {
		t.Errorf("%d ids for %d cases", n, len(conformance.IDs()))
	}
	for _, c := range conformance.Cases() {
		if len(c.Clauses) == 0 || !strings.HasSuffix(c.Says, ".") || c.Run == nil {
			t.Errorf("%s: clauses %v, says %q", c.ID, c.Clauses, c.Says)
		}
	}
}

// start starts a worker with the fake engine and returns its address.
func start(t *testing.T, args ...string) string {
	t.Helper()
	return startLogged(t, &spoken{}, args...)
}

// startLogged is start for one whose log is read.
func startLogged(t *testing.T, log *spoken, args ...string) string {
	t.Helper()
	cmd := exec.Command(worker, append([]string{"--engine", "fake", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--announce",
		"--exit-with-stdin", "--log-level", "warn", "--chain-allow", "127.0.0.1:*", "--ring-advertise", "127.0.0.1:0"}, args...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the worker ended with %v\n%s", err, log.text.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	var announced struct {
		Address string `json:"address"`
		Admin   string `json:"admin"`
	}
	if err != nil || json.Unmarshal(line, &announced) != nil {
		t.Fatalf("the worker announced %q: %v\n%s", line, err, log.text.String())
	}
	admins.Store(announced.Address, announced.Admin)
	return announced.Address
}

// admins are the admin addresses of the workers that start started, by their own.
var admins sync.Map

// route is what is told of workers beside their addresses.
type route struct {
	peer  bool            // the first may dial a hop of ours
	store string          // what the first may load again
	fails bool            // the workers have the faults of conformance.FakeModel
	known map[string]bool // cases that are known to fail
	only  *regexp.Regexp  // nil: all cases
	log   func() ([]byte, error)
}

// targetAt is the workers as cases see them.
func targetAt(t *testing.T, r route, addresses ...string) *conformance.Target {
	t.Helper()
	conns := make([]*grpc.ClientConn, len(addresses))
	for i, address := range addresses {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conns[i] = conn
	}
	target, err := conformance.NewTarget(t.Context(), addresses, conns)
	if err != nil {
		t.Fatal(err)
	}
	target.Store, target.Log = r.store, r.log
	if r.fails {
		target.Faults = conformance.FakeFaults(len(addresses))
	}
	if r.peer {
		if target.Peer, err = conformance.Listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(target.Peer.Close)
	}
	return target
}

// conform runs all cases against workers and reports each that fails, or passes though it is known to fail.
func conform(t *testing.T, r route, addresses ...string) *conformance.Report {
	t.Helper()
	target := targetAt(t, r, addresses...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	report := conformance.Run(ctx, target, conformance.Options{Limit: 30 * time.Second, Known: r.known, Only: r.only})
	for _, o := range report.Outcomes {
		if v := report.Verdict(o); v == conformance.Failed || v == conformance.Surprise {
			t.Errorf("%s (%s)\n  %s\n  - %s", o.Case.ID, strings.Join(o.Case.Clauses, " "), o.Case.Says, strings.Join(o.Faults, "\n  - "))
		}
	}
	if r.only == nil && len(report.Outcomes) != len(conformance.Cases()) {
		t.Errorf("%d of %d cases ran", len(report.Outcomes), len(conformance.Cases()))
	}
	return report
}

func TestOneWorkerConforms(t *testing.T) {
	t.Parallel()
	model := conformance.FakeModel(0)
	report := conform(t, route{store: model, fails: true}, start(t, "--model", model))
	if n := report.Counts(); n[conformance.Passed] < 340 {
		t.Errorf("%v", n)
	}
}

// An idle bound that a case can wait for, caches that return to marks alone, and one that goes back only so far; slow enough for a
// cancel to come in time.
func TestWorkersOfOtherKindsConform(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--idle", "1s", "--ring-advertise", ""},
		{"--model", "fake:layers=6,truncate=none,marks=3,script=step slow 300us"},
		{"--model", "fake:layers=6,truncate=none,marks=1,script=step slow 300us"},
		{"--model", "fake:layers=6,truncate=window,window=16,marks=2,script=step slow 300us"},
		{"--model", "fake:layers=6,copy=whole,script=step slow 300us", "--kept-bytes", "0"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			conform(t, route{}, start(t, append([]string{"--model", "fake:layers=6"}, args...)...))
		})
	}
}

// Routes whose caches go back in different ways.
func TestRoutesOfMixedCachesConform(t *testing.T) {
	t.Parallel()
	for _, kinds := range [][3]string{
		{"truncate=none,marks=3", "truncate=none,marks=4", "truncate=none,marks=3"},
		{"truncate=window,window=8,marks=4", "truncate=any", "truncate=none,marks=2"},
		{"truncate=any", "truncate=window,window=4,marks=3", "truncate=any"},
	} {
		t.Run(strings.Join(kinds[:], " "), func(t *testing.T) {
			t.Parallel()
			var addresses []string
			for i, layers := range []string{"0:2", "2:4", "4:"} {
				addresses = append(addresses, start(t, "--model", "fake:layers=6,"+kinds[i], "--layers", layers))
			}
			conform(t, route{peer: true}, addresses...)
		})
	}
}

// Boundaries of 64 MiB, as great as a step of 512 tokens brings them, with nothing configured.
func TestGreatBoundariesConform(t *testing.T) {
	t.Parallel()
	const wide = "fake:layers=2,width=32768"
	only := regexp.MustCompile(`^(flow\.(greatest|window-(grows-in-bytes|holds)|buffered)|hub\.boundary$)`)
	report := conform(t, route{only: only}, start(t, "--model", wide, "--layers", "0:1"), start(t, "--model", wide, "--layers", "1:"))
	if n := report.Counts(); n[conformance.Passed] < 5 {
		t.Errorf("%v", n)
	}
}

// Answers that are larger than may wait to be sent.
func TestSmallAnswersConform(t *testing.T) {
	t.Parallel()
	report := conform(t, route{only: regexp.MustCompile(`^flow\.output-too-large$`)}, start(t, "--model", "fake:layers=6,vocab=8000", "--outgoing-bytes", "4MiB"))
	if n := report.Counts(); n[conformance.Passed] != 1 {
		t.Errorf("%v", n)
	}
}

// Limits that a case can reach.
func TestNarrowLimitsConform(t *testing.T) {
	t.Parallel()
	address := start(t, "--model", "fake:layers=6", "--principal-streams", "16", "--principal-sessions", "2", "--principal-requests", "200",
		"--principal-request-burst", "100", "--handshake", "500ms")
	report := conform(t, route{only: regexp.MustCompile(`^limits\.`)}, address)
	if n := report.Counts(); n[conformance.Skipped] > 0 {
		t.Errorf("%v", n)
	}
}

// spoken is what workers log; writers come from several goroutines.
type spoken struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *spoken) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *spoken) bytes() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.text.Bytes()), nil
}

// No key is in what workers say or, at their most talkative, log, on a route and alone.
func TestNothingToReplayIsToldOrLogged(t *testing.T) {
	t.Parallel()
	only := regexp.MustCompile(`^errors\.no-key$`)
	var log spoken
	alone := startLogged(t, &log, "--model", "fake:layers=6", "--log-level", "debug")
	conform(t, route{only: only, log: log.bytes}, alone)
	head := startLogged(t, &log, "--model", "fake:layers=6", "--layers", "0:3", "--log-level", "debug")
	tail := startLogged(t, &log, "--model", "fake:layers=6", "--layers", "3:", "--log-level", "debug")
	conform(t, route{only: only, log: log.bytes}, head, tail)
}

func TestRouteOfThreeConforms(t *testing.T) {
	t.Parallel()
	workers := []string{
		start(t, "--model", conformance.FakeModel(0), "--layers", "0:2"), start(t, "--model", conformance.FakeModel(1), "--layers", "2:4"),
		start(t, "--model", conformance.FakeModel(2), "--layers", "4:"),
	}
	report := conform(t, route{peer: true, store: conformance.FakeModel(0), fails: true}, workers...)
	met := map[string]bool{}
	metOf(t, met, workers...)
	missing, broken := unmet(met)
	for _, pair := range missing {
		if !chance(pair) {
			t.Errorf("no case brings a worker to %s", pair)
		}
	}
	if len(broken) > 0 {
		t.Errorf("what cannot happen happened: %v", broken)
	}
	t.Logf("%d of %d possible pairs of the lifecycle tables were met", len(possible())-len(missing), len(possible()))
	if n := report.Counts(); n[conformance.Skipped] > 26 { // limits and kinds of workers that other tests have, and grammars, which the fake has not
		t.Errorf("%v", n)
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	c := func(id string) conformance.Case {
		return conformance.Case{ID: id, Clauses: []string{"CAP-1"}, Says: "It is."}
	}
	r := &conformance.Report{Known: map[string]bool{"c": true, "d": true}, Outcomes: []conformance.Outcome{
		{Case: c("a")}, {Case: c("b"), Faults: []string{"one", "two"}}, {Case: c("c"), Faults: []string{"as ever"}}, {Case: c("d")}, {Case: c("e"), Skip: "why"},
	}}
	want := map[conformance.Verdict]int{conformance.Passed: 1, conformance.Failed: 1, conformance.KnownFailure: 1, conformance.Surprise: 1, conformance.Skipped: 1}
	for v, n := range want {
		if r.Counts()[v] != n {
			t.Errorf("%v", r.Counts())
		}
	}
	if r.OK() {
		t.Errorf("a report with a failure and an unexpected success is OK")
	}
	var asJSON, asXML bytes.Buffer
	if err := r.WriteJSON(&asJSON); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJUnit(&asXML); err != nil {
		t.Fatal(err)
	}
	var back struct {
		OK    bool
		Cases []struct{ ID, Verdict, Reason string }
	}
	if err := json.Unmarshal(asJSON.Bytes(), &back); err != nil || back.OK || len(back.Cases) != 5 || back.Cases[4].Reason != "why" {
		t.Errorf("JSON: %v, %+v", err, back)
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
	}
	if err := xml.Unmarshal(asXML.Bytes(), &suite); err != nil || suite.Tests != 5 || suite.Failures != 2 || suite.Skipped != 2 {
		t.Errorf("JUnit: %v, %+v", err, suite)
	}
}

func TestFaultsAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]conformance.Fault{
		"lost=5,6":   {Kind: conformance.FaultLost, Tokens: []uint32{5, 6}},
		"nan@2=7":    {Kind: conformance.FaultNaN, Hop: 2, Tokens: []uint32{7}},
		"memory@0=0": {Kind: conformance.FaultMemory, Tokens: []uint32{0}},
	} {
		if got, err := conformance.ParseFault(text); err != nil || got.Kind != want.Kind || got.Hop != want.Hop || !slices.Equal(got.Tokens, want.Tokens) {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "lost", "lost=", "lost=x", "lost@=5", "lost@-1=5", "gone=5", "lost=5,"} {
		if _, err := conformance.ParseFault(text); err == nil || !strings.Contains(err.Error(), "write") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
