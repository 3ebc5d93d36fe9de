// Command dgr-conformance proves a worker of any make against the contract, from its endpoint alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errNotConform is the verdict, which the report has told already.
var errNotConform = errors.New("not conform")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := command(stdout, stderr)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNotConform):
		return 1
	case errors.As(err, &usage):
		fmt.Fprintln(stderr, "dgr-conformance: "+err.Error())
		return 2
	default:
		fmt.Fprintln(stderr, "dgr-conformance: "+err.Error())
		return 3
	}
}

// usageError is a wrong command line.
type usageError struct{ error }

type flags struct {
	target      []string
	list, json  bool
	only, junit string
	known, peer string
	load, log   string
	faults      []string
	limit       time.Duration
	files       dial.Files
}

func command(stdout, stderr io.Writer) *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "dgr-conformance --target HOST:PORT[,HOST:PORT…]",
		Short: "Prove a worker against the contract",
		Long: `Tries every clause of contracts/SPEC.md that can be seen from outside against a running worker, in any language.

--target names one worker that holds a whole model, or all workers of a route in order. The first is spoken to; each must
be allowed to dial the next, and the first to dial --peer, where this program plays a next hop. The worker must be otherwise idle: cases count sessions and credit. Nothing is loaded,
drained or unloaded, except with --load: then the first worker is, and is left loaded. No engine is made to fail, except with
--fault, which names tokens that a fake engine was told to fail at:
  dgr-worker --engine fake --model 'fake:script=step with 6,6 nan; step with 5,5 lost' …
  dgr-conformance --target … --fault nan=6,6 --fault lost=5,5

Exit codes: 0 conform, 1 a case failed, or a known failure passed, 2 wrong command line, 3 the target cannot be tried.`,
		Example: `  dgr-conformance --target 127.0.0.1:7711
  dgr-conformance --target 127.0.0.1:7711,127.0.0.1:7721 --junit report.xml
  dgr-conformance --target 127.0.0.1:7711 --run '^fence\.' --json
  dgr-conformance --target 10.0.0.1:7711 --tls-ca fleet.pem --tls-cert me.pem --tls-key me.key --peer 10.0.0.9:7799
  dgr-conformance --list`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return conform(cmd.Context(), f, stdout, stderr) },
	}
	c.SetOut(stdout)
	c.SetErr(stderr)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.Flags().StringSliceVar(&f.target, "target", nil, "workers, HOST:PORT apart by commas, in the order of their layers")
	c.Flags().BoolVar(&f.list, "list", false, "list the cases and the clauses that they prove")
	c.Flags().BoolVar(&f.json, "json", false, "print one JSON object instead of lines")
	c.Flags().StringVar(&f.only, "run", "", "run only cases whose id matches this regular expression")
	c.Flags().StringVar(&f.junit, "junit", "", "write a JUnit report to this file too")
	c.Flags().StringVar(&f.known, "known", "", "file of case ids, one a line, that are known to fail: they run, and must fail")
	c.Flags().StringVar(&f.peer, "peer", "127.0.0.1:0", "where to listen as a next hop that the first worker may dial; empty: nowhere")
	c.Flags().StringVar(&f.load, "load", "", "drain, unload and load the first worker too: the name by which LoadShard finds the model that it holds")
	c.Flags().StringVar(&f.log, "log", "", "file that the first worker logs to, at debug: it is searched for keys too")
	c.Flags().StringArrayVar(&f.faults, "fault", nil, "tokens that, in a row in one step, make an engine fail, KIND=TOKENS or KIND@HOP=TOKENS: lost, memory, nan or poison. Repeat it for more")
	c.Flags().DurationVar(&f.limit, "limit", time.Minute, "longest time of one case")
	c.Flags().StringVar(&f.files.CA, "tls-ca", "", "CA of the workers, PEM; they are dialled over TLS then")
	c.Flags().StringVar(&f.files.Cert, "tls-cert", "", "own certificate, PEM: shown to workers, and by --peer to the first; may infer, chain, text, observe and admin")
	c.Flags().StringVar(&f.files.Key, "tls-key", "", "its key, PEM")
	c.Flags().StringVar(&f.files.Token, "token-file", "", "file with the bearer token that workers ask for; sent over TLS only")
	return c
}

func conform(ctx context.Context, f flags, stdout, stderr io.Writer) error {
	if f.list {
		return list(f, stdout)
	}
	if len(f.target) == 0 {
		return usageError{errors.New("name the worker with --target HOST:PORT; --help shows how")}
	}
	options, err := optionsOf(f)
	if err != nil {
		return err
	}
	secured := dial.Default()
	secured.MessageBytes = 64 << 20
	if err := f.files.Secure(&secured, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		return usageError{err}
	}
	conns := make([]*grpc.ClientConn, len(f.target))
	for i, address := range f.target {
		conn, err := dial.Open(address, secured)
		if err != nil {
			return usageError{fmt.Errorf("the target %q: %w", address, err)}
		}
		defer conn.Close()
		conns[i] = conn.ClientConn
	}
	first, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	target, err := conformance.NewTarget(first, f.target, conns)
	if err != nil {
		return err
	}
	target.Store = f.load
	if f.log != "" {
		target.Log = func() ([]byte, error) { return os.ReadFile(f.log) }
	}
	for _, text := range f.faults {
		fault, err := conformance.ParseFault(text)
		if err != nil {
			return usageError{fmt.Errorf("--fault: %w", err)}
		}
		target.Faults = append(target.Faults, fault)
	}
	if target.Shown, err = shown(f); err != nil {
		return err
	}
	if f.peer != "" {
		if target.Peer, err = listen(f); err != nil {
			return err
		}
		defer target.Peer.Close()
	}
	if !f.json {
		options.Each = func(o conformance.Outcome) { line(stdout, o) }
	}
	report := conformance.Run(ctx, target, options)
	return tell(f, report, stdout, stderr)
}

// shown is the token that this program shows to workers, if any.
func shown(f flags) (map[string]string, error) {
	if f.files.Token == "" {
		return nil, nil
	}
	token, err := os.ReadFile(f.files.Token)
	if err != nil {
		return nil, usageError{fmt.Errorf("--token-file: %w", err)}
	}
	return map[string]string{"authorization": strings.TrimSpace(string(token))}, nil
}

// listen starts the next hop that this program plays; it has TLS if there is a certificate for it.
func listen(f flags) (*conformance.Peer, error) {
	if f.files.Cert == "" {
		return conformance.Listen(f.peer)
	}
	security, err := conformance.Secured(f.files.Cert, f.files.Key)
	if err != nil {
		return nil, usageError{fmt.Errorf("--tls-cert: %w", err)}
	}
	return conformance.Listen(f.peer, security)
}

func optionsOf(f flags) (conformance.Options, error) {
	o := conformance.Options{Limit: f.limit, Known: map[string]bool{}}
	if f.only != "" {
		only, err := regexp.Compile(f.only)
		if err != nil {
			return o, usageError{fmt.Errorf("--run: %w", err)}
		}
		o.Only = only
	}
	if f.known == "" {
		return o, nil
	}
	text, err := os.ReadFile(f.known)
	if err != nil {
		return o, usageError{fmt.Errorf("--known: %w", err)}
	}
	ids := conformance.IDs()
	for row := range strings.Lines(string(text)) {
		id := strings.TrimSpace(row)
		if id == "" || strings.HasPrefix(id, "#") {
			continue
		}
		if !slices.Contains(ids, id) {
			return o, usageError{fmt.Errorf("--known: there is no case %q; --list names all", id)}
		}
		o.Known[id] = true
	}
	return o, nil
}

// line tells of one outcome.
func line(w io.Writer, o conformance.Outcome) {
	switch {
	case o.Skip != "":
		fmt.Fprintf(w, "skip  %-48s %s\n", o.Case.ID, o.Skip)
	case len(o.Faults) == 0:
		fmt.Fprintf(w, "ok    %-48s %s\n", o.Case.ID, strings.Join(o.Case.Clauses, " "))
	default:
		fmt.Fprintf(w, "FAIL  %-48s %s\n      %s\n", o.Case.ID, strings.Join(o.Case.Clauses, " "), o.Case.Says)
		for _, fault := range o.Faults {
			fmt.Fprintf(w, "      - %s\n", strings.ReplaceAll(fault, "\n", "\n        "))
		}
	}
}

// tell writes the reports and gives the verdict.
func tell(f flags, r *conformance.Report, stdout, stderr io.Writer) error {
	if f.junit != "" {
		file, err := os.Create(f.junit)
		if err != nil {
			return usageError{fmt.Errorf("--junit: %w", err)}
		}
		if err := errors.Join(r.WriteJUnit(file), file.Close()); err != nil {
			return fmt.Errorf("write %s: %w", f.junit, err)
		}
	}
	if f.json {
		if err := r.WriteJSON(stdout); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	} else {
		n := r.Counts()
		fmt.Fprintf(stdout, "\n%d passed, %d failed, %d known failures, %d unexpected successes, %d skipped\n",
			n[conformance.Passed], n[conformance.Failed], n[conformance.KnownFailure], n[conformance.Surprise], n[conformance.Skipped])
	}
	if len(r.Outcomes) == 0 {
		return usageError{errors.New("no case matches --run; --list names all")}
	}
	if !r.OK() {
		return errNotConform
	}
	return nil
}

func list(f flags, w io.Writer) error {
	cases := conformance.Cases()
	if f.json {
		type entry struct {
			ID      string   `json:"id"`
			Clauses []string `json:"clauses"`
			Says    string   `json:"says"`
		}
		entries := make([]entry, len(cases))
		for i, c := range cases {
			entries[i] = entry{c.ID, c.Clauses, c.Says}
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(entries)
	}
	for _, c := range cases {
		fmt.Fprintf(w, "%-56s %-24s %s\n", c.ID, strings.Join(c.Clauses, " "), c.Says)
	}
	fmt.Fprintf(w, "\n%d cases\n", len(cases))
	return nil
}
