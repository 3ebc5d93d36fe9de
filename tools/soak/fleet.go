package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// names of the workers, in the order of the fleet.
var names = []string{"whole", "first hop", "second hop"}

// layers of each.
var layers = []string{"0:", "0:3", "3:"}

// fleet is the worker processes.
type fleet struct {
	addresses, admins []string
	ends              []func() error
}

// launch starts the workers.
func launch(ctx context.Context, o Options) (*fleet, error) {
	f := &fleet{}
	for _, l := range layers {
		if err := f.start(ctx, o, l); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	return f, nil
}

// routes are the workers that sessions open: one alone, and two in a row.
func (f *fleet) routes() [][]string {
	return [][]string{f.addresses[:1], f.addresses[1:]}
}

func (f *fleet) start(ctx context.Context, o Options, layers string) error {
	many := strconv.Itoa(16 * o.Sessions)
	cmd := exec.CommandContext(ctx, o.Worker, "--engine", "fake", "--model", "fake:layers=6", "--layers", layers, "--listen", "127.0.0.1:0",
		"--admin", "127.0.0.1:0", "--announce", "--exit-with-stdin", "--log-level", "error", "--chain-allow", "127.0.0.1:*",
		"--ring-advertise", "127.0.0.1:0", "--sessions", strconv.Itoa(o.Sessions), "--context", strconv.Itoa(contextTokens), "--window-bytes", "1MiB",
		"--open-budget", "20s", "--principal-opening", many, "--principal-sessions", many, "--principal-streams", many, "--principal-requests", many,
		"--principal-request-burst", many, "--principal-control", many, "--principal-control-burst", many)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", o.Worker, err)
	}
	f.ends = append(f.ends, func() error { return stop(cmd, stdin) })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the worker of the layers %s ended before it was ready: %w", layers, err)
	}
	var announced struct {
		Address string `json:"address"`
		Admin   string `json:"admin"`
	}
	if err := json.Unmarshal(line, &announced); err != nil {
		return fmt.Errorf("the worker announced %q: %w", line, err)
	}
	f.addresses, f.admins = append(f.addresses, announced.Address), append(f.admins, announced.Admin)
	return nil
}

// stop ends a worker; one that does not end is killed, which is a failure.
func stop(cmd *exec.Cmd, stdin io.Closer) error {
	_ = stdin.Close() // it may be over already
	killed := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("a worker ended badly: %w", err)
	}
	return nil
}

// figures looks at every worker.
func (f *fleet) figures(ctx context.Context) ([]figures, error) {
	all := make([]figures, len(f.admins))
	for i, admin := range f.admins {
		var err error
		if all[i], err = read(ctx, admin); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// close ends every worker.
func (f *fleet) close() error {
	var all []error
	for _, end := range f.ends {
		all = append(all, end())
	}
	return errors.Join(all...)
}
