//go:build unix

package child

import (
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// process is a child that runs, and what leads to it.
type process struct {
	cmd      *exec.Cmd
	bell     doorbell
	calls    *rpc.Client
	requests *region
	replies  *region
	said     *output

	ended chan struct{} // closed when it has been waited for
	why   error         // how it ended; good once ended is closed
}

// start begins a child. What it inherits here is closed here.
func start(cmd *exec.Cmd, through io.Writer) (_ *process, err error) {
	p := &process{cmd: cmd, said: &output{through: through}, ended: make(chan struct{})}
	var closers []func()
	defer func() {
		if err != nil {
			for _, c := range closers {
				c()
			}
		}
	}()
	if p.requests, err = newRegion(); err != nil {
		return nil, err
	}
	closers = append(closers, p.requests.close)
	if p.replies, err = newRegion(); err != nil {
		return nil, err
	}
	closers = append(closers, p.replies.close)
	steps, err := socketPair()
	if err != nil {
		return nil, err
	}
	closers = append(closers, func() { unix.Close(steps[0]) })
	theirSteps := os.NewFile(uintptr(steps[1]), "steps")
	defer theirSteps.Close()
	calls, err := socketPair()
	if err != nil {
		return nil, err
	}
	ourCalls, theirCalls := os.NewFile(uintptr(calls[0]), "calls"), os.NewFile(uintptr(calls[1]), "calls")
	defer ourCalls.Close() // the connection has its own
	defer theirCalls.Close()
	conn, err := net.FileConn(ourCalls)
	if err != nil {
		return nil, err
	}
	closers = append(closers, func() { conn.Close() })

	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, p.said, p.said
	cmd.ExtraFiles = []*os.File{theirSteps, theirCalls, p.requests.file, p.replies.file}
	cmd.WaitDelay = time.Second // of a grandchild that holds the output
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the engine's process %s: %w", cmd.Path, err)
	}
	p.bell, p.calls = doorbell{steps[0]}, rpc.NewClient(conn)
	go p.wait()
	return p, nil
}

func socketPair() ([2]int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return pair, os.NewSyscallError("socketpair", err)
	}
	unix.CloseOnExec(pair[0])
	unix.CloseOnExec(pair[1])
	return pair, nil
}

// wait owns the child's end.
func (p *process) wait() {
	defer close(p.ended)
	err := p.cmd.Wait()
	how := "ended"
	if state := p.cmd.ProcessState; state != nil {
		how = "ended with " + state.String()
	}
	if err != nil && p.cmd.ProcessState == nil {
		how = "cannot be waited for: " + err.Error()
	}
	if line := p.said.telling(); line != "" {
		how += "; it said: " + line
	}
	p.why = engine.Errorf(engine.EngineFault, "the engine's process %s", how)
	p.hangUp() // whoever waits for an answer
}

// loss is why the child is no more. Whoever sees a broken socket asks for it; the wait is bounded, because a process whose
// sockets are gone is killed.
func (p *process) loss(cause error) error {
	select {
	case <-p.ended:
		return p.why
	case <-time.After(lossBound):
	}
	p.kill()
	<-p.ended
	return engine.Errorf(engine.EngineFault, "the engine's process did not answer (%v) and was killed", cause)
}

// kill ends the child at once. It is harmless later.
func (p *process) kill() { _ = p.cmd.Process.Kill() }

// hangUp tells the child that it is no longer wanted; it exits when it sees this. Nothing is freed yet.
func (p *process) hangUp() {
	p.bell.hangUp()
	_ = p.calls.Close()
}

// close ends the child in peace, or by force after a bound, and frees what led to it. Nobody may use it any more.
func (p *process) close() {
	p.hangUp()
	select {
	case <-p.ended:
	case <-time.After(exitBound):
		p.kill()
		<-p.ended
	}
	p.bell.close()
	p.requests.close()
	p.replies.close()
}

const (
	lossBound = time.Second     // from a broken socket to the end of the process
	exitBound = 2 * time.Second // from the end of the sockets to the end of the process
)
