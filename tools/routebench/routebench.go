// Package routebench measures one stream over workers on this machine beside the same llama.cpp unsplit, in turns within
// one run, and records everything that the figures depend on.
//
// It asserts nothing: figures are for people. It never runs as part of the tests.
package routebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/native/build"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
	"github.com/distributed-gguf-runtime/dgr/tools/programs"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Options say what to measure.
type Options struct {
	Model   string // GGUF file; empty: a random one of about 190 MB is written for the run
	Store   string // folder for that random model; empty: the system's folder for temporary files
	Workers int    // 1 to 32
	Threads int    // compute threads of llama.cpp and of each worker, ≥ 1
	Tokens  int    // tokens to decode in a turn, ≥ 16
	Rounds  int    // turns, ≥ 1
}

// Validate reports every fault at once.
func (o Options) Validate() error {
	var found []error
	check := func(ok bool, text string) {
		if !ok {
			found = append(found, errors.New(text))
		}
	}
	check(o.Workers >= 1 && o.Workers <= 32, "--workers must be 1 to 32")
	check(o.Threads >= 1, "--threads must be 1 or more")
	check(o.Tokens >= 16, "--tokens must be 16 or more, else there is too little to time")
	check(o.Rounds >= 1, "--rounds must be 1 or more")
	for _, path := range []string{o.Model, o.Store} {
		if path != "" {
			found = append(found, refuseHome(path))
		}
	}
	return errors.Join(found...)
}

// Report is one run. Rates are tokens a second.
type Report struct {
	When        time.Time   `json:"when"`
	Environment Environment `json:"environment"`
	Model       Artifact    `json:"model"`
	Workers     []Part      `json:"workers"`
	Threads     int         `json:"threads"`
	Rounds      []Round     `json:"rounds"`
	Unsplit     float64     `json:"unsplit_tokens_per_second"` // median over the rounds
	Route       float64     `json:"route_tokens_per_second"`   // median over the rounds
	Ratio       float64     `json:"ratio"`                     // median over the rounds of route to unsplit
	HopMS       float64     `json:"added_ms_per_hop_and_token"`
}

// Round is one turn of both.
type Round struct {
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       int     `json:"tokens"`
	Unsplit      float64 `json:"unsplit_tokens_per_second"`
	Route        float64 `json:"route_tokens_per_second"`
}

// ratio is how much of the unsplit speed the route keeps.
func (r Round) ratio() float64 { return r.Route / r.Unsplit }

// Run measures and returns the report. Progress goes to log.
func Run(ctx context.Context, w *workspace.Workspace, o Options, log io.Writer) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := programs.Build(ctx, w); err != nil {
		return nil, err
	}
	builder, err := build.New(build.Options{Report: func(line string) { fmt.Fprintln(log, line) }})
	if err != nil {
		return nil, err
	}
	native, err := builder.Build(ctx)
	if err != nil {
		return nil, err
	}
	program, ok := native.Bench()
	if !ok {
		return nil, errors.New("the native build has no dgr-native-bench; build it again: go tool mage native:build")
	}
	model, remove, err := o.model(ctx, log)
	if err != nil {
		return nil, err
	}
	defer remove()
	r := &Report{When: time.Now().UTC(), Threads: o.Threads}
	if r.Environment, err = look(ctx, w); err != nil {
		return nil, err
	}
	if r.Model, err = hash(model); err != nil {
		return nil, err
	}
	group, err := start(ctx, w, model, o)
	if err != nil {
		return nil, err
	}
	defer group.stop()
	r.Workers = group.Workers
	for i := range o.Rounds {
		round, err := group.turn(ctx, program, o)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		fmt.Fprintf(log, "round %d of %d: unsplit %.2f, route %.2f tokens/s, %.1f %%\n", i+1, o.Rounds, round.Unsplit, round.Route, 100*round.ratio())
		r.Rounds = append(r.Rounds, round)
	}
	r.sum()
	return r, nil
}

// model is the file to measure with, and what takes it away again.
func (o Options) model(ctx context.Context, log io.Writer) (path string, remove func(), err error) {
	if o.Model != "" {
		return o.Model, func() {}, nil
	}
	dir, remove, err := store(o.Store)
	if err != nil {
		return "", nil, err
	}
	spec, err := tiny.Default("llama")
	if err != nil {
		remove()
		return "", nil, err
	}
	spec.Layers, spec.Embd, spec.Heads, spec.KVHeads, spec.HeadLength = 16, 1024, 16, 8, 64
	spec.FF, spec.Vocab, spec.Context, spec.Type = 2816, 32000, 2048, gguf.Q8_0
	fmt.Fprintln(log, "writing a random model to measure with")
	paths, err := tiny.WriteWith(ctx, dir+"/random.gguf", spec, tiny.Options{})
	if err != nil {
		remove()
		return "", nil, err
	}
	return paths[0], remove, nil
}

// sum fills the medians.
func (r *Report) sum() {
	pick := func(of func(Round) float64) float64 {
		var all []float64
		for _, round := range r.Rounds {
			all = append(all, of(round))
		}
		return median(all)
	}
	r.Unsplit = pick(func(x Round) float64 { return x.Unsplit })
	r.Route = pick(func(x Round) float64 { return x.Route })
	r.Ratio = pick(Round.ratio)
	r.HopMS = 1000 * pick(func(x Round) float64 { return 1/x.Route - 1/x.Unsplit }) / float64(len(r.Workers))
}

// median of at least one value; of an even number the mean of the two in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Print is the report for a person.
func (r *Report) Print(out io.Writer) {
	fmt.Fprintf(out, "model    %s, %d bytes, SHA-256 %s\n", r.Model.Name, r.Model.Bytes, r.Model.SHA256)
	fmt.Fprintf(out, "machine  %s, %d cores, %s; llama.cpp tree %s\n", r.Environment.CPU, r.Environment.Cores, r.Environment.System, r.Environment.Pin)
	for i, part := range r.Workers {
		fmt.Fprintf(out, "hop %d    layers %s over loopback, %d threads\n", i, part.Layers, r.Threads)
	}
	fmt.Fprintf(out, "unsplit  %8.2f tokens/s\nroute    %8.2f tokens/s, %.1f %% of unsplit, %+.3f ms per hop and token (medians of %d rounds)\n",
		r.Unsplit, r.Route, 100*r.Ratio, r.HopMS, len(r.Rounds))
}
