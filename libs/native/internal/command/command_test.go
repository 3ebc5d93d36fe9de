//go:build unix

package command_test

import (
	"bufio"
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/native/internal/command"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A helper that the command has started, and that holds its output, ends with the context.
func TestEndGroupEndsHelpers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "sleep 600 & echo started; wait")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	command.EndGroup(cmd)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	require.NoError(t, err)

	cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := lines.ReadString('\n') // ends when nobody holds the pipe
		ended <- err
	}()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the helper outlives its command")
	}
	require.Error(t, cmd.Wait())
}
