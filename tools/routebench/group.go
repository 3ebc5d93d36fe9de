package routebench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"

	"github.com/distributed-gguf-runtime/dgr/tools/programs"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// prompt is what each turn continues.
const prompt = "A shard is a part of a model that one worker holds, and a route is the workers that hold all of it."

// Part is one worker of the route.
type Part struct {
	Address string `json:"address"`
	Layers  string `json:"layers"`
}

// group is a running `dgr up`.
type group struct {
	w       *workspace.Workspace
	model   string
	cmd     *exec.Cmd
	Route   string `json:"route"`
	Workers []Part `json:"workers"`
}

// start starts workers and returns when they are ready.
func start(ctx context.Context, w *workspace.Workspace, model string, o Options) (*group, error) {
	g := &group{w: w, model: model}
	g.cmd = w.Command(ctx, "", nil, programs.Path(w, "dgr"), "up", "--model", model, "--workers", strconv.Itoa(o.Workers),
		"--threads", strconv.Itoa(o.Threads), "--json")
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for dgr up: %w", err)
	}
	defer out.Close()
	g.cmd.Stdout = in
	if err := g.cmd.Start(); err != nil {
		in.Close()
		return nil, fmt.Errorf("start dgr up: %w", err)
	}
	in.Close()
	if err := json.NewDecoder(out).Decode(g); err != nil {
		g.stop()
		return nil, fmt.Errorf("dgr up was not ready: %w", err)
	}
	return g, nil
}

// stop ends the workers and waits until they are gone.
func (g *group) stop() {
	_ = g.cmd.Process.Signal(os.Interrupt) // it may have ended by itself
	_ = g.cmd.Wait()                       // an interrupted program ends with a fault
}

// turn is the route's run, then llama.cpp's with as many tokens.
func (g *group) turn(ctx context.Context, bench string, o Options) (Round, error) {
	var route struct {
		PromptTokens int `json:"prompt_tokens"`
		Tokens       int `json:"tokens"`
		Decode       struct {
			Rate float64 `json:"tokens_per_second"`
		} `json:"decode"`
	}
	err := g.ask(ctx, &route, programs.Path(g.w, "dgr"), "run", "--route", g.Route, "-p", prompt, "-n", strconv.Itoa(o.Tokens), "--json")
	if err != nil {
		return Round{}, err
	}
	if route.Tokens < 16 {
		return Round{}, fmt.Errorf("the model ended after %d tokens, too few to time; take another model", route.Tokens)
	}
	var unsplit struct {
		Rate float64 `json:"decode_tokens_per_second"`
	}
	err = g.ask(ctx, &unsplit, bench, "-m", g.model, "-p", strconv.Itoa(route.PromptTokens), "-n", strconv.Itoa(route.Tokens),
		"-t", strconv.Itoa(o.Threads), "-r", "1", "--no-flash") // as dgr up starts its workers
	if err != nil {
		return Round{}, err
	}
	if unsplit.Rate <= 0 || route.Decode.Rate <= 0 {
		return Round{}, fmt.Errorf("a rate is missing: unsplit %g, route %g tokens/s", unsplit.Rate, route.Decode.Rate)
	}
	return Round{PromptTokens: route.PromptTokens, Tokens: route.Tokens, Unsplit: unsplit.Rate, Route: route.Decode.Rate}, nil
}

// ask runs a program that prints one JSON object.
func (g *group) ask(ctx context.Context, into any, name string, args ...string) error {
	cmd := g.w.Command(ctx, "", nil, name, args...)
	var out, faults bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &faults
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(faults.Bytes()))
	}
	if err := json.NewDecoder(io.Reader(&out)).Decode(into); err != nil {
		return fmt.Errorf("read what %s printed: %w", name, err)
	}
	return nil
}
