// Package up is `dgr up`: workers of one model on this machine, for trying. It starts the worker program once for each
// part, on free loopback ports, and ends all of them together: with a signal, when one of them dies, or when this process
// is gone, however it went.
//
// What must stay out: what a worker does, and anything on other machines.
package up

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/layers"
)

// stopping bounds how long a worker may take to end when it is asked to.
const stopping = 5 * time.Second

// Options say what to start.
type Options struct {
	Model    string // path of a GGUF or any of its parts; `fake` or `fake:…` with the fake engine
	Engine   string // as the worker knows it; empty: llama, or fake for a fake model
	Workers  uint32 // 1 to 32
	Layers   []engine.LayerRange
	Binary   string   // worker program; empty: beside this one or in $PATH
	Context  uint32   // longest context of a session, tokens; 0: the worker's default
	Sessions uint32   // at once; 0: the worker's default
	Threads  uint32   // of each worker; 0: the cores of this machine divided among them
	Extra    []string // further flags of each worker
	Patience time.Duration
	// Progress is told how far the identification of the model is, bytes; nil: nobody listens.
	Progress func(done, total uint64)
	// Loading is told now and then how far a worker's load is, from any goroutine; total 0 is unknown; nil: nobody listens.
	Loading func(part engine.LayerRange, phase string, done, total uint64)
	// Log gets every line of a worker's standard error, from any goroutine; nil: nobody listens.
	Log func(part engine.LayerRange, line string)
}

// Default is two workers.
func Default() Options { return Options{Workers: 2, Patience: 10 * time.Minute} }

// Group is running workers that together hold a model.
type Group struct {
	Workers []Worker // in the order of their layers
	Model   string   // architecture
	Path    string   // as it was given

	children []*child
	dead     chan *child // the first that ended without being asked to
}

// Route is the workers' addresses, in order.
func (g *Group) Route() []string {
	var route []string
	for _, w := range g.Workers {
		route = append(route, w.Address)
	}
	return route
}

// Start starts workers and returns once all are ready. On an error, nothing of it is left running.
//
// Errors: BAD_MODEL_FILE and UNSUPPORTED_ARCHITECTURE before anything is started; a worker that ended, with what it said.
func Start(ctx context.Context, o Options) (*Group, error) {
	if o.Engine == "" {
		o.Engine = "llama"
		if isFake(o.Model) {
			o.Engine = fake.Scheme
		}
	}
	architecture, parts, err := o.parts(ctx)
	if err != nil {
		return nil, err
	}
	binary, err := find(o.Binary)
	if err != nil {
		return nil, err
	}
	g := &Group{Model: architecture, Path: o.Model, dead: make(chan *child, len(parts))}
	for i, part := range parts {
		log := func(line string, said entry) {
			if o.Log != nil {
				o.Log(part, line)
			}
			if o.Loading != nil && said.Message == "loading" {
				o.Loading(part, said.Phase, said.Done, said.Total)
			}
		}
		c, err := start(binary, o.args(i, part, len(parts)), o.environ(len(parts)), part, log)
		if err != nil {
			g.Stop()
			return nil, err
		}
		g.children = append(g.children, c)
		go func() {
			<-c.gone
			g.dead <- c // has room for every child
		}()
	}
	if err := g.ready(ctx, o.Patience); err != nil {
		g.Stop()
		return nil, err
	}
	return g, nil
}

func isFake(model string) bool {
	return model == fake.Scheme || strings.HasPrefix(model, fake.Scheme+":")
}

// parts looks at the model and cuts it.
func (o Options) parts(ctx context.Context) (architecture string, parts []engine.LayerRange, err error) {
	var n uint32
	cost := func(r engine.LayerRange) uint64 { return uint64(r.End - r.First) }
	if isFake(o.Model) {
		model, err := fake.Parse(o.Model)
		if err != nil {
			return "", nil, fail.AsUsage(err)
		}
		architecture, n = model.Architecture, model.NLayer
	} else {
		model, err := gguf.Open(o.Model)
		if err != nil {
			return "", nil, err
		}
		architecture, n, cost = model.Architecture(), model.NLayer(), model.OwnBytes
		if (o.Workers > 1 || len(o.Layers) > 1) && !gguf.Adapted(architecture) {
			return "", nil, engine.Errorf(engine.UnsupportedArchitecture, "%s has the architecture %s, which cannot be cut yet (%s can); give it one worker",
				o.Model, architecture, strings.Join(gguf.AdaptedArchitectures(), ", "))
		}
		if model.IsShard() {
			return "", nil, fail.Usagef("%s is a shard, layers %s of %d; name the whole model, or start dgr-worker on each shard", o.Model, layers.Show(model.Held()), n)
		}
		// Once here, so that not every worker reads the whole model to know its name.
		if _, err := gguf.BuildManifest(ctx, model, nil, o.Progress); err != nil {
			return "", nil, err
		}
	}
	if len(o.Layers) > 0 {
		return architecture, o.Layers, layers.Check(o.Layers, n)
	}
	parts, err = layers.Divide(n, o.Workers, cost)
	return architecture, parts, err
}

// args are the flags of worker i.
func (o Options) args(i int, part engine.LayerRange, workers int) []string {
	args := []string{
		"--model", o.Model, "--engine", o.Engine, "--layers", layers.Show(part), "--worker-id", fmt.Sprintf("local-%d", i),
		"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--chain-allow", "127.0.0.1:*",
		"--threads", strconv.FormatUint(uint64(o.threads(workers)), 10), "--drain", "2s", "--log-format", "json", "--announce", "--exit-with-stdin",
	}
	if i == 0 && workers > 2 { // with two, the tail's way up the chain is the ring's already
		args = append(args, "--ring-advertise", "127.0.0.1:0")
	}
	if o.Context > 0 {
		args = append(args, "--context", strconv.FormatUint(uint64(o.Context), 10))
	}
	if o.Sessions > 0 {
		args = append(args, "--sessions", strconv.FormatUint(uint64(o.Sessions), 10))
	}
	return append(args, o.Extra...)
}

// threads of each worker: together they do not exceed the cores.
func (o Options) threads(workers int) uint32 {
	if o.Threads > 0 {
		return o.Threads
	}
	return uint32(max(runtime.NumCPU()/workers, 1))
}

// environ is this process's, without what would configure a worker behind its flags. Where there are more threads than
// cores, waiting ones must not spin.
func (o Options) environ(workers int) []string {
	var environ []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "DGR_") || strings.HasPrefix(entry, "DGR_LOG_") || strings.HasPrefix(entry, "DGR_NATIVE_") {
			environ = append(environ, entry)
		}
	}
	if int(o.threads(workers))*workers > runtime.NumCPU() {
		environ = append(environ, "OMP_WAIT_POLICY=passive")
	}
	return environ
}

// ready waits until every worker has announced itself.
func (g *Group) ready(ctx context.Context, patience time.Duration) error {
	bounded, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for i, c := range g.children {
		select {
		case w := <-c.ready:
			g.Workers = append(g.Workers, w)
		case dead := <-g.dead:
			return g.death(dead, "while the model was loaded")
		case <-bounded.Done():
			if ctx.Err() != nil {
				return fail.ErrInterrupted
			}
			return fmt.Errorf("worker %d of %d (layers %s) is not ready after %v; give it more time with --ready-timeout", i+1, len(g.children), layers.Show(c.part), patience)
		}
	}
	return nil
}

// Wait returns when ctx ends (nil) or a worker has died (its epitaph).
func (g *Group) Wait(ctx context.Context) error {
	select {
	case dead := <-g.dead:
		return g.death(dead, "and the others were stopped")
	case <-ctx.Done():
		return nil
	}
}

func (g *Group) death(c *child, when string) error {
	for i, other := range g.children {
		if other == c {
			return fmt.Errorf("worker %d of %d (layers %s, process %d) ended %s: %s",
				i+1, len(g.children), layers.Show(c.part), c.cmd.Process.Pid, when, c.epitaph())
		}
	}
	return fmt.Errorf("a worker ended %s: %s", when, c.epitaph())
}

// Stop ends every worker and returns once none is left. Idempotent.
func (g *Group) Stop() {
	for _, c := range g.children {
		c.stopped()
	}
	bounded, stop := context.WithTimeout(context.Background(), stopping)
	defer stop()
	for _, c := range g.children {
		c.end(bounded)
	}
}
