package mutants

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/distributed-gguf-runtime/dgr/tools/conformance"
)

// fleet is workers of one make, and what they are to the cases.
type fleet struct {
	target *conformance.Target
	ends   []func() error
}

// start starts the workers of a kind of route, in order.
func start(ctx context.Context, program string, k kind) (*fleet, error) {
	f, layers := &fleet{}, k.layers()
	addresses := make([]string, len(layers))
	conns := make([]*grpc.ClientConn, len(layers))
	for i, l := range layers {
		var err error
		if addresses[i], err = f.worker(ctx, program, l, k.model(i)); err != nil {
			return nil, errors.Join(err, f.close())
		}
		if conns[i], err = grpc.NewClient(addresses[i], grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.ends = append(f.ends, conns[i].Close)
	}
	var err error
	if f.target, err = conformance.NewTarget(ctx, addresses, conns); err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.target.Store, f.target.Faults = k.model(0), conformance.FakeFaults(len(layers))
	if f.target.Peer, err = conformance.Listen("127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.ends = append(f.ends, func() error { f.target.Peer.Close(); return nil })
	return f, nil
}

// worker starts one worker and returns its address.
func (f *fleet) worker(ctx context.Context, program, layers, model string) (string, error) {
	cmd := exec.CommandContext(ctx, program, "--engine", "fake", "--model", model, "--layers", layers, "--listen", "127.0.0.1:0",
		"--admin", "127.0.0.1:0", "--announce", "--exit-with-stdin", "--log-level", "error", "--chain-allow", "127.0.0.1:*",
		"--ring-advertise", "127.0.0.1:0")
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start %s: %w", program, err)
	}
	f.ends = append(f.ends, func() error { return stop(cmd, stdin) })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		return "", fmt.Errorf("the worker of layers %s ended before it was ready: %w", layers, err)
	}
	var announced struct {
		Address string `json:"address"`
	}
	return announced.Address, json.Unmarshal(line, &announced)
}

// stop ends a worker; one that does not end, as a mutant may, is killed. How a mutant ends is no matter.
func stop(cmd *exec.Cmd, stdin io.Closer) error {
	_ = stdin.Close() // it may be over already
	killed := time.AfterFunc(2*time.Second, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	_ = cmd.Wait()
	return nil
}

// close ends everything, last first.
func (f *fleet) close() error {
	var all []error
	for i := len(f.ends) - 1; i >= 0; i-- {
		all = append(all, f.ends[i]())
	}
	f.ends = nil
	return errors.Join(all...)
}
